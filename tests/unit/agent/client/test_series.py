"""Lines of buckets: parts put together, empty buckets left out, merged samples never taken for one."""

import json
import math
from array import array
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradcanary.client.buckets import Buckets, Envelope
from gradcanary.client.series import Line, Metrics, Series
from gradcanary.export.tables import Stream
from support.agent.tables import encoded

CELLS = st.one_of(st.none(), st.just(math.nan), st.floats(2**-99, 2**99, width=32))


def line(values, first=0, name="w"):
    """Return a line of samples; None is no sample, NaN one that is not finite."""
    plane = array("f", [math.nan if value is None else value for value in values])
    count = array("i", [value is not None and math.isfinite(value) for value in values])
    nonfinite = array("i", [value is not None and not math.isfinite(value) for value in values])
    steps = array("q", range(first, first + len(values)))
    buckets = Buckets(steps, array("q", [1]) * len(steps), array("d", steps))
    return Line(name, 0, {}, buckets, Envelope(plane, plane, plane, count, nonfinite))


def series(*lines):
    return Series("run", "absmax", ("reduced",), 1e-4, lines[0].buckets, lines)


@given(st.lists(st.lists(CELLS, min_size=1, max_size=20), min_size=1, max_size=4))
def test_parts_are_one_series_with_a_row_for_each_sample(parts):
    firsts = [sum(map(len, parts[:place])) for place in range(len(parts))]
    found = Series.concat([series(line(part, first)) for part, first in zip(parts, firsts, strict=True)])
    values = [value for part in parts for value in part]
    plain = np.array([np.nan if value is None else value for value in values], np.float32)
    np.testing.assert_array_equal(found.to_numpy()[:, 0], plain)
    frame = found.to_pandas()
    assert frame["step"].tolist() == [step for step, value in enumerate(values) if value is not None]
    assert (frame["count"] + frame["nonfinite"] == 1).all()
    np.testing.assert_array_equal(frame["mean"].to_numpy(), plain[frame["step"].to_numpy()])


def test_a_line_is_found_by_place_name_and_tags():
    tagged = replace(line([1.0], name="score"), tags={"b": "2", "a": "1"})
    found = Metrics("run", (tagged, line([2.0], name="loss")))
    assert found[1] is found["loss"]
    assert found["score{a=1, b=2}"] is found["score"]
    assert found["score"].plane("max").tolist() == [1.0]
    with pytest.raises(KeyError, match=r"'los' is none of these: score\{a=1, b=2\}, loss"):
        found["los"]


def test_a_title_is_preferred_to_a_name_that_several_have():
    tagged = replace(line([1.0], name="loss"), tags={"split": "train"})
    found = Metrics("run", (tagged, line([2.0], name="loss"), tagged))
    assert found["loss"] is found[1]
    assert found["loss{split=train}"] is tagged


def test_tables_of_the_api_become_points():
    columns = [
        {"title": "=x{a=1, b=2}", "name": "=x", "tags": {"a": "1, b=2"}},
        {"title": "=x{a=1, b=2}", "name": "=x", "tags": {"a": "1", "b": "2"}},
        {"title": "never", "name": "never", "tags": {}},
    ]
    nan = math.nan
    tables = [([3, 4], [1_896_091_200.5, nan], [0.5, nan, nan, 2.0, nan, nan], [0b11, 0b10, 0])]
    tables += [([9], [nan], [nan, 3.0, nan], [0, 1, 0])]
    lines = [{"dtype": "float64", "launches": False, "columns": columns}]
    for steps, times, values, is_valid in tables:
        rows = len(steps)
        arrays = {"steps": encoded("q", steps, rows), "times": encoded("d", times, rows)}
        lines.append(
            {**arrays, "values": encoded("d", values, 3, rows), "is_valid": encoded("B", is_valid, 3, 1)},
        )
    found = Metrics.decode("run", Stream(json.dumps(each).encode() + b"\n" for each in [*lines, {"rows": 3}]))
    first, second = found
    assert (first.tags, second.tags) == ({"a": "1, b=2"}, {"a": "1", "b": "2"})
    assert first.buckets.steps.tolist() == [3, 4]
    assert first.values.count.tolist() == [1, 0]
    assert first.values.nonfinite.tolist() == [0, 1]
    assert first.buckets.times[0] == 1_896_091_200.5
    assert math.isnan(second.buckets.times[0])
    assert (second.buckets.steps.tolist(), second.to_numpy().tolist()) == ([4, 9], [2.0, 3.0])
    assert found.steps.tolist() == [3, 4, 9]
    np.testing.assert_array_equal(found.to_numpy(), [[0.5, nan], [nan, 2.0], [nan, 3.0]])
    np.testing.assert_array_equal(found.to_numpy("nonfinite"), [[0, nan], [1, 0], [nan, 0]])
    assert Metrics("run", ()).to_numpy().shape == (0, 0)
    with pytest.raises(KeyError, match="several of these"):
        found["=x{a=1, b=2}"]
