"""The list of runs."""

from typing import get_args

import numpy as np

from gradcanary_dashboard.address.runs import STATES, Listing
from gradcanary_dashboard.components import elements, notes
from gradcanary_dashboard.pages import runs as runs_page
from gradcanary_server.api.models import RunState
from support.api_answers import column, incident, run, text_of

NONE_OPEN = {"incidents": [], "next": None}


def test_the_filter_says_when_nothing_matches() -> None:
    said = runs_page.fill([], NONE_OPEN, Listing(text="<img src=x>", state="live"))["runs"]
    assert "There is no live run" in said
    assert '"<img src=x>"' in said
    assert '"/?text=%3Cimg+src%3Dx%3E&state=live&archived=1"' in said


def test_more_open_incidents_than_one_answer_holds() -> None:
    opened = [incident(number) for number in range(100, 8, -1)] + [incident(8, severity="information")]
    for following, said in ((None, ("92 open incidents", "and 87 more")), (8, ("over 92 open", "and all others"))):
        shown = runs_page.fill([run()], {"incidents": opened, "next": following}, Listing())["runs"]
        assert all(words in shown for words in said)


def test_a_run_is_one_link() -> None:
    said = runs_page.fill([run(sparkline=column(np.full(64, -3.0), "float32"))], NONE_OPEN, Listing())["runs"]
    assert '"href":"/runs/run"' in said
    assert "data:image/svg+xml" in said


def test_the_pages_of_the_list_lead_to_each_other() -> None:
    listed = Listing(text="lr", sort="name", after="a~1")
    said = runs_page.fill([run()], NONE_OPEN, listed, following="b~2")["runs"]
    assert '"/?text=lr&sort=name&after=b~2"' in said
    assert '"/?text=lr&sort=name"' in said
    assert "Next 25" not in runs_page.fill([run()], NONE_OPEN, Listing())["runs"]


def test_a_card_tells_the_last_step_from_when_it_was_heard_of() -> None:
    said = runs_page.fill([run()], NONE_OPEN, Listing())["runs"]
    assert "2026-11-20T09:59:58Z" in said
    assert "heard of" not in said, "of a live run that is a heartbeat ago"
    assert "heard of" in runs_page.fill([run(state="silent")], NONE_OPEN, Listing())["runs"]


def test_notes_and_tags_are_on_card_and_page() -> None:
    labelled = run(note="lr too\nhigh", tags=["sdxl"], archived=True, aliases=["before"])
    shown = runs_page.fill([labelled], NONE_OPEN, Listing())["runs"]
    assert '"/?text=sdxl"' in shown
    assert '"lr too"' in shown, "the first line of a note is enough"
    [card] = notes.cards(labelled)
    for words in ('"Note"', '"lr too"', '"high"', '"Tags: sdxl"', '"Was called before"', '"In the archive"'):
        assert words in text_of(card)
    assert notes.cards(run()) == []


def test_the_list_offers_each_state_of_the_collector_with_an_icon():
    assert set(STATES) == set(elements.RUN_STATES) == set(get_args(RunState))
    assert "detached" in STATES
