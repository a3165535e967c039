"""Which open incidents should stop a training, and which do not."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradcanary import wire
from gradcanary.display.verdict import PROCESS_RULES
from gradcanary.export.stop_rule import StopRule

COLLAPSE = wire.Brief(
    id=7,
    rule="collapse",
    severity="critical",
    state="open",
    opened_step=40,
    layers=2,
    summary="2 of 9 parameters (lora_A in blocks.0-1) fell from 1e-3 to 1e-6 at step 38.",
    url="http://here/runs/r?incident=7",
    do_first="Lower the weight decay.",
)
BRIEFS = st.builds(
    wire.Brief,
    id=st.integers(1, 4),
    rule=st.sampled_from(["collapse", "nonfinite", *PROCESS_RULES]),
    severity=st.sampled_from(["information", "warning", "critical"]),
    state=st.just("open"),
    opened_step=st.integers(0, 9),
    layers=st.integers(0, 9),
    summary=st.just("s"),
    url=st.just("u"),
    acknowledged=st.booleans(),
    silenced=st.booleans(),
    reopened=st.integers(0, 2),
)


def rule_after(*replies: tuple[wire.Brief, ...], stop_on: str | None = "critical") -> StopRule:
    rule = StopRule(stop_on)
    for each in replies:
        rule.apply(each)
    return rule


def test_an_incident_of_this_launch_stops_with_its_words() -> None:
    rule = rule_after((), (COLLAPSE,))
    assert rule.is_on
    assert rule.reason == (
        "collapse (critical, #7): 2 of 9 parameters (lora_A in blocks.0-1) fell from 1e-3 to 1e-6 at step 38. "
        "Do first: Lower the weight decay. http://here/runs/r?incident=7"
    )
    rule.apply(())
    assert not rule.is_on
    assert rule.reason is not None, "what it was stays known"


@pytest.mark.parametrize(
    ("stop_on", "severity", "is_on"),
    [
        (None, "critical", False),
        ("critical", "critical", True),
        ("critical", "warning", False),
        ("warning", "critical", True),
        ("warning", "warning", True),
        ("warning", "information", False),
    ],
)
def test_the_severity_decides(stop_on: str | None, severity: str, *, is_on: bool) -> None:
    assert rule_after((), (replace(COLLAPSE, severity=severity),), stop_on=stop_on).is_on is is_on


@pytest.mark.parametrize(
    "change", [{"acknowledged": True}, {"silenced": True}, *({"rule": rule} for rule in PROCESS_RULES)]
)
def test_what_is_settled_or_about_the_process_does_not_stop(change: dict[str, object]) -> None:
    assert not rule_after((), (replace(COLLAPSE, **change),)).is_on
    assert not rule_after((), (COLLAPSE,), (replace(COLLAPSE, **change),)).is_on


def test_what_an_earlier_launch_left_does_not_stop_unless_it_grows_worse() -> None:
    assert not rule_after((COLLAPSE,), (COLLAPSE,)).is_on
    back = replace(COLLAPSE, reopened=1)
    assert not rule_after((), (back,), (back,)).is_on, "a run that resumes, and its fault persists"
    assert rule_after((), (COLLAPSE,), (), (back,)).is_on, "one that came back within the launch"
    milder = replace(COLLAPSE, severity="warning")
    assert rule_after((milder,), (COLLAPSE,)).is_on
    assert not rule_after((milder,), (milder,), stop_on="warning").is_on
    assert rule_after((COLLAPSE,), (COLLAPSE, replace(COLLAPSE, id=8))).is_on


def test_the_worst_and_earliest_is_named() -> None:
    mild, later = replace(COLLAPSE, id=3, severity="warning"), replace(COLLAPSE, id=9)
    assert (rule_after((), (mild, COLLAPSE, later), stop_on="warning").reason or "").startswith(
        "collapse (critical, #7)"
    )


@given(st.lists(st.lists(BRIEFS, unique_by=lambda brief: brief.id).map(tuple), max_size=6))
def test_nothing_stops_that_is_not_open_unsettled_and_as_severe(replies: list[tuple[wire.Brief, ...]]) -> None:
    rule = rule_after(*replies)
    may = [
        each
        for each in (replies[-1] if replies else ())
        if each.severity == "critical" and not (each.acknowledged or each.silenced or each.rule in PROCESS_RULES)
    ]
    assert not rule.is_on or may
    assert not rule_after(*replies[:1]).is_on, "nothing was measured yet"
