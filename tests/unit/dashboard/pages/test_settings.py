"""Settings in words: endpoints, silences, sizes, rules and their trials; and who sees what of them."""

from collections.abc import Sequence
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradcanary_dashboard.actions import run
from gradcanary_dashboard.collector.client import Answer, Collector
from gradcanary_dashboard.collector.errors import RefusedError
from gradcanary_dashboard.components import endpoint_text, silence_form
from gradcanary_dashboard.pages import registry
from gradcanary_dashboard.pages.settings import endpoints as endpoint_pages
from gradcanary_dashboard.pages.settings import frame as settings_frame
from gradcanary_dashboard.pages.settings import retention as retention_page
from gradcanary_dashboard.pages.settings import rules as rules_page
from gradcanary_dashboard.pages.settings import silences as silences_page
from gradcanary_dashboard.pages.settings import tokens as tokens_page
from support.api_answers import text_of

URL = "http://collector:8787"
AT, LATER = "2026-11-20T10:00:00Z", "2026-11-20T11:00:00Z"


def endpoint(**changes: Any) -> dict[str, Any]:
    return {
        "id": 3,
        "kind": "webhook",
        "origin": "api",
        "name": "on call",
        "url": "https://hooks.example/x",
        "min_severity": "warning",
        "sends_ended": False,
        "state": "enabled",
        "since": AT,
        "reason": None,
        "disabled_by": None,
        "failing_since": None,
        "last_success": None,
        "last_failure": None,
        "last_error": None,
        "pending": 0,
        **changes,
    }


def known(**changes: Any) -> dict[str, str]:
    found = endpoint_text.facts(endpoint(**changes))
    return {name: text_of(value) for name, value in found if value is not None}


@pytest.mark.parametrize(
    ("changes", "icon", "word"),
    [
        ({}, "check", "enabled"),
        ({"failing_since": AT}, "warning", "failing"),
        ({"state": "disabled", "disabled_by": "api", "failing_since": AT}, "dots", "disabled"),
        ({"state": "disabled", "disabled_by": "failures"}, "critical", "disabled"),
    ],
)
def test_the_state_of_an_endpoint_has_an_icon_and_a_word(changes: dict[str, Any], icon: str, word: str) -> None:
    said = text_of(endpoint_text.state(endpoint(**changes)))
    assert f"icon-{icon}" in said
    assert f'"{word}"' in said


def test_an_endpoint_says_how_it_goes() -> None:
    assert known()["Hears of"] == '"warning and above"'
    assert known(min_severity="critical")["Hears of"] == '"critical"'
    assert known()["Last delivery"] == '"none so far"'
    failed = {"last_failure": LATER, "last_error": "answered 500"}
    assert "answered 500" in known(**failed, last_success=AT)["Last error"]
    assert "Last error" not in known(last_failure=AT, last_error="answered 500", last_success=LATER)
    assert "5 days" in known(state="disabled", reason="5 days of failures")["Disabled"]
    assert known(pending=2)["Pending"] == '"2 messages"'


def test_configured_endpoints_name_their_source() -> None:
    assert "From" not in known()
    assert "--webhook" in known(origin="operator")["From"]
    of_apprise = known(origin="operator", kind="apprise", url=None)
    assert "--notify" in of_apprise["From"]
    assert "configuration only" in of_apprise["Address"]
    assert "Address" not in known(name=""), "its address is its title"


def test_readers_have_disabled_buttons() -> None:
    pages: list[tuple[str, dict[str, Any], Any]] = [
        ("endpoints", endpoint_pages.fill([endpoint()], URL, may=False), endpoint_pages.frame),
        ("silences", silences_page.fill([], None, [], [], URL, may=False, is_signed_in=False), silences_page.frame),
        ("tokens", tokens_page.fill(None), tokens_page.frame),
    ]
    for page, contents, frame in pages:
        (fieldset,) = [each for each in frame({}, contents) if getattr(each, "id", "") == f"{page}-may"]
        assert fieldset.disabled is True
        assert settings_frame.READ_ONLY in text_of(frame({}, contents))
    assert endpoint_pages.fill([], URL, may=True)["endpoints-may"] is False


def test_an_attempt_tells_how_it_went() -> None:
    told = {"is_delivered": True, "status": 202, "ms": 1200, "error": None}
    assert "It arrived: status 202, 1,200 ms." in text_of(endpoint_text.outcome(told))
    failed = {"is_delivered": False, "status": None, "ms": 3, "error": "no route"}
    said = text_of(endpoint_text.outcome(failed))
    assert "It did not arrive: no route (3 ms)." in said
    assert "tone-critical" in said


@given(st.lists(st.text(st.characters(exclude_characters=","), min_size=1).filter(lambda tag: tag == tag.strip())))
def test_tags_are_read_as_they_are_written(tags: list[str]) -> None:
    assert run.tags_of(", ".join(tags)) == tags
    assert run.tags_of(f" ,{' ,, '.join(tags)}, ") == tags


def test_before_when_no_sample_goes_is_said_with_how_long_they_are_kept() -> None:
    empty = {"bytes": 0, "counted": AT, "runs": [], "others": {"runs": 0, "bytes": 0}}
    kept = retention_page.fill({"raw_days": 30.0, "raw_until": None, **empty})["storage-facts"]
    waits = retention_page.fill({"raw_days": 30.0, "raw_until": LATER, **empty})["storage-facts"]
    assert "30 days (GRADCANARY_RAW_DAYS), the newest ones longer" in text_of(kept)
    assert "none go before" not in text_of(kept)
    assert "none go before" in text_of(waits)
    assert LATER in text_of(waits)


def count(messages: int = 0, **by_rule: int) -> dict[str, Any]:
    return {"incidents": 1, "messages": messages, "by_rule": by_rule}


def outcome(
    in_force: dict[str, Any] | None = None, tried: dict[str, Any] | None = None, **changes: Any
) -> dict[str, Any]:
    ends = {"samples": 20_000, "first_step": 0, "last_step": 19_999, "is_whole": True, "raw_start_step": None}
    counts = {"in_force": in_force or count(), **({"tried": tried} if tried else {})}
    return {"run": "lora", "layers": 4, **ends, "counts": counts, **changes}


def result(*outcomes: dict[str, Any], entries: Sequence[dict[str, Any]] = (), **changes: Any) -> dict[str, Any]:
    found = [each["counts"] for each in outcomes]
    totals = {
        name: {"incidents": 1, "messages": sum(each[name]["messages"] for each in found), "entries": list(entries)}
        for name in (found[0] if found else ("in_force",))
    }
    line = {"kind": "result", "runs": len(outcomes), "played": len(outcomes), "totals": totals}
    return {**line, "outcomes": list(outcomes), **changes}


RULES: dict[str, Any] = {
    "version": 1,
    "collapse": {"enabled": True, "notify": True, "enter": 1e-4, "evidence": ["fall", "siblings"], "norm_below": None},
    "unused": {"enabled": False, "notify": False, "observations": 50},
    "grace": {"steps": 50},
    "pace": {"wait_s": 10.0},
    "layers": [],
    "rules_version": 3,
    "file": None,
    "descriptions": {
        "collapse": {"means": "They stop learning.", "cases": [{"when": "it is under 1e-4", "severity": "critical"}]},
        "unused": {"means": "It never had a gradient.", "cases": []},
    },
}


def shown(rules: dict[str, Any] | None = None) -> dict[str, str]:
    return {name: text_of(value) for name, value in rules_page.fill(rules or RULES, may=True).items()}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (result(), "There is no run yet"),
        (result(outcome(count(2, collapse=2))), "The rules in force would have sent 2 messages in your last run"),
        (result(outcome(count(2, collapse=2, unused=0))), ": 2 messages (collapse 2)"),
        (result(outcome(count(1)), outcome(count(2))), "would have sent 3 messages in your last 2 runs"),
        (result(outcome(count(1), count(7))), "Your rules would have sent 7 messages in your last run"),
        (result(outcome(count(1), count(7))), "The rules in force would have sent 1 message in your last run"),
        (result(outcome(), runs=2), "1 run could not be played, or not in time: see the collector's log"),
        (result(outcome(is_whole=False)), "lora: its first 20,000 samples only"),
        (result(outcome(raw_start_step=500)), "lora: without what was before step 500"),
        (
            result(outcome(), entries=[{"match": "<b>a", "layers": 0, "runs": 0}]),
            "holds for no parameter of these runs",
        ),
        (
            result(outcome(), outcome(), entries=[{"match": "<b>a", "layers": 12, "runs": 1}]),
            "holds for up to 12 parameters of a run, in 1 of 2",
        ),
    ],
)
def test_trial_result_says_what_was_counted(line: dict[str, Any], said: str) -> None:
    slots = rules_page.tried(line)
    assert said in slots["rules-trial"]
    assert "Done." in slots["rules-tried"]


def test_a_trial_says_how_far_it_is_and_what_goes_wrong() -> None:
    begun = rules_page.tried({"kind": "progress", "runs": None, "played": 0})
    assert "being played again \\u2026" in begun["rules-tried"]
    assert begun["rules-trial"] == "[]", "what came of the trial before is gone"
    assert "3 of 30 runs" in rules_page.tried({"kind": "progress", "runs": 30, "played": 3})["rules-tried"]
    wrong = rules_page.tried({"kind": "error", "code": "trial_failed", "message": "It took longer than <b>."})
    assert "It took longer than <b>." in wrong["rules-tried"]
    assert "one trial runs at a time" in rules_page.refused(RefusedError("one trial runs at a time"))["rules-tried"]


def test_rules_are_listed_with_what_they_do() -> None:
    found = shown()
    assert '"enter 1e-4 \\u00b7 evidence fall, siblings"' in found["rules-list"]
    assert found["rules-list"].index('"notifies"') < found["rules-list"].index('"off"')
    said = ["They stop learning.", '"critical"', "it is under ", "enter 1e-4"]
    assert sorted(said, key=found["rules-list"].index) == said
    assert "The defaults, version 3" in found["rules-source"]
    assert "/etc/rules.yaml" in shown({**RULES, "file": "/etc/rules.yaml"})["rules-source"]


def test_rules_of_layers_are_shown_as_far_as_they_differ() -> None:
    own = {**RULES["collapse"], "enter": 1e-6}
    entries = [{"match": "<b>lora", "collapse": own, "unused": None}, {"match": "x", "collapse": None, "unused": None}]
    said = shown({**RULES, "layers": entries})["rules-layers"]
    assert '"collapse: enter 1e-6"' in said
    assert '"<b>lora"' in said


def test_a_list_that_is_empty_says_what_to_do_in_lines_to_copy() -> None:
    for slot, contents in {
        "endpoint-list": endpoint_pages.fill([], URL, may=True),
        "silence-list": silences_page.fill([], None, [], [], URL, may=True, is_signed_in=False),
    }.items():
        assert f"--url {URL}" in text_of(contents[slot])
        assert "data-copy" in text_of(contents[slot])
    assert tokens_page.LINE in tokens_page.fill([])["token-list"]
    assert tokens_page.LINE not in tokens_page.fill(None)["token-list"]


def test_silence_preview_counts_and_names_incidents() -> None:
    def found(number: int, **changes: object) -> dict[str, Any]:
        return {"id": number, "run": "fell", "rule": "scale_drop", "members": 2, "firing": 2, **changes}

    many = [found(number) for number in range(1, silence_form.PREVIEWED + 4)]
    said = text_of(silence_form.preview({"runs": 3, "incidents": many}))
    assert "Would silence 8 open incidents" in said
    assert "Matches 3 runs." in said
    assert said.count("/incidents/") == silence_form.PREVIEWED
    assert "and 3 more" in said
    assert " scale drop in fell, 1 of 2 parameters" in text_of(
        silence_form.preview({"runs": 1, "incidents": [found(1, members=1)]})
    )
    assert "Matches 1 run." in text_of(silence_form.preview({"runs": 1, "incidents": []}))
    assert "No run has such a name so far." in text_of(silence_form.preview({"runs": 0, "incidents": []}))


def test_silences_of_the_past_are_those_of_the_audit_log() -> None:
    def record(action: str, target: str = "") -> dict[str, Any]:
        return {"id": 1, "at": AT, "actor": "ada", "token": 1, "address": "", "action": action, "target": target}

    audit = [record("DELETE /silences/4"), record("POST /runs/silences"), record("POST /silences", "4: collapse in x")]
    audit.append(record("PATCH /silences/4", f"until {LATER}"))
    said = text_of(silences_page.fill([], audit, [], [], URL, may=True, is_signed_in=False)["silence-past"])
    assert said.count("ada") == 3
    assert "ended silence 4" in said
    assert "gave silence 4 another end, " in said
    assert LATER in said
    assert "made silence 4: collapse in x" in said
    assert "takes a token" in text_of(
        silences_page.fill([], None, [], [], URL, may=False, is_signed_in=False)["silence-past"]
    )


class Known:
    """A collector that answers these questions, to somebody who signed in."""

    as_reader, public_url = True, URL

    def __init__(self, answers: dict[str, Any]) -> None:
        self._answers = answers

    def ask(self, path: str, **_query: object) -> Answer:
        return Answer(self._answers[path], path)

    def runs(self) -> Answer:
        return Answer({"runs": [{"run": "lora-fell"}]}, "")

    def rules(self) -> Answer:
        return Answer({"version": 1, "collapse": {"enabled": True}}, "")


def filled(component: Any, slots: dict[str, str], contents: dict[str, Any]) -> Any:
    """The page once a refresh has filled its slots."""
    for each in [part for one in component for part in (one, *one._traverse())]:
        name = getattr(each, "id", None)
        if name in slots and name in contents:
            setattr(each, slots[name], contents[name])
    return component


@pytest.mark.parametrize("page", [registry.SILENCES, registry.ENDPOINTS, registry.STORAGE], ids=lambda page: page.name)
def test_a_page_that_was_opened_in_an_outage_becomes_whole(page: registry.Page) -> None:
    storage = {"raw_days": None, "raw_until": None, "bytes": 1, "counted": AT, "runs": [], "others": {"runs": 0}}
    storage["others"] = {"runs": 0, "bytes": 0}
    lists: dict[str, Any] = {f"/{what}": {what: []} for what in ("silences", "audit", "endpoints", "tokens")}
    contents = dict(page.ask(cast(Collector, Known({**lists, "/storage": storage})), {}, "", {}))
    slots = {**page.slots, f"{page.name}-page-state": "data-shown"}
    late = filled(page.frame({}, {}), slots, {**contents, f"{page.name}-page-state": contents["shown"]})
    assert text_of(late) == text_of(page.frame({}, contents))
