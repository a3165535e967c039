"""Several runs in one figure."""

import itertools
import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gradcanary_dashboard.analysis.arrays import decode
from gradcanary_dashboard.analysis.events import Events
from gradcanary_dashboard.analysis.stats import STATS
from gradcanary_dashboard.figures import axes, overlay
from gradcanary_dashboard.figures.overlay import COLOURS, DASHES, Mark, RunCurve, Unit
from support.api_answers import curve, series_answer


def strand(place: int, values: list[float], first: float = 0) -> RunCurve:
    answer = series_answer(curve(values, values, values), np.arange(len(values)) + first)
    found = RunCurve.read(place, "ABCDEF"[place], answer, answer["series"][0], Events(), int(first))
    assert found is not None
    return found


def labels(figure: axes.Figure) -> list[tuple[str, float]]:
    """The letters at the ends of lines, and how high each is."""
    room = figure["layout"]["height"] - figure["layout"]["margin"]["t"] - figure["layout"]["margin"]["b"]
    notes = [note for note in figure["layout"]["annotations"] if "<span" in note["text"]]
    return [(note["text"].split(">")[2][0], note["y"] * room + note["yshift"]) for note in notes]


@given(st.lists(st.floats(1e-9, 1e3), min_size=2, max_size=6))
def test_each_line_has_its_colour_its_dash_and_a_letter_that_none_covers(ends: list[float]) -> None:
    strands = [strand(place, [1.0, end]) for place, end in enumerate(ends)]
    span = axes.Span(0, 1, "")
    for figure in (
        overlay.of_stat(strands, span, STATS["absmax"], 1e-4, [], "step"),
        overlay.of_run_metric(strands, span, Unit(), "", "step"),
    ):
        lines = [trace for trace in figure["data"] if trace.get("name")]
        assert [(line["line"]["color"], line["line"]["dash"]) for line in lines] == [
            (COLOURS[place], DASHES[place]) for place in range(len(ends))
        ]
        heights = sorted(height for _, height in labels(figure))
        assert {letter for letter, _ in labels(figure)} == set("ABCDEF"[: len(ends)])
        assert all(above - below > overlay.LABEL_PX - 1e-6 for below, above in itertools.pairwise(heights))


def test_letters_stay_within_the_plot_where_all_lines_end_at_its_top() -> None:
    strands = [strand(place, [1e-9, *[1e-3] * 5]) for place in range(5)]
    figure = overlay.of_stat(strands, axes.Span(0, 5, ""), STATS["absmax"], None, [], "step")
    heights = sorted(height for _, height in labels(figure))
    layout = figure["layout"]
    assert heights[-1] <= layout["height"] - layout["margin"]["t"] - layout["margin"]["b"] - overlay.LABEL_PX / 2
    assert all(above - below > overlay.LABEL_PX - 1e-6 for below, above in itertools.pairwise(heights))


def test_runs_lie_upon_each_other_from_their_origins_and_tell_their_own_numbers() -> None:
    figure = overlay.of_run_metric(
        [strand(0, [0.2, 0.21]), strand(1, [0.3, 0.31], 5000)], axes.Span(0, 1, ""), Unit(1e-3, "ms"), "", "steps since"
    )
    lines = [trace for trace in figure["data"] if trace.get("name")]
    assert [decode({"dtype": "float64", "shape": [3], "data": line["x"]["bdata"]}).tolist()[:2] for line in lines] == [
        [0, 1]
    ] * 2
    assert lines[1]["customdata"][0] == ["0", "300"]
    assert "B" in lines[1]["hovertemplate"]
    assert figure["layout"]["xaxis"]["title"]["text"] == "steps since"


def test_a_first_step_of_minutes_does_not_flatten_the_rest() -> None:
    times = [strand(0, [60.0, *[0.2] * 20])]
    assert (
        overlay.of_run_metric(times, axes.Span(0, 20, ""), overlay.seconds(times), "", "step")["layout"]["yaxis"][
            "type"
        ]
        == "log"
    )
    assert overlay.seconds(times).name == "ms"


def test_an_incident_is_marked_in_the_line_of_its_run() -> None:
    mark = Mark(1, 3, "B #31", "B: incident #31 opened at step 3")
    figure = overlay.of_stat([strand(1, [1e-3] * 6)], axes.Span(0, 5, ""), STATS["absmax"], 1e-4, [mark], "step")
    (line,) = [shape for shape in figure["layout"]["shapes"] if shape.get("x0") == 3]
    assert line["line"]["color"] == COLOURS[1]
    assert "B #31" in [note["text"] for note in figure["layout"]["annotations"]]
    assert "incident #31" in json.dumps(figure["data"])
