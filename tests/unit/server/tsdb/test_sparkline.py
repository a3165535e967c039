"""The line of a run in the list keeps the deepest point of any run, however it came and however long it is."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gradcanary_server.tsdb.sparkline import FLOOR, POINTS, Sparkline, levels

PARTS = st.lists(
    st.tuples(st.integers(0, 10_000), st.lists(st.floats(-12, 3, width=32), min_size=1, max_size=300)),
    min_size=1,
    max_size=6,
)


@given(PARTS)
def test_sparkline_keeps_the_deepest_point(parts):
    line = Sparkline()
    lowest = {}
    for first, values in parts:
        steps = np.arange(first, first + len(values))
        line = Sparkline.unpack(line.add(steps, np.array(values, np.float32)).pack())
        for step, value in zip(steps.tolist(), values, strict=True):
            lowest[step] = min(value, lowest.get(step, np.inf))
    assert len(line.levels) <= 2 * POINTS
    for bucket, level in enumerate(line.levels):
        start = (line.first + bucket) * line.width
        inside = [value for step, value in lowest.items() if start <= step < start + line.width]
        assert np.isnan(level) if not inside else level == np.float32(min(inside))
    points = line.points()
    assert points.shape == (POINTS,)
    assert np.nanmin(points) == np.float32(min(lowest.values()))


def test_sparkline_ignores_an_always_tiny_layer():
    absmax = np.full((1, 100), 1e-3, np.float32)
    absmax[0, 7] = 1e-11
    np.testing.assert_allclose(levels(absmax), -3, rtol=1e-6)
    absmax[0, :6] = 1e-6
    np.testing.assert_allclose(levels(absmax), -6, rtol=1e-6)


def test_no_layer_is_no_point_and_zero_is_the_floor():
    absmax = np.array([[np.nan, np.nan], [0, 1], [np.nan, 1]], np.float32)
    found = levels(absmax)
    assert np.isnan(found[0])
    assert found[1:].tolist() == [FLOOR, 0]
