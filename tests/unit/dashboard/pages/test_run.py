"""Verdict, order of layers and incident cards: what a page says about a run."""

import base64
import json
import re
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradcanary.cli import incidents as terminal_incidents
from gradcanary_dashboard.address.run import View
from gradcanary_dashboard.address.runs import MAX_TEXT, SORTS, STATES, Listing, parse
from gradcanary_dashboard.analysis import layers
from gradcanary_dashboard.analysis.stats import STATS
from gradcanary_dashboard.analysis.verdict import Verdict, of_layer, verdict
from gradcanary_dashboard.collector import endpoints as failing_endpoints
from gradcanary_dashboard.collector.client import Answer
from gradcanary_dashboard.collector.run import RunData
from gradcanary_dashboard.components import banners, elements, figure_controls, incident_card, notes
from gradcanary_dashboard.figures.sparkline import sparkline
from gradcanary_dashboard.pages import first_start
from gradcanary_dashboard.pages import layer as layer_page
from gradcanary_dashboard.pages import run as run_page
from gradcanary_dashboard.pages import runs as runs_page
from gradcanary_dashboard.pages.registry import PAGES, Page
from gradcanary_dashboard.text import numbers
from gradcanary_server.api.models import RunState
from gradcanary_server.rules.types import Resolution
from support.api_answers import column, heatmap_answer, incident, layer, run, session, text_of

NONE_OPEN = {"incidents": [], "next": None}


def test_resolutions_have_the_same_words_on_pages_and_at_a_terminal() -> None:
    known = {*get_args(Resolution), "run_finished", "run_deleted"}
    assert numbers.RESOLUTIONS.keys() == known
    assert terminal_incidents.RESOLUTIONS == numbers.RESOLUTIONS


def test_an_open_incident_speaks_first() -> None:
    said = verdict(run(open_incidents=[31], worst="critical", headline="1 of 2 layers collapsed at step 31"))
    assert said == Verdict("critical", "1 of 2 layers collapsed at step 31")


def test_the_end_of_a_run_is_no_recovery() -> None:
    said = verdict(run(state="finished", severity_at_end="critical", headline="all gradients fell together at step 31"))
    assert said == Verdict("critical", "All gradients fell together at step 31")


def test_a_recovered_run_is_quiet() -> None:
    said = verdict(run(below_threshold=1))
    assert said == Verdict("quiet", "No open incident in 2 layers, 1 of them low")


def test_a_crash_is_not_quiet() -> None:
    assert verdict(run(state="crashed")).tone == "warning"


def test_a_crash_is_said_beside_what_the_run_ended_on() -> None:
    noted = verdict(
        run(state="crashed", severity_at_end="information", headline="all 48 layers summed in low precision")
    )
    assert noted == Verdict("warning", "The training crashed at step 99; all 48 layers summed in low precision")
    fell = verdict(run(state="crashed", severity_at_end="critical", headline="1 of 2 layers collapsed at step 31"))
    assert fell == Verdict("critical", "1 of 2 layers collapsed at step 31; the training crashed at step 99")
    early = verdict(run(state="crashed", step=None, severity_at_end="warning", headline="nothing heard"))
    assert early == Verdict("warning", "Nothing heard; the training crashed")


def test_incident_closed_by_the_end_of_a_run_is_not_called_resolved() -> None:
    ended = incident(state="resolved", resolution="run_finished", resolved_step=99)
    assert incident_card.tally([ended, incident(state="open", resolution=None)]) == "1 open, 1 without recovery"
    assert "run ended at step 99" in json.dumps(incident_card.panel([ended], View()), default=str)


def test_a_run_that_was_missed_and_then_ended_is_not_unrecovered() -> None:
    missed = incident(rule="silent", state="resolved", resolution="run_finished", resolved_step=99)
    assert incident_card.tally([missed]) == "1 resolved"
    assert "run ended at step 99" in text_of(incident_card.card(missed, View()))


def test_a_run_without_a_step_waits() -> None:
    assert verdict(run(step=None, layers=0)).tone == "waiting"


@pytest.mark.parametrize("layers", [0, 2])
def test_a_run_that_ended_without_a_step_does_not_wait(layers: int) -> None:
    ended = verdict(run(state="finished", step=None, layers=layers))
    assert ended == Verdict("information", "The training finished without a step")
    assert verdict(run(state="crashed", step=None, layers=layers)) == Verdict("warning", "The training crashed")
    for state in ("live", "stale", "silent"):
        assert verdict(run(state=state, step=None, layers=layers)).tone == "waiting"


def test_layers_and_launches_wait_for_a_step_only_while_the_run_lives() -> None:
    unmeasured = layer(0, absmax=None, norm=None, step=None, state=None)
    assert of_layer(unmeasured, [], has_ended=True) == Verdict("information", "Nothing was measured of this layer")
    assert of_layer(unmeasured, [], has_ended=False).tone == "waiting"
    for state, words in (("finished", "no step"), ("crashed", "no step"), ("live", "no step yet")):
        cards = text_of(notes.cards(run(sessions=[session(1, None, None, state=state)])))
        assert f"Launch 1, {state}: {words};" in cards


@pytest.mark.parametrize(("state", "words"), [("finished", "No layer."), ("live", "No layer yet.")])
def test_page_waits_for_layers_only_while_the_run_lives(state: str, words: str) -> None:
    empty = heatmap_answer(rows=0, columns=0)
    told = run(state=state, step=None, layers=0, framework=None)
    contents = run_page.fill(RunData(told, [], None, empty, None, None, None, None, [], "", clips=False), View())
    assert contents["trend"]["layout"]["annotations"][0]["text"] == words
    assert words in text_of(contents["accumulators"])


def test_the_worst_layers_come_first() -> None:
    listed = [
        layer(0),
        layer(1, absmax=None, norm=None, state="no_gradient"),
        layer(2, absmax=1e-5, below_threshold=True),
        layer(3, absmax=None, state="nonfinite"),
        layer(4, absmax=1e-6, rules={"collapse": "suspect"}),
        layer(5, absmax=1e-2, rules={"collapse": "firing"}),
        layer(6, absmax=0.0, state="zero"),
    ]
    assert [one["layer"] for one in layers.worst_first(listed)] == [5, 4, 3, 2, 6, 0, 1]


@given(st.permutations(range(6)))
def test_the_order_does_not_depend_on_the_answer(order: list[int]) -> None:
    listed = [layer(number, absmax=10.0 ** -(number % 3)) for number in order]
    assert [one["layer"] for one in layers.worst_first(listed)] == [2, 5, 1, 4, 0, 3]


def test_the_url_names_the_layer() -> None:
    listed = [layer(0), layer(1, rules={"collapse": "firing"}), layer(2)]
    chosen = [
        layers.choose(listed, "blocks.2.lora_A", 1, 0),
        layers.choose(listed, "2", 1, 0),
        layers.choose(listed, "no such layer", 0, 2),
        layers.choose(listed, None, None, None),
        layers.choose([layer(0, absmax=1e-3), layer(1, absmax=1e-4)], None, None, 0),
        layers.choose(listed, None, None, 0),
    ]
    assert [one and one["layer"] for one in chosen] == [2, 2, 0, 1, 0, 1]
    assert layers.choose([], "x", None, None) is None


def test_a_card_says_what_happened_and_who_was_told() -> None:
    full = incident(
        layers=[{"layer": 1, "name": "blocks.1.lora_A", "since_step": 31, "baseline": 3.1e-3, "value": 6.1e-7}],
        likely_cause={"code": "c", "text": "Its partner went to zero.", "evidence": ["lr changed"], "incidents": []},
        fix={"framework": "peft", "text": "Check the schedule.", "code": "print(1)"},
        deliveries=[
            {
                "endpoint": 1,
                "name": "on call",
                "version": 1,
                "kind": "opened",
                "state": "pending",
                "attempts": [{"at": "", "status": 503, "ms": 1, "error": None}],
            }
        ],
    )
    said = text_of(incident_card.card(full, View()))
    for words in (
        "since step 31",
        "opened at step 50",
        "Its partner went to zero.",
        "lr changed",
        "Check the schedule.",
    ):
        assert words in said
    assert "pending; last attempt: 503" in said
    assert "0.0031" in said


def endpoint(**changes: object) -> dict[str, object]:
    made = {
        "id": 3,
        "name": "",
        "url": "https://hook.example/x",
        "state": "enabled",
        "since": "2026-11-20T10:00:00.000Z",
    }
    told = dict.fromkeys(("reason", "disabled_by", "failing_since", "last_failure", "last_error"))
    return {**made, **told, **changes}


def test_unreachable_endpoints_are_listed_above_the_runs() -> None:
    given_up = {"state": "disabled", "reason": "answered 410", "disabled_by": "failures"}
    failing = {"failing_since": "2026-11-20T10:00:00.000Z", "last_failure": "2026-11-20T10:11:00.000Z"}
    shown = [endpoint(**given_up), endpoint(**failing, last_error="answered 500", name="pager")]
    hidden = [
        endpoint(),
        endpoint(state="disabled", reason="disabled over HTTP", disabled_by="api"),
        endpoint(**{**failing, "last_failure": "2026-11-20T10:01:00.000Z"}),
    ]
    silent = failing_endpoints.load(Endpoints([*shown, *hidden]))
    assert silent == shown
    for runs in ([], [run()]):
        said = text_of(runs_page.fill(runs, NONE_OPEN, Listing(), silent)["runs"])
        assert "Messages do not reach 2 endpoints" in said
        assert (
            "is disabled since 2026-11-20 10:00 UTC: answered 410. Enable it: gradcanary endpoints set 3 --en" in said
        )
        assert "pager https://hook.example/x fails since 2026-11-20 10:00 UTC: answered 500" in said
    versions = {failing_endpoints.version(Endpoints(each)) for each in (hidden, shown, shown[:1])}
    assert len(versions) == 3
    assert banners.failing_endpoints([]) == []


class Endpoints:
    """As much of a collector as is asked for its endpoints."""

    def __init__(self, endpoints: list[dict[str, object]]) -> None:
        self._endpoints = endpoints

    def endpoints(self) -> Answer:
        return Answer({"endpoints": self._endpoints}, "")


def test_a_card_says_who_knows_and_until_when_nobody_is_told() -> None:
    acked = {"at": "2026-11-20T02:00:00.000Z", "by": "ada", "note": "restarting"}
    silenced = {"until": "2026-11-20T10:00:00.000Z", "members": 1, "firing": 1}
    said = text_of(incident_card.card(incident(acked=acked, silenced=silenced), View()))
    assert "acked by ada: restarting" in said
    assert '"silenced, ends "' in said
    assert silenced["until"] in said
    some = text_of(incident_card.card(incident(silenced={**silenced, "firing": 18}), View()))
    assert "1 of 18 layers silenced, ends " in some
    assert "silenced" not in text_of(incident_card.card(incident(), View()))


def test_a_listed_incident_without_details_is_a_card_too() -> None:
    said = text_of(incident_card.panel([incident(state="resolved", resolution="layer_gone", resolved_step=80)], View()))
    assert "layer gone" in said
    assert "resolved at step 80" in said


def first(url: str = "http://127.0.0.1:4711", *, asks_token: bool = False) -> str:
    return text_of(first_start.page(url, asks_token=asks_token))


def test_the_empty_state_names_the_collector_that_was_asked() -> None:
    said = first()
    assert "export GRADCANARY_URL=http://127.0.0.1:4711" in said
    assert "gradcanary run train.py" in said
    assert "gradcanary attach PID --url http://127.0.0.1:4711" in said
    assert "no agent seen" in said
    assert "GRADCANARY_TOKEN" not in said
    said = first("https://here.example", asks_token=True)
    assert "export GRADCANARY_URL=https://here.example GRADCANARY_TOKEN=gc_ingest_..." in said
    assert "gradcanary token create --scope ingest" in said


def test_the_empty_state_has_the_line_of_the_demo_to_copy() -> None:
    assert "\\ngradcanary demo --url http://127.0.0.1:4711" in first()
    said = first("https://here.example", asks_token=True)
    assert "\\nGRADCANARY_TOKEN=gc_ingest_... gradcanary demo --url https://here.example" in said


def test_the_filter_says_when_nothing_matches() -> None:
    said = text_of(runs_page.fill([], NONE_OPEN, Listing(text="<img src=x>", state="live"))["runs"])
    assert "There is no live run" in said
    assert '"<img src=x>"' in said
    assert '"/?text=%3Cimg+src%3Dx%3E&state=live&archived=1"' in said


def test_more_open_incidents_than_one_answer_holds() -> None:
    opened = [incident(number) for number in range(100, 8, -1)] + [incident(8, severity="information")]
    for following, said in ((None, ("92 open incidents", "and 87 more")), (8, ("over 92 open", "and all others"))):
        shown = text_of(runs_page.fill([run()], {"incidents": opened, "next": following}, Listing())["runs"])
        assert all(words in shown for words in said)


def test_a_run_is_one_link() -> None:
    said = text_of(runs_page.fill([run(sparkline=column(np.full(64, -3.0), "float32"))], NONE_OPEN, Listing())["runs"])
    assert '"href": "/runs/run"' in said
    assert "data:image/svg+xml" in said


def test_the_pages_of_the_list_lead_to_each_other() -> None:
    listed = Listing(text="lr", sort="name", after="a~1")
    said = text_of(runs_page.fill([run()], NONE_OPEN, listed, following="b~2")["runs"])
    assert '"/?text=lr&sort=name&after=b~2"' in said
    assert '"/?text=lr&sort=name"' in said
    assert "Next 25" not in text_of(runs_page.fill([run()], NONE_OPEN, Listing())["runs"])


def test_a_card_tells_the_last_step_from_when_it_was_heard_of() -> None:
    said = text_of(runs_page.fill([run()], NONE_OPEN, Listing())["runs"])
    assert "2026-11-20T09:59:58Z" in said
    assert "heard of" not in said, "of a live run that is a heartbeat ago"
    assert "heard of" in text_of(runs_page.fill([run(state="silent")], NONE_OPEN, Listing())["runs"])


WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=MAX_TEXT)


@given(WORDS, st.sampled_from([None, *STATES]), st.sampled_from(list(SORTS)), st.booleans(), WORDS)
def test_a_listing_is_what_its_address_says(
    text: str, state: str | None, sort: str, archived: bool, after: str
) -> None:
    listed = Listing(text, state, sort, archived, after or None)
    assert parse(listed.url(after=listed.after).removeprefix("/")) == listed
    assert listed.question().get("after") == (after or None)


@pytest.mark.parametrize("search", ["?state=ended&sort=x&archived=yes", "?&&=", "?text=" + "x" * 200])
def test_unreadable_listing_parameters_count_as_absent(search: str) -> None:
    assert parse(search) == Listing("x" * MAX_TEXT if "text" in search else "")


def test_notes_and_tags_are_on_card_and_page() -> None:
    labelled = run(note="lr too\nhigh", tags=["sdxl"], archived=True, aliases=["before"])
    shown = text_of(runs_page.fill([labelled], NONE_OPEN, Listing())["runs"])
    assert '"/?text=sdxl"' in shown
    assert '"lr too"' in shown, "the first line of a note is enough"
    [card] = notes.cards(labelled)
    for words in ('"Note"', '"lr too"', '"high"', '"Tags: sdxl"', '"Was called before"', '"In the archive"'):
        assert words in text_of(card)
    assert notes.cards(run()) == []


LOG10 = st.floats(-45, 39, width=32) | st.sampled_from([float("nan"), float("inf"), float("-inf")])


@given(st.lists(LOG10, min_size=1, max_size=64))
def test_a_sparkline_holds_no_word_of_python(values: list[float]) -> None:
    source = sparkline(np.array(values, np.float32), "#123456")
    assert source is None or not re.search("nan|inf", base64.b64decode(source.split(",")[1]).decode())


PLACE = {"run": "run", "layer": "layer", "incident": "31", "endpoint": "3"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_frame_has_a_heading_and_all_that_is_filled_and_asked(page: Page) -> None:
    said = text_of(page.frame(PLACE, {}))
    wanted = (*page.slots, f"{page.name}-heart")
    assert [slot for slot in wanted if f'"id": "{slot}"' not in said] == []
    assert said.count('"type": "H1"') == 1


@pytest.mark.parametrize("missing", [run_page.unknown("run"), layer_page.unknown("run", "layer")])
def test_a_page_of_something_unknown_has_a_heading(missing: object) -> None:
    assert text_of(missing).count('"type": "H1"') == 1


def test_a_layer_that_fires_tells_since_when_and_how_far_it_fell() -> None:
    member = {"layer": 1, "name": "blocks.1.lora_A", "since_step": 728, "baseline": 9.9e-4, "value": 4e-7}
    said = of_layer(layer(1, absmax=2.2e-7, rules={"collapse": "firing"}), [incident(layers=[member])])
    assert said == Verdict("critical", "Collapse since step 728", ": from 9.9e-4 to 2.2e-7")
    recovering = of_layer(layer(1, rules={"nonfinite": "recovering"}), [])
    assert recovering == Verdict("critical", "Nonfinite, recovering")


def test_a_layer_without_a_firing_rule_says_what_it_is() -> None:
    tones = {
        "warning": layer(0, rules={"collapse": "suspect"}),
        "waiting": layer(0, step=None, state=None),
        "information": layer(0, below_threshold=True),
        "quiet": layer(0),
    }
    assert {tone: of_layer(one, []).tone for tone, one in tones.items()} == {tone: tone for tone in tones}
    assert "not finite at step 99" in of_layer(layer(0, state="nonfinite"), []).text


def test_siblings_differ_in_their_numbers_only() -> None:
    listed = [layer(number) for number in range(5)]
    listed += [layer(5, name="blocks.5.lora_B"), layer(6, shape=[8, 32])]
    assert [one["layer"] for one in layers.siblings(listed, listed[2])] == [0, 1, 2, 3, 4]
    assert layers.siblings(listed[2:], listed[2]) == []


@given(st.integers(1, 450), st.integers(0, 449))
def test_nearest_siblings_are_shown(count: int, place: int) -> None:
    listed = [layer(number) for number in range(count)]
    mine = listed[place % count]
    shown = layers.around(listed, mine)
    assert mine in shown
    assert len(shown) == min(count, layers.MAX_ROWS)
    assert shown == listed[shown[0]["layer"] :][: len(shown)]


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


def test_the_list_offers_each_state_of_the_collector_with_an_icon():
    assert set(STATES) == set(elements.RUN_STATES) == set(get_args(RunState))
    assert "detached" in STATES
