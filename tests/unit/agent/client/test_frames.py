"""Columns become frames, and a package that is not installed is named."""

from datetime import datetime, timezone

import numpy as np
import pytest

from gradcanary.client import frames


@pytest.mark.parametrize("make", [frames.to_pandas, frames.to_polars])
def test_columns_keep_their_kinds(make):
    times = frames.to_times(np.array([0.25, np.nan]))
    labels = frames.Labels(np.array([1, 0]), ("a", "b"))
    frame = make({"time": times, "layer": labels, "value": np.array([1, 2], "f"), "tags": [["x"], []]})
    assert list(frame.columns) == ["time", "layer", "value", "tags"]
    first = frame["time"][0]
    assert first.replace(tzinfo=timezone.utc) == datetime(1970, 1, 1, 0, 0, 0, 250_000, timezone.utc)
    assert frame["time"][1] is None or str(frame["time"][1]) == "NaT"
    assert list(frame["layer"]) == ["b", "a"]
    assert frame["value"].to_numpy().dtype == np.float32
    assert [list(each) for each in frame["tags"]] == [["x"], []]


def test_a_missing_package_is_named():
    with pytest.raises(ImportError, match=r"this needs no_such_package, .*: pip install no_such_package"):
        frames.require("no_such_package")
