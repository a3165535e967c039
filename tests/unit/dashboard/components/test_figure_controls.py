"""What is chosen above a figure, and the scale of its colours."""

import json

import pytest

from gradcanary_dashboard.address.run import View
from gradcanary_dashboard.analysis.events import Events
from gradcanary_dashboard.components import figure_controls
from gradcanary_dashboard.figures import axes, heatmap
from gradcanary_dashboard.figures import metrics as metric_figures
from support.api_answers import heatmap_answer, layer


def test_only_stats_that_were_measured_can_be_chosen() -> None:
    def offered(*listed: dict[str, object], stat: str = "absmax") -> list[str]:
        return [option for option, hidden in figure_controls.offered(View(stat=stat), listed).items() if not hidden]

    always = ["option-absmax", "option-norm", "option-nonfinite"]
    assert offered(layer(0)) == always
    assert offered(layer(0), layer(1, update_ratio=1e-3)) == [*always, "option-update_ratio", "option-weight_norm"]
    assert "option-frozen_fraction" in offered(layer(0), stat="frozen_fraction")


@pytest.mark.parametrize(
    ("stat", "words"), [("absmax", ["≤ 1e-8", "1e-4 threshold", "≥ 1", "1e-6", "0.01"]), ("norm", ["1e-7", "0.1"])]
)
def test_the_colours_of_a_heatmap_have_their_numbers_where_they_are(stat: str, words: list[str]) -> None:
    answer = {**heatmap_answer(rows=2, columns=2), "stat": stat}
    drawn = heatmap.figure(answer, axes.Span.of("run", View(), answer), None, Events())
    swatches, scale = figure_controls.legend(drawn)
    assert [tick.children for tick in scale.children[1:]][: len(words)] == words
    if stat == "absmax":
        assert [tick.style["left"] for tick in scale.children[1:]] == ["0.0%", "50.0%", "100.0%", "25.0%", "75.0%"]
        assert [tick.children for tick in scale.children if tick.className == "threshold"] == ["1e-4 threshold"]
    assert scale.style["marginLeft"] == drawn["layout"]["margin"]["l"], "it lies over the columns"
    assert [swatch.children[1] for swatch in swatches.children] == list(figure_controls.CELLS.values())
    assert figure_controls.legend({"layout": {}}) == []


def test_a_metric_has_a_card_with_room_for_its_figure() -> None:
    metrics = [{"name": "<b>", "tags": {"host": host}, "last": 1.0} for host in "ab"]
    [panel] = metric_figures.of(metrics)
    card, below = json.loads(figure_controls.metric_cards([panel], "30 more metrics"))
    assert card[1] == {"class": "card panel", "aria-labelledby": f"{panel.key}-title", "data-key": panel.key}
    _, heading, aside = card[2][1:]
    assert heading[2] == "<b>"
    assert aside[1:] == [{"class": "aside", "data-words": "2 lines by host"}, "2 lines by host"]
    place = card[3][2]
    assert (place[1], place[2][1]["style"]) == ({"id": panel.key}, "min-height: 140px")
    assert below == ["p", {"class": "dim more"}, "30 more metrics"]
    assert json.loads(figure_controls.metric_cards([], "")) == []
