"""The axis of time: when steps were, and back to the very step."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradcanary_dashboard.address.run import View
from gradcanary_dashboard.analysis.arrays import decode, read
from gradcanary_dashboard.analysis.clock import Clock
from gradcanary_dashboard.analysis.events import Events
from gradcanary_dashboard.analysis.launches import Hole
from gradcanary_dashboard.analysis.stats import STATS
from gradcanary_dashboard.figures import axes, curves, heatmap
from support.api_answers import axis as axis_of
from support.api_answers import column, curve, heatmap_answer, series_answer


def answer(steps: Any, times_s: Any) -> dict[str, Any]:
    return {"steps": column(steps, "float64"), "times": column(times_s, "float64")}


def clock_of(steps: Any, times_s: Any) -> Clock:
    found = Clock.of(answer(steps, times_s))
    assert found is not None
    return found


def test_a_step_is_where_its_time_is_also_beyond_the_ends() -> None:
    clock = clock_of(np.arange(0, 100, 10), 1e9 + np.arange(0, 50, 5))
    assert clock.at(20) == pytest.approx((1e9 + 10) * 1e3)
    assert clock.at(np.array([-0.5, 25, 99.5])) == pytest.approx((1e9 + np.array([-0.25, 12.5, 49.75])) * 1e3)


@given(st.lists(st.floats(0.01, 1e5), min_size=2, max_size=60), st.sampled_from([1, 8, 32]))
def test_time_rises_with_the_steps_however_long_each_took(taken: list[float], bucket: int) -> None:
    steps, times = bucket * np.arange(len(taken)), 1.7e9 + np.cumsum(taken)
    clock = clock_of(steps, times)
    assert clock.at(steps.astype(float)) == pytest.approx(times * 1e3, abs=1.0)
    assert (np.diff(clock.at(np.linspace(-1, steps[-1] + bucket, 500))) >= 0).all()


def test_bucket_before_a_pause_ends_before_it() -> None:
    """Ten steps a second, and a night between steps 49 and 50."""
    steps = np.arange(100)
    times = 1e9 + steps * 0.1 + np.where(steps >= 50, 30_000, 0)
    clock = clock_of(steps, times)
    assert clock.at(49.4) < (1e9 + 5.5) * 1e3
    assert clock.at(50) == pytest.approx(times[50] * 1e3)


def test_no_time_axis_where_steps_are_out_of_order() -> None:
    steps = np.arange(0, 100, 10)
    times = np.where(steps < 50, 5000 + steps, 1000 + steps)
    assert Clock.of(answer(steps, times)) is None
    assert Clock.of(answer([0], [1e9])) is None
    assert Clock.of(answer([0, 1], [np.nan, 1e9])) is None
    assert Clock.of(answer([0, 1], [1e9, 1e9])) is None
    set_back = 1e9 + steps * 10.0
    set_back[5] -= 12  # a clock that was set
    assert Clock.of(answer(steps, set_back)) is not None


def test_figures_lie_on_the_axis_of_time() -> None:
    steps = np.arange(40.0)
    told = series_answer(curve([1e-3] * 40, [2e-3] * 40, [3e-3] * 40), steps)
    span = axes.Span.of("run", View(x="time"), axis_of(steps)).timed(clock_of(steps, 1e9 + steps))
    hole = Hole(10, 12, ("never received",))
    marks = [{"step": 30, "incident": 7, "kind": "fired"}]
    drawn = curves.trend(told, span, STATS["absmax"], Events(marks, holes=[hole]))
    axis = drawn["layout"]["xaxis"]
    assert axis["type"] == "date"
    assert axis["range"] == pytest.approx([(1e9 - 0.5) * 1e3, (1e9 + 39.5) * 1e3])
    line = next(trace for trace in drawn["data"] if "customdata[0]" in trace.get("hovertemplate", ""))
    assert np.nanmax(read(line["x"])) == (1e9 + 39) * 1e3
    shapes = drawn["layout"]["shapes"]
    assert [shape["x0"] for shape in shapes if shape.get("x0", 0) > 1] == [(1e9 + 30) * 1e3]
    band = next(shape["path"] for shape in shapes if "path" in shape)
    assert band.startswith("M2001-09-09_01:46:49.500000,0")
    assert axes.Span.of("run", View(), axis_of(steps)).identity != span.identity


def test_a_pause_is_a_column_without_data() -> None:
    told = heatmap_answer(2, 20)
    steps = decode(told["steps"])
    span = axes.Span.of("run", View(), told)
    plain = heatmap.figure(told, span, None, Events())
    times = 1e9 + steps + np.where(steps >= 320, 5000, 0)
    drawn = heatmap.figure(told, span.timed(clock_of(steps, times)), None, Events())
    meta, codes = drawn["layout"]["meta"], read(drawn["data"][0]["z"])
    starts = [*range(0, 640, 32)]
    assert meta["firsts"] == [*starts[:10], None, *starts[10:]]
    assert {meta["special"][str(code)] for code in codes[:, 10]} == {heatmap.WORDS["no_data"]}
    assert (np.delete(codes, 10, axis=1) == read(plain["data"][0]["z"])).all()
    edges = read(drawn["data"][0]["x"])
    assert len(edges) == codes.shape[1] + 1
    assert (np.diff(edges) > 0).all()
    assert edges[11] - edges[10] == pytest.approx(5_000_000, rel=0.01)
