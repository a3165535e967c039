"""The list of runs."""

import re
from typing import Any, get_args

import numpy as np

from gradcanary_dashboard.address.runs import GROUPS, STATES, Listing
from gradcanary_dashboard.components import elements, notes
from gradcanary_dashboard.pages import runs as runs_page
from gradcanary_server.api.models import RunState
from support.api_answers import column, run, run_list, text_of

WORST = {"id": 31, "rule": "collapse", "severity": "critical", "firing": 18, "layers": 144, "acked": False}
FALLEN = run(run="fallen", open_incidents=[31], worst="critical", worst_incident=WORST, unacked=[31], headline="fell")


def shown(
    *runs: dict[str, Any],
    listing: Listing = Listing(),  # noqa: B008 -- immutable
    attention: dict[str, Any] | None = None,
    following: str | None = None,
) -> str:
    return str(runs_page.fill(run_list(*runs, following=following), attention, listing)["runs"])


def test_the_filter_says_when_nothing_matches() -> None:
    said = shown(listing=Listing(text="<img src=x>", state="live"))
    assert "There is no live run" in said
    assert '"<img src=x>"' in said
    assert '"/?text=%3Cimg+src%3Dx%3E&state=live&archived=1"' in said
    assert "No run needs attention" in shown(listing=Listing(needs_attention=True))


def test_a_row_leads_to_its_run_and_to_the_worst_incident() -> None:
    said = shown(run(**{**FALLEN, "sparkline": column(np.full(64, -3.0), "float32")}))
    assert '"href":"/runs/fallen"' in said
    assert '"href":"/incidents/31"' in said
    assert "data:image/svg+xml" in said
    for words in ('"collapse"', '"18 of 144"', '"critical: Fell"', '"0.125"', '"2 h 0 min"', '"gpu-7"', '"bf16"'):
        assert words in said
    assert '"data-do":"ack"' in said
    assert '"data-incident":"31"' in said
    acked = run(**{**FALLEN, "worst_incident": {**WORST, "acked": True}, "unacked": []})
    assert "critical, acknowledged: Fell" in shown(acked)
    assert "data-do" not in shown(acked)


def test_a_loss_that_is_not_finite_is_no_missing_one() -> None:
    assert "not finite" in shown(run(loss={"name": "loss", "tags": {}, "last": None}))
    assert "not finite" not in shown(run(loss=None))


def test_runs_that_need_attention_stand_above_the_others() -> None:
    said = shown(run(), attention=run_list(FALLEN, following="c~3"))
    assert said.index('"Needs attention"') < said.index('"fallen"') < said.index('"All others"') < said.index('"run"]')
    assert '"over 1"' in said
    assert '"/?attention=1"' in said
    for attention in (None, run_list()):
        assert not {"Needs attention", "All others"} & set(re.findall(r'"([^"]*)"', shown(run(), attention=attention)))


def test_ended_runs_without_a_step_are_folded_away() -> None:
    empty = [run(run=f"empty-{number}", state="finished", step=None) for number in range(3)]
    said = shown(*empty, run(run="begins", step=None))
    assert '["summary",{},"3 runs without a step"]' in said
    assert said.index("begins") < said.index('["details"') < said.index("empty-0")
    assert '["details"' not in shown(run())
    assert "There is no" not in shown(*empty)


def test_groups_have_a_heading_with_their_count() -> None:
    runs = [
        run(run="a", tags=["lr", "finished"]),
        run(run="b", tags=["finished"], host=None),
        run(run="c", state="crashed"),
    ]
    names = {by: {name: len(members) for name, members in runs_page.groups(runs, by).items()} for by in GROUPS}
    assert names == {
        "state": {"live": 2, "crashed": 1},
        "tag": {"lr": 1, "finished": 2, "no tag": 1},
        "host": {"gpu-7": 2, "unknown host": 1},
    }
    assert list(names["tag"]) == ["finished", "lr", "no tag"], "by name, and not as a state"
    said = shown(*runs, listing=Listing(group="tag"))
    assert '["b",{},"finished"],["span",{"class":"dim"},"2"]' in said


def test_the_heads_lead_to_their_order_and_say_which_it_is() -> None:
    said = shown(run(), listing=Listing(text="lr", sort="loss", after="x"))
    assert '"href":"/?text=lr&sort=loss&reverse=1"' in said
    assert '"href":"/?text=lr&sort=step"' in said
    assert said.count("aria-sort") == 1
    assert '"aria-sort":"ascending"' in said
    assert '"aria-sort":"descending"' in shown(run(), listing=Listing(sort="loss", is_reverse=True))
    assert '"aria-sort":"descending"' in shown(run())


def test_the_pages_of_the_list_lead_to_each_other() -> None:
    listed = Listing(text="lr", sort="name", after="a~1")
    said = shown(run(), listing=listed, following="b~2")
    assert '"/?text=lr&sort=name&after=b~2"' in said
    assert '"/?text=lr&sort=name"' in said
    assert "Next 50" not in shown(run())


def test_notes_and_tags_are_in_row_and_page() -> None:
    labelled = run(note="lr too\nhigh", tags=["sdxl"], archived=True, aliases=["before"])
    said = shown(labelled)
    assert '"/?text=sdxl"' in said
    assert '"lr too"' in said, "the first line of a note is enough"
    [card] = notes.cards(labelled)
    for words in ('"Note"', '"lr too"', '"high"', '"Tags: sdxl"', '"Was called before"', '"In the archive"'):
        assert words in text_of(card)
    assert notes.cards(run()) == []


def test_the_list_offers_each_state_of_the_collector_with_an_icon():
    assert set(STATES) == set(elements.RUN_STATES) == set(get_args(RunState))
    assert "detached" in STATES
