"""Records of the API's JSON: times, lists, what is missing, and frames of them."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone

import numpy as np
import pytest

from gradcanary.client.records import Ack, Records, fill, moment


@dataclass(frozen=True)
class Thing:
    name: str
    tags: tuple[str, ...]
    ack: Ack | None
    json: object = field(repr=False, compare=False)


ACK = Ack(datetime(2030, 1, 1, tzinfo=timezone.utc), "ada", "")


def test_a_record_has_the_keys_of_its_fields():
    thing = fill(Thing, {"name": "a", "tags": ["x"], "newer": 1}, ack=None, json=None)
    assert thing == Thing("a", ("x",), None, None)
    with pytest.raises(KeyError, match="tags"):
        fill(Thing, {"name": "a"}, ack=None, json=None)


def test_times_are_utc():
    assert moment("2030-01-31T12:00:00.250Z") == datetime(2030, 1, 31, 12, 0, 0, 250_000, timezone.utc)
    assert moment("2030-01-31T12:00:00.250Z").utcoffset() == timedelta()


def test_records_are_a_sequence_and_a_frame():
    found = Records(Thing, (Thing("a", ("x",), ACK, {}), Thing("b", (), None, {})))
    assert [each.name for each in found[1:]] == ["b"]
    assert len(found) == 2
    for frame in (found.to_pandas(), found.to_polars()):
        assert list(frame.columns) == ["name", "tags", "ack"]
        assert frame["ack"][0]["by"] == "ada"
        assert list(frame["tags"][0]) == ["x"]
    assert list(Records(Thing, ()).to_pandas().columns) == Records(Thing, ()).to_polars().columns


def test_records_are_shown_as_a_table():
    found = Records(Thing, tuple(Thing(f"a{number}", (), ACK if number else None, {}) for number in range(23)))
    head, first, *_, more = repr(found).splitlines()
    assert (head.split(), first.split(), more) == (["name", "tags", "ack"], ["a0", "()", "-"], "and 3 more")
    assert repr(found[:0]) == "no Thing"


def test_records_are_an_array_with_their_columns():
    @dataclass(frozen=True)
    class Numbers:
        name: str
        step: int
        last: int | None
        loss: float | None
        archived: bool
        tags: tuple[str, ...]

    found = Records(Numbers, (Numbers("a", 3, 2, 0.5, False, ("x",)), Numbers("b", 4, None, None, True, ("y",))))
    array = found.to_numpy()
    assert array.shape == (2,)
    assert [array.dtype[name].kind for name in array.dtype.names] == ["O", "i", "O", "f", "b", "O"]
    assert array["name"].tolist() == ["a", "b"]
    assert array["last"].tolist() == [2, None]
    np.testing.assert_array_equal(array["loss"], [0.5, np.nan])
    assert array["tags"].tolist() == [["x"], ["y"]]
    assert Records(Numbers, ()).to_numpy()["name"].tolist() == []
