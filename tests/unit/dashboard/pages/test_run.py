"""The page of a run without layers, and the pages of something unknown."""

from typing import get_args

import pytest

from gradcanary.cli import incidents as terminal_incidents
from gradcanary_dashboard.address.run import View
from gradcanary_dashboard.collector.run import RunData
from gradcanary_dashboard.pages import layer as layer_page
from gradcanary_dashboard.pages import run as run_page
from gradcanary_dashboard.text import numbers
from gradcanary_server.rules.types import Resolution
from support.api_answers import heatmap_answer, run, text_of


def test_resolutions_have_the_same_words_on_pages_and_at_a_terminal() -> None:
    known = {*get_args(Resolution), "run_finished", "run_deleted"}
    assert numbers.RESOLUTIONS.keys() == known
    assert terminal_incidents.RESOLUTIONS == numbers.RESOLUTIONS


@pytest.mark.parametrize(("state", "words"), [("finished", "No layer."), ("live", "No layer yet.")])
def test_page_waits_for_layers_only_while_the_run_lives(state: str, words: str) -> None:
    empty = heatmap_answer(rows=0, columns=0)
    told = run(state=state, step=None, layers=0, framework=None)
    contents = run_page.fill(RunData(told, [], None, empty, None, None, None, None, [], "", clips=False), View())
    assert contents["trend"]["layout"]["annotations"][0]["text"] == words
    assert words in text_of(contents["accumulators"])


@pytest.mark.parametrize("missing", [run_page.unknown("run"), layer_page.unknown("run", "layer")])
def test_a_page_of_something_unknown_has_a_heading(missing: object) -> None:
    assert text_of(missing).count('"type": "H1"') == 1
