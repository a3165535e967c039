"""The pages of incidents: what is asked, what is said, and what a form sends."""

import json
import string
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from dash import dcc, html
from hypothesis import given
from hypothesis import strategies as st

from gradcanary_dashboard.address import incidents as incidents_address
from gradcanary_dashboard.address.incidents import Filter
from gradcanary_dashboard.address.run import View, parse
from gradcanary_dashboard.analysis import timeline
from gradcanary_dashboard.collector.incidents import Chapter
from gradcanary_dashboard.components import member_table, silence_form, static
from gradcanary_dashboard.pages import incident as incident_page
from gradcanary_dashboard.pages import incidents as incidents_page
from gradcanary_dashboard.pages import registry
from gradcanary_dashboard.text import numbers
from gradcanary_server.matchers import Matcher
from support.api_answers import incident

URL = "http://collector:8787"
NOW = datetime(2026, 11, 22, 12, 0, tzinfo=timezone.utc)
HOSTILE = "</script><img src=x onerror=alert(1)>"
TEXTS = st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1, max_size=40)


def member(number: int, **changes: Any) -> dict[str, Any]:
    plain = {"layer": number, "name": f"blocks.{number}.lora_A", "since_step": 340, "until_step": None}
    values = {"value": 6.1e-7, "baseline": 3.1e-3, "siblings": None, "evidence": "fall", "rank": None}
    return {**plain, **values, **changes}


def delivery(minute: int, **changes: Any) -> dict[str, Any]:
    enqueued = f"2026-11-20T10:{minute:02}:00.000Z"
    tried = {"at": enqueued, "status": 200, "ms": 12, "error": None}
    told = {"endpoint": 1, "name": "on call", "version": 1, "kind": "opened", "state": "delivered"}
    return {**told, "enqueued": enqueued, "delivered": enqueued, "next_attempt": None, "attempts": [tried], **changes}


def full(**changes: Any) -> dict[str, Any]:
    cause = {"code": "c", "text": "Its partner went to zero.", "evidence": ["lr changed"], "incidents": [30]}
    fix = {"framework": "peft", "text": "Check the schedule.", "code": "print(1)"}
    more = {"layers": [member(0), member(1)], "deliveries": [delivery(1)], "likely_cause": cause, "fix": fix}
    return incident(**{**more, "opened_step": 359, "since_step": 340, **changes})


@given(
    st.builds(
        Filter,
        state=st.sampled_from(list(incidents_address.STATES)),
        severity=st.sampled_from(list(incidents_address.SEVERITIES)),
        rule=st.text(string.ascii_lowercase + "_", max_size=20),
        run=TEXTS.map(str.strip),
    ),
    st.none() | st.text(string.ascii_letters + string.digits + "-_", min_size=1),
)
def test_a_filter_is_its_address(chosen: Filter, place: str | None) -> None:
    chosen = replace(chosen, before=place)
    path, _, search = incidents_address.url(chosen).partition("?")
    assert incidents_address.parse(search) == chosen
    assert registry.find(path) == (registry.INCIDENTS, {})


@pytest.mark.parametrize("search", [None, "?", "?state=x&severity=y&before="])
def test_unreadable_filters_are_ignored(search: str | None) -> None:
    chosen = incidents_address.parse(search)
    assert chosen == Filter(state=chosen.state)


@pytest.mark.parametrize("path", ["/incidents/31", "/incidents/31/"])
def test_an_incident_has_an_address(path: str) -> None:
    assert registry.find(path) == (registry.INCIDENT, {"incident": "31"})
    assert not registry.is_page("/incidents/x")


@given(TEXTS.filter(lambda text: text.strip() != ""), TEXTS)
def test_a_beginning_covers_the_names_that_begin_so(prefix: str, rest: str) -> None:
    expression = silence_form.match("prefix", prefix)
    assert expression is not None
    if len(expression) > 200:
        return
    found = Matcher(expression).found_in
    assert found(prefix.strip() + rest)
    assert found(rest) == rest.startswith(prefix.strip())


def test_silence_form_makes_a_layer_expression() -> None:
    assert silence_form.match("all", "x") is None
    assert silence_form.match("regex", " lora_A|mlp ") == "lora_A|mlp"
    for layers in ("prefix", "regex"):
        with pytest.raises(ValueError, match="Say which layers"):
            silence_form.match(layers, "  ")
    names = ["blocks.4.q", "blocks.4.k", "head", "blocks.10.q"]
    assert silence_form.prefixes(names) == ["blocks.4.", "blocks.10."]


def test_until_when_nobody_is_told() -> None:
    for (span, own), ends in {
        ("8h", None): NOW + timedelta(hours=8),
        ("own", "30m"): NOW + timedelta(minutes=30),
        ("own", " 3 d "): NOW + timedelta(days=3),
        ("own", "2030-01-31 09:00"): datetime(2030, 1, 31, 9, tzinfo=timezone.utc),
        ("own", "2030-01-31T09:00:00+02:00"): datetime(2030, 1, 31, 7, tzinfo=timezone.utc),
    }.items():
        assert datetime.fromisoformat(silence_form.until(span, own, NOW)) == ends
    for wrong in (None, "", "tomorrow", "8x", "2030-13-01"):
        with pytest.raises(ValueError, match="30m, 8h or 3d"):
            silence_form.until("own", wrong, NOW)


def test_the_story_of_an_incident_is_told_in_its_order() -> None:
    tried = [
        {"at": "2026-11-20T10:01:00.000Z", "status": None, "ms": 9, "error": "refused"},
        delivery(2)["attempts"][0],
    ]
    told = full(
        layers=[member(0), member(1, since_step=380), member(2, since_step=400)],
        acked={"at": "2026-11-20T10:02:30.000Z", "by": "ada", "note": "restarting"},
        reopened=2,
        reopened_at="2026-11-20T10:04:00.000Z",
        resolved="2026-11-20T10:06:00.000Z",
        resolved_step=900,
        resolution="recovered",
        deliveries=[
            delivery(1, attempts=tried),
            delivery(7, kind="resolved", state="expired", name="https://h.example/x"),
        ],
    )
    story = timeline.entries(told)
    assert [entry.words for entry in story] == [
        "Opened at step 359; the first sign was step 340",
        "Grew by 2 layers, since steps 380 to 400",
        "on call: opened, delivered",
        "Acked by ada: restarting",
        "Opened again, for the 2nd time",
        "Over at step 900: recovered",
        "h.example: resolved, expired: not delivered in time",
    ]
    said = str(incident_page.fill(told)["incident-story"])
    assert "2 attempts, the last: 200" in said
    assert "no answer after 9 ms: refused" in said


def test_a_long_story_keeps_its_beginning_and_its_end() -> None:
    many = full(deliveries=[delivery(minute, kind="reminder") for minute in range(60)] * 2)
    shown, left_out = timeline.shortened(timeline.entries(many))
    assert (len(shown), left_out) == (timeline.SHOWN, 121 - timeline.SHOWN)
    assert shown[0].words.startswith("Opened")
    assert "and 61 more, and then" in incident_page.fill(many)["incident-story"]


def test_the_page_of_an_incident_leads_to_the_steps_in_which_it_began() -> None:
    told = full(opened_step=12_359, since_step=12_259)
    assert incident_page.steps_around(told) == View(from_step=11_759, to_step=12_859, incident=31)
    for there, first, last in (
        ((0, 12_400), 11_759, 12_400),
        ((12_000, 20_000), 12_000, 12_859),
        (None, 11_759, 12_859),
    ):
        expected = View(from_step=first, to_step=last, incident=31)
        assert incident_page.steps_around(told, there) == expected, "no step that the run does not have"
    filled = incident_page.fill(told)
    [row, _] = json.loads(filled["members"])
    href = row["href"]
    assert href.startswith("/runs/run/layers/blocks.0.lora_A?")
    assert parse(href.partition("?")[2]) == View(from_step=11_759, to_step=12_859)
    assert (row["name"], row["tone"]) == ("blocks.0.lora_A", "firing")
    assert row["cells"] == ["340", "firing", "0.0031", "6.1e-7", numbers.NOTHING, "fall", numbers.NOTHING]
    assert filled["members-tally"] == "2 firing"
    for words in (
        "Its partner went to zero.",
        "lr changed",
        '"/incidents/30"',
        "Fix, for peft",
        '"data-copy":"print(1)"',
    ):
        assert words in filled["incident-cause"], words


def test_incident_of_a_whole_run_has_no_layers() -> None:
    silent = full(layers=[member(0, layer=None, name="(whole run)")], counts={"firing": 0, "ever": 0, "layers": 2})
    filled = incident_page.fill(silent)
    assert json.loads(filled["members"]) == []
    assert "run as a whole" in filled["members-tally"]
    assert member_table.tally(full(layers=[member(0), member(1, until_step=400)])) == "1 firing, 1 over"


def test_members_of_an_ended_run_are_not_firing() -> None:
    ended = full(state="resolved", resolution="run_finished", layers=[member(0), member(1, until_step=400)])
    [first, second] = json.loads(member_table.rows(ended, View()))
    assert (first["cells"][1], second["cells"][1]) == ("not recovered", "400")
    assert member_table.tally(ended) == "1 not recovered, 1 over"


def test_a_row_says_how_bad_where_since_when_and_who_knows() -> None:
    told = [
        {"endpoint": 1, "name": "on call", "kind": "opened", "state": "delivered"},
        {"endpoint": 2, "name": "https://h.example/x", "kind": "opened", "state": "delivered"},
        {"endpoint": 3, "name": "", "kind": "opened", "state": "pending"},
    ]
    acked = {"at": "2026-11-20T02:00:00.000Z", "by": "ada", "note": ""}
    silenced = {"until": "2026-11-20T10:00:00.000Z", "members": 1, "firing": 2, "silences": [7]}
    said = static.drawn(incidents_page.row(incident(last_deliveries=told, acked=acked, silenced=silenced)))
    for words in (
        "critical", "#31 collapse", '"/incidents/31"', '"/runs/run?incident=31"', "1 / 2", "since step 31",
        "acked by ada", "1 of 2 layers silenced, ends",
        "on call, h.example: opened, delivered; webhook: opened, pending",
        '"data-do":"ack"', '"data-do":"silence"', '"data-do":"unsilence"',
    ):  # fmt: skip
        assert words in said, words
    over = static.drawn(incidents_page.row(incident(state="resolved", resolution="recovered", resolved="2026-11-20T")))
    assert "data-do" not in over
    assert "nobody was told" in over


def test_pages_of_the_history_follow_each_other() -> None:
    listed = [incident(number, state="resolved", resolution="recovered") for number in (9, 8)]
    chosen = Filter(severity="critical")
    said = incidents_page.fill([Chapter("resolved", listed, "Wzhd")], chosen, ["scale_drop"], URL)
    assert '"/incidents?state=resolved&severity=critical&before=Wzhd"' in said["incidents-listed"]
    assert "the newest 2" in said["incidents-listed"]
    opened = incidents_page.fill([Chapter("open", listed, "WzIsMSwxLDld")], Filter(), [], URL)["incidents-listed"]
    assert "the worst 2" in opened
    assert '"/incidents?state=open&before=WzIsMSwxLDld"' in opened
    later = incidents_page.fill([Chapter("resolved", listed, None)], Filter(before="Wzhd"), [], URL)["incidents-listed"]
    assert '"/incidents"' in later
    assert "before=" not in later
    for chosen, words in (
        (Filter(), "No incident so far"),
        (Filter(run="x"), "See all"),
        (Filter(before="Wzhd"), "See the first"),
    ):
        assert words in incidents_page.fill([Chapter("open", [], None)], chosen, [], URL)["incidents-listed"]


@given(st.lists(TEXTS, max_size=4))
def test_drawn_page_is_text_and_attributes(texts: list[str]) -> None:
    drawn = static.drawn([html.P([text, html.B(text)], title=text, className="x", hidden=True) for text in texts])
    paragraphs = [["p", {"title": text, "class": "x", "hidden": ""}, text, ["b", {}, text]] for text in texts]
    assert json.loads(drawn) == paragraphs
    assert "<" not in drawn or any("<" in text for text in texts)


def test_a_link_within_the_pages_leads_on_without_loading() -> None:
    drawn = json.loads(static.drawn(dcc.Link(HOSTILE, href="/incidents/1", className="do")))
    assert drawn == [["a", {"href": "/incidents/1", "class": "do", "data-way": ""}, HOSTILE]]
