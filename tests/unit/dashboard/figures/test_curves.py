"""The trend of a layer and the loss, as figures."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradcanary_dashboard.address.run import View
from gradcanary_dashboard.analysis.arrays import decode
from gradcanary_dashboard.analysis.curve import Curve, is_of_samples
from gradcanary_dashboard.analysis.events import Events
from gradcanary_dashboard.analysis.launches import Hole, launches
from gradcanary_dashboard.analysis.stats import STATS
from gradcanary_dashboard.components import figure_controls
from gradcanary_dashboard.figures import axes, curves, palette
from gradcanary_dashboard.figures import metrics as metric_figures
from support.api_answers import axis as axis_of
from support.api_answers import column, curve, run, series_answer, session

NAN = float("nan")
QUIET = Events()
ABSMAX = STATS["absmax"]


def span_of(steps: list[float], view: View | None = None) -> axes.Span:
    return axes.Span.of("run", view or View(), axis_of(steps))


def values(typed: dict[str, str]) -> list[float]:
    dtype = {"f8": "float64", "f4": "float32"}[typed["dtype"]]
    shape = [int(side) for side in typed["shape"].split(",")]
    return decode({"dtype": dtype, "shape": shape, "data": typed["bdata"]}).tolist()  # type: ignore[no-any-return]


def trend_of(
    low: list[float],
    mean: list[float],
    high: list[float],
    steps: list[float] | None = None,
    *,
    stat: str = "absmax",
    events: Events = QUIET,
    baseline: float | None = None,
) -> axes.Figure:
    steps = steps or [float(step) for step in range(len(mean))]
    answer = series_answer(curve(low, mean, high), steps)
    return curves.trend(answer, span_of(steps), STATS[stat], events, baseline=baseline)


def line_of(figure: axes.Figure) -> dict[str, Any]:
    return next(trace for trace in figure["data"] if "customdata[0]" in trace.get("hovertemplate", ""))


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
    pieces = curves.Curve.read(answer, answer["series"][0], QUIET).pieces()
    covered = [index for piece in pieces for index in range(piece.start, piece.stop)]
    assert covered == [index for index, there in enumerate(known) if there]
    assert all(later.start > earlier.stop for earlier, later in itertools.pairwise(pieces))


def test_a_dip_of_one_step_shows_in_the_envelope() -> None:
    drawn = polygons(trend_of([1e-3, 1e-9, 1e-3], [1e-3, 9e-4, 1e-3], [1e-3, 2e-3, 1e-3]))
    assert min(values(drawn[0]["y"])) == pytest.approx(1e-9)  # type: ignore[arg-type]


def test_an_exact_zero_lies_on_the_floor_of_the_log_axis_and_is_named() -> None:
    drawn = trend_of([1e-3, 0.0, 1e-3], [1e-3, 0.0, 1e-3], [1e-3, 0.0, 1e-3])
    line = line_of(drawn)
    floor = 10 ** drawn["layout"]["yaxis"]["range"][0]
    assert values(line["y"])[1] == pytest.approx(floor)
    assert line["customdata"][1] == ["1", "0"]
    assert "exact 0" in [note["text"] for note in drawn["layout"]["annotations"]]


def test_the_threshold_is_always_in_sight() -> None:
    for level in (1e-9, 1e-4, 10.0):
        low, high = trend_of([level] * 3, [level] * 3, [level] * 3)["layout"]["yaxis"]["range"]
        assert low < -4 < high


@given(st.floats(1e-9, 1e9), st.floats(1, 9))
def test_a_log_axis_without_a_power_of_ten_has_whole_numbers_in_sight(low: float, times: float) -> None:
    drawn = trend_of([low], [low], [low * times], stat="norm")["layout"]["yaxis"]
    floor, top = (10**end for end in drawn["range"])
    if np.floor(drawn["range"][1]) < drawn["range"][0]:  # a learning rate of 2e-3 had a lone 2
        step = float(str(drawn["dtick"]).removeprefix("L"))
        assert 2 <= top // step - floor // step <= 5


@given(st.floats(1e-9, 1e9), st.floats(1, 1e6))
def test_a_log_axis_has_at_least_two_labels(low: float, times: float) -> None:
    drawn = trend_of([low], [low], [low * times], stat="norm")["layout"]["yaxis"]
    first, last = drawn["range"]
    distance = str(drawn["dtick"])
    if distance.startswith("L"):
        labels = 10**last // float(distance[1:]) - 10**first // float(distance[1:])
    else:
        parts, every = ((1, 2, 5), 1) if distance == "D2" else ((1,), int(distance))
        decades = [decade for decade in range(-12, 18) if decade % every == 0]
        labels = sum(first <= decade + np.log10(part) <= last for decade in decades for part in parts)
    assert 2 <= labels <= 7


def test_nonfinite_values_are_crosses() -> None:
    answer = series_answer(curve([1e-3, NAN], [1e-3, NAN], [1e-3, NAN], nonfinite=[0, 3]), [0, 1])
    drawn = curves.trend(answer, span_of([0, 1]), ABSMAX, QUIET, firing=True)
    cross = next(trace for trace in drawn["data"] if trace["mode"] == "markers")
    assert values(cross["x"]) == [1]
    assert cross["marker"]["color"] == palette.MAGENTA


def test_a_bucket_of_several_samples_says_its_steps_whatever_the_interval_is_now() -> None:
    """Sampled each 100th step by now, but each one before."""
    of_one = curve([1e-3] * 2, [2e-3] * 2, [3e-3] * 2)
    widened = Events(launches=launches(run(sessions=[session(1, 0, 199, every=100)])))
    for count, words in ((100, ["0 to 99", "100 to 199"]), (1, ["0", "100"])):
        answer = series_answer({**of_one, "count": column([count] * 2, "int32")}, [0, 100], 100)
        line = line_of(curves.trend(answer, span_of([0, 199]), ABSMAX, widened))
        assert [word for word, _ in line["customdata"] if word] == words


def test_all_figures_share_the_steps_and_keep_a_zoom() -> None:
    view = View(from_step=10, to_step=20)
    steps = [float(step) for step in range(40)]
    answer = series_answer(curve([1.0] * 40, [1.0] * 40, [1.0] * 40), steps)
    span = span_of(steps, view)
    (panel,) = metric_figures.of([{"name": "loss", "tags": {}, "last": 1.0}])
    drawn = [curves.trend(answer, span, ABSMAX, QUIET), metric_figures.draw(panel, answer, span, QUIET, view)["figure"]]
    assert [figure["layout"]["xaxis"]["range"] for figure in drawn] == [[9.5, 20.5]] * 2
    assert len({figure["layout"]["uirevision"] for figure in drawn}) == 1
    assert drawn[0]["layout"]["margin"] == drawn[1]["layout"]["margin"]


def test_a_live_run_keeps_the_identity_of_its_view() -> None:
    assert span_of([0, 1, 2]).identity == span_of([0, 1, 2, 3]).identity
    assert span_of([0, 1]).identity != span_of([0, 1], View(from_step=0, to_step=1)).identity


def test_no_line_is_drawn_over_a_hole_thinner_than_a_point() -> None:
    steps = [0.0, 32, 64, 96]
    answer = series_answer(curve([1e-3] * 4, [2e-3] * 4, [3e-3] * 4), steps, bucket_steps=32)
    events = Events(holes=[Hole(50, 52, ("never received",))])
    span = axes.Span.of("run", View(), axis_of(steps, 32))
    drawn = curves.trend(answer, span, ABSMAX, events)
    assert [min(values(polygon["x"])) for polygon in polygons(drawn)] == [15.5, 79.5]  # type: ignore[arg-type]
    line = values(line_of(drawn)["x"])
    assert np.isnan(line[2])
    assert [value for value in line if value == value] == [15.5, 47.5, 79.5, 111.5]


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 40)), max_size=4), st.sampled_from([1, 4, 16]))
def test_no_piece_reaches_over_a_hole(placed: list[tuple[int, int]], bucket: int) -> None:
    steps = np.arange(0, 200, bucket, dtype=float)
    level = [1e-3] * len(steps)
    answer = series_answer(curve(level, level, level), steps, bucket_steps=bucket)
    events = Events(holes=[Hole(first, first + more, ("lost",)) for first, more in placed])
    drawn = curves.Curve.read(answer, answer["series"][0], events)
    for piece in drawn.pieces():
        for here, there in itertools.pairwise(drawn.middle[piece]):
            assert not any(here < hole.last and hole.first < there for hole in events.holes)


def test_a_single_step_is_told_with_every_digit_and_several_with_their_extremes() -> None:
    single = line_of(trend_of([6.103516e-07], [6.103516e-07], [6.103516e-07]))
    assert single["customdata"][0] == ["0", "6.103516e-7"]
    answer = series_answer(curve([1e-3], [2e-3], [3e-3]), [0.0], bucket_steps=8)
    answer["series"][0]["count"] = column([8], "int32")
    several = line_of(curves.trend(answer, axes.Span.of("run", View(), axis_of([0], 8)), ABSMAX, QUIET))
    assert several["customdata"][0] == ["0 to 7", "0.002 (0.001 to 0.003)"]


@pytest.mark.parametrize(
    ("bucket", "count", "said"),
    [
        (1, 1, "single steps"),
        (10, 1, "each sample (every 10th step)"),
        (10, 8, "10 steps per point"),  # each step was sampled before the interval changed
        (20, 1, "20 steps per point"),  # a stat that is measured of some layers in turn
    ],
)
def test_the_finest_zoom_of_every_tenth_step_is_said_to_be_that(bucket: int, count: int, said: str) -> None:
    answer = series_answer(curve([1e-3] * 2, [1e-3] * 2, [1e-3] * 2), [0, bucket], bucket)
    answer["series"][0]["count"] = column([1, count], "int32")
    events = Events.of(run(sessions=[session(1, 0, 99, every=10)]), [])
    is_single = is_of_samples(answer, events)
    zoomed = View(from_step=0, to_step=99)
    assert figure_controls.zoom_note(zoomed, [bucket], "point", is_of_samples=is_single) == [said]


def test_threshold_and_baseline_are_named_on_different_sides() -> None:
    for baseline, sides in ((3e-3, ["top", "bottom"]), (2e-5, ["bottom", "top"])):
        notes = trend_of([1e-3] * 3, [1e-3] * 3, [1e-3] * 3, baseline=baseline)["layout"]["annotations"]
        assert [note["text"].split()[0] for note in notes] == ["threshold", "baseline"]
        assert [note["yanchor"] for note in notes] == sides


@pytest.mark.parametrize("stat", list(STATS))
def test_only_absmax_has_a_threshold_and_fractions_a_linear_axis(stat: str) -> None:
    layout = trend_of([0.1, 0.2], [0.1, 0.2], [0.1, 0.2], stat=stat, baseline=1.0)["layout"]
    assert ("threshold" in str(layout.get("annotations"))) == (stat == "absmax")
    assert (layout["yaxis"].get("type") == "log") == STATS[stat].is_log


@pytest.mark.parametrize("stat", ["absmax", "zero_fraction"])
def test_the_layer_of_another_run_is_a_dashed_line_within_the_axis(stat: str) -> None:
    low = series_answer(curve([1e-9], [1e-9], [1e-9]), [0.0])
    other = Curve.read(low, low["series"][0], QUIET)
    drawn = curves.trend(series_answer(curve([1], [1], [1]), [0.0]), span_of([0.0]), STATS[stat], QUIET, other=other)
    own, dashed = (trace for trace in drawn["data"] if trace.get("name"))
    assert (own["name"], dashed["name"], dashed["line"]["dash"]) == ("this run", "vs", "dash")
    if stat == "absmax":
        assert drawn["layout"]["yaxis"]["range"][0] < -9


def test_a_zoom_reaches_a_single_step() -> None:
    span = axes.Span.of("run", View(from_step=7, to_step=7), axis_of(range(9)))
    assert span.axis()["range"] == [6.5, 7.5]
