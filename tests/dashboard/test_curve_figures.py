"""The trend of a layer and the loss, as figures."""

import itertools

import numpy as np
import pytest
from api_answers import column, curve, series_answer
from hypothesis import given
from hypothesis import strategies as st

from gradcanary_dashboard import axes, curves, palette
from gradcanary_dashboard.columns import decode
from gradcanary_dashboard.view import View

NAN = float("nan")


def span_of(steps: list[float], view: View | None = None) -> axes.Span:
    return axes.Span.of("run", view or View(), np.array(steps, float), 1)


def values(typed: dict[str, str]) -> list[float]:
    dtype = {"f8": "float64", "f4": "float32"}[typed["dtype"]]
    shape = [int(side) for side in typed["shape"].split(",")]
    return decode({"dtype": dtype, "shape": shape, "data": typed["bdata"]}).tolist()  # type: ignore[no-any-return]


def trend_of(low: list[float], mean: list[float], high: list[float], steps: list[float] | None = None) -> axes.Figure:
    steps = steps or [float(step) for step in range(len(mean))]
    return curves.trend(series_answer(curve(low, mean, high), steps), span_of(steps), firing=False)


def polygons(figure: axes.Figure) -> list[dict[str, object]]:
    return [trace for trace in figure["data"] if trace.get("fill") == "toself"]


def test_a_gap_parts_the_envelope() -> None:
    low, high = [1e-3, 1e-3, NAN, 1e-3, 1e-3], [3e-3, 3e-3, NAN, 3e-3, 3e-3]
    drawn = polygons(trend_of(low, [2e-3, 2e-3, NAN, 2e-3, 2e-3], high))
    assert [values(polygon["x"]) for polygon in drawn] == [[0, 1, 1, 0], [3, 4, 4, 3]]  # type: ignore[arg-type]


def test_steps_that_were_left_out_part_it_too() -> None:
    steps = [0.0, 1, 2, 3, 50, 51]
    drawn = polygons(trend_of([1e-3] * 6, [2e-3] * 6, [3e-3] * 6, steps))
    assert [max(values(polygon["x"])) for polygon in drawn] == [3, 51]  # type: ignore[arg-type]


def test_sampling_every_tenth_step_is_no_gap() -> None:
    steps = [float(step) for step in range(0, 100, 10)]
    assert len(polygons(trend_of([1e-3] * 10, [2e-3] * 10, [3e-3] * 10, steps))) == 1


@given(st.lists(st.booleans(), min_size=1, max_size=60))
def test_the_pieces_hold_exactly_what_is_known(known: list[bool]) -> None:
    mean = [1e-3 if there else NAN for there in known]
    answer = series_answer(curve(mean, mean, mean), np.arange(len(mean)))
    pieces = curves.Curve.read(answer, answer["series"][0]).pieces()
    covered = [index for piece in pieces for index in range(piece.start, piece.stop)]
    assert covered == [index for index, there in enumerate(known) if there]
    assert all(later.start > earlier.stop for earlier, later in itertools.pairwise(pieces))


def test_a_dip_of_one_step_shows_in_the_envelope() -> None:
    drawn = polygons(trend_of([1e-3, 1e-9, 1e-3], [1e-3, 9e-4, 1e-3], [1e-3, 2e-3, 1e-3]))
    assert min(values(drawn[0]["y"])) == pytest.approx(1e-9)  # type: ignore[arg-type]


def test_an_exact_zero_lies_on_the_floor_of_the_log_axis_and_is_named() -> None:
    drawn = trend_of([1e-3, 0.0, 1e-3], [1e-3, 0.0, 1e-3], [1e-3, 0.0, 1e-3])
    line = next(trace for trace in drawn["data"] if trace.get("hovertemplate"))
    floor = 10 ** drawn["layout"]["yaxis"]["range"][0]
    assert values(line["y"])[1] == pytest.approx(floor)
    assert line["customdata"][1] == ["1", "0"]
    assert "exact 0" in [note["text"] for note in drawn["layout"]["annotations"]]


def test_the_threshold_is_always_in_sight() -> None:
    for level in (1e-9, 1e-4, 10.0):
        low, high = trend_of([level] * 3, [level] * 3, [level] * 3)["layout"]["yaxis"]["range"]
        assert low < -4 < high


def test_what_is_not_finite_is_a_cross() -> None:
    answer = series_answer(curve([1e-3, NAN], [1e-3, NAN], [1e-3, NAN], nonfinite=[0, 3]), [0, 1])
    drawn = curves.trend(answer, span_of([0, 1]), firing=True)
    cross = next(trace for trace in drawn["data"] if trace["mode"] == "markers")
    assert values(cross["x"]) == [1]
    assert cross["marker"]["color"] == palette.MAGENTA


def test_the_loss_may_be_absent() -> None:
    answer = {"bucket_steps": 1, "steps": column([], "float64"), "times": column([], "float64"), "metrics": []}
    assert "No loss" in curves.loss(answer, span_of([]))["layout"]["annotations"][0]["text"]


def test_all_figures_share_the_steps_and_keep_a_zoom() -> None:
    view = View(from_step=10, to_step=20)
    steps = [float(step) for step in range(40)]
    answer = series_answer(curve([1.0] * 40, [1.0] * 40, [1.0] * 40), steps)
    span = span_of(steps, view)
    drawn = [curves.trend(answer, span, firing=False), curves.loss(answer, span)]
    assert [figure["layout"]["xaxis"]["range"] for figure in drawn] == [[9.5, 20.5]] * 2
    assert len({figure["layout"]["uirevision"] for figure in drawn}) == 1
    assert drawn[0]["layout"]["margin"] == drawn[1]["layout"]["margin"]


def test_a_live_run_keeps_the_identity_of_its_view() -> None:
    assert span_of([0, 1, 2]).identity == span_of([0, 1, 2, 3]).identity
    assert span_of([0, 1]).identity != span_of([0, 1], View(from_step=0, to_step=1)).identity
