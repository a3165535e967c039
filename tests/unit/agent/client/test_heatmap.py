"""The codes of cells are states, and never values."""

from array import array

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gradcanary.client.buckets import Buckets
from gradcanary.client.heatmap import STATES, Heatmap, HeatmapRow
from gradcanary_server.api import charts

CODES = [charts.NO_DATA, charts.EXACT_ZERO, charts.WITHOUT_GRADIENT, charts.FROZEN, charts.ANY_NONFINITE]


def test_the_codes_are_those_of_the_collector():
    assert dict(zip(CODES, ["no_data", "zero", "no_gradient", "not_trainable", "nonfinite"], strict=True)) == STATES


@given(st.lists(st.one_of(st.sampled_from(CODES), st.integers(-charts.LIMIT, charts.LIMIT)), min_size=6, max_size=6))
def test_values_are_those_of_measured_cells(cells):
    buckets = Buckets(array("q", [0, 1, 2]), array("q", [1, 1, 1]), array("d", [0, 1, 2]))
    rows = (HeatmapRow((0,), "a", "a"), HeatmapRow((1,), "b", "b"))
    heatmap = Heatmap("run", "absmax", "min", (), 1e-4, buckets, rows, array("h", cells))
    values, states = heatmap.to_numpy(), heatmap.states()
    frame = heatmap.to_polars()
    for place, code in enumerate(cells):
        state, value = heatmap.cell(place // 3, place % 3)
        assert state == STATES.get(code, "measured") == states.ravel()[place] == frame["state"][place]
        np.testing.assert_allclose(value, values.ravel()[place])
        if state == "measured":
            np.testing.assert_allclose(np.log10(value) * 1000, code, atol=1e-6)
        else:
            assert value == 0 if state == "zero" else np.isnan(value)
