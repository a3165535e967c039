"""Lines of buckets: parts put together, empty buckets left out, merged samples never taken for one."""

import math
from array import array
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradcanary.client.buckets import Buckets, Envelope
from gradcanary.client.series import Line, Metrics, Series

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


def test_the_table_of_the_api_becomes_points():
    known = [{"name": "loss", "tags": {}}, {"name": "=x", "tags": {"split": "val"}}, {"name": "never", "tags": {}}]
    rows = [
        ["step", "time", "'=x{split=val}", "loss", "newer"],
        ["3", "2030-01-31T12:00:00.500Z", "0.5", "", "1"],
        ["4", "", "nan", "2.0", ""],
    ]
    found = Metrics.decode("run", known, iter(rows))
    assert [each.title for each in found] == ["=x{split=val}", "loss"]
    assert found["=x"].buckets.steps.tolist() == [3, 4]
    assert found["=x"].values.count.tolist() == [1, 0]
    assert found["=x"].values.nonfinite.tolist() == [0, 1]
    assert found["=x"].buckets.times[0] == 1_896_091_200.5
    assert math.isnan(found["loss"].buckets.times[0])
    assert found["loss"].to_numpy().tolist() == [2.0]
