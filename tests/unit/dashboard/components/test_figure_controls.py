"""What is chosen above a figure, and the scale of its colours."""

import json

import pytest

from gradcanary_dashboard.address.run import View
from gradcanary_dashboard.analysis.stats import STATS
from gradcanary_dashboard.components import figure_controls
from gradcanary_dashboard.figures import metrics as metric_figures
from support.api_answers import layer


def test_only_stats_that_were_measured_can_be_chosen() -> None:
    def offered(*listed: dict[str, object], stat: str = "absmax") -> list[str]:
        return [option for option, hidden in figure_controls.offered(View(stat=stat), listed).items() if not hidden]

    always = ["option-absmax", "option-norm", "option-nonfinite"]
    assert offered(layer(0)) == always
    assert offered(layer(0), layer(1, update_ratio=1e-3)) == [*always, "option-update_ratio", "option-weight_norm"]
    assert "option-frozen_fraction" in offered(layer(0), stat="frozen_fraction")


@pytest.mark.parametrize(
    ("stat", "told", "words"),
    [("absmax", [1e-8, 1e-4, 1.0], ["≤ 1e-8", "1e-4, the threshold", "≥ 1"]), ("norm", [1e-3, 0.4], ["0.001", "0.4"])],
)
def test_the_colours_of_a_heatmap_have_their_numbers(stat: str, told: list[float], words: list[str]) -> None:
    [scale, *swatches] = figure_controls.legend({"layout": {"meta": {"told": told, "ends": told}}}, STATS[stat])
    assert [part.children for part in scale.children if part.children] == words
    assert len(swatches) == len(("exact 0", "no data", "non-finite"))
    assert figure_controls.legend({"layout": {}}, STATS[stat])[0].children == []


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
