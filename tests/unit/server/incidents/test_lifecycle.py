"""How changes move an incident, without a store."""

import itertools
import math
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from gradcanary_server.incidents.lifecycle import RULE_CHANGE_S, TransitionContext, apply_transitions
from gradcanary_server.rules.types import Jump
from support.server.transitions import fired, resolved

SIX_HOURS = 21_600.0


def moved(*changes, before=None, now=0.0, reopen_s=SIX_HOURS):
    return apply_transitions(before, changes, TransitionContext(1, 300, now), reopen_s)


def test_layers_are_members_of_one_incident():
    [case] = moved(fired(1, step=359, since=341), fired(2, step=360, since=340))
    what = case.incident
    assert (what.opened_step, what.since_step, what.firing, what.ever_firing) == (359, 340, 2, 2)
    assert (case.members[1].since_step, case.members[2].since_step) == (341, 340)


def test_the_highest_severity_stays():
    [case] = moved(fired(1, severity="warning"))
    [case] = moved(fired(1, severity="critical"), before=case)
    assert (case.incident.severity, case.incident.firing, case.incident.ever_firing) == ("critical", 1, 1)
    [case] = moved(fired(1, severity="information"), before=case)
    assert (case.incident.severity, case.members[1].severity) == ("critical", "critical")


def test_an_explosion_keeps_its_peak():
    """It gets worse when the loss has risen, too: by then the gradients may be zero or not finite."""
    for later in (0.0, math.nan, 7.0):
        [case] = moved(fired(1, rule="explosion", severity="warning", value=5e4))
        [case] = moved(fired(1, rule="explosion", severity="critical", value=later), before=case)
        assert case.members[1].value == 5e4
    [case] = moved(fired(1, rule="explosion", value=9e9), before=case)
    assert case.members[1].value == 9e9


def test_incident_resolves_with_its_last_member():
    [case] = moved(fired(1), fired(2), resolved(1, step=800))
    assert (case.incident.state, case.incident.firing) == ("open", 1)
    [case] = moved(resolved(2, step=900), before=case)
    assert (case.incident.state, case.incident.resolution, case.incident.resolved_step) == (
        "resolved",
        "recovered",
        900,
    )
    assert case.members[1].until_step == 800
    [gone] = moved(fired(1), fired(2), resolved(1), resolved(2, resolution="layer_gone"))
    assert gone.incident.resolution == "layer_gone"


def test_a_refire_within_six_hours_reopens_and_later_is_another_incident():
    [case] = moved(fired(1), resolved(1))
    [again] = moved(fired(1, step=2000, since=1980), before=case, now=SIX_HOURS)
    assert (again.incident.state, again.incident.reopened, again.incident.reopened_at) == ("open", 1, SIX_HOURS)
    assert (again.incident.opened_step, again.incident.ever_firing, again.members[1].since_step) == (359, 1, 1980)
    [case] = moved(fired(1), resolved(1))
    [other] = moved(fired(1, step=2000), before=case, now=SIX_HOURS + 1)
    assert (other.incident.opened_step, other.incident.reopened) == (2000, 0)


def test_finding_of_a_changed_rule_is_no_reopening():
    [case] = moved(fired(1))
    case.incident = replace(case.incident, acked=5.0)
    [case] = moved(resolved(1, resolution="rule_changed"), before=case, now=10.0)
    [again] = moved(fired(1), before=case, now=10.0 + RULE_CHANGE_S, reopen_s=0.0)
    assert (again.incident.state, again.incident.reopened, again.incident.acked) == ("open", 0, 5.0)
    [later] = moved(fired(1), before=case, now=11.0 + RULE_CHANGE_S)
    assert (later.incident.state, later.incident.reopened, later.incident.acked) == ("open", 1, None)


def test_learning_rates_that_jumped_are_those_before_it_began():
    one, other = (Jump(0, step, 1e-3, 5e-6) for step in (330, 1970))
    [case] = moved(fired(1, jumps=(one,)), fired(2, step=2000, since=1980, jumps=(other,)))
    assert case.incident.lr_jumps == (one,)
    [case] = moved(resolved(1), resolved(2), before=case)
    [again] = moved(fired(1, step=2000, since=1980, jumps=(other,)), before=case, now=SIX_HOURS)
    assert (again.incident.reopened, again.incident.lr_jumps) == (1, (other,))
    [case] = moved(fired(1), fired(2, step=2000, since=1980, jumps=(other,)))
    assert case.incident.lr_jumps == ()


def test_the_whole_run_is_a_member_and_no_layer():
    [case] = moved(fired(None, rule="nonfinite"), fired(3, rule="nonfinite"))
    assert (case.incident.firing, case.incident.ever_firing) == (1, 1)
    [case] = moved(resolved(3, rule="nonfinite"), before=case)
    assert case.incident.state == "open"
    [case] = moved(resolved(None, rule="nonfinite"), before=case)
    assert case.incident.state == "resolved"


def test_numbers_that_json_cannot_say_are_left_out():
    [case] = moved(fired(1, rule="nonfinite", value=math.nan), fired(2, rule="nonfinite", value=math.inf))
    assert [case.members[layer].value for layer in (1, 2)] == [None, None]


def test_unknown_member_resolves_nothing():
    assert moved(resolved(1)) == []
    [case] = moved(fired(1))
    assert moved(resolved(2), before=case) == []


changes = st.lists(
    st.one_of(
        st.builds(
            lambda layer, severity: fired(layer, severity=severity),
            st.integers(0, 5),
            st.sampled_from(["warning", "critical"]),
        ),
        st.builds(resolved, st.integers(0, 5)),
    ),
    max_size=40,
)


@given(changes, st.lists(st.integers(0, 40), max_size=5))
@settings(max_examples=80)
def test_any_cutting_of_the_changes_gives_the_same_incident(story, cuts):
    whole = moved(*story)
    places = [0, *sorted(cuts), len(story)]
    case = None
    for begin, end in itertools.pairwise(places):
        case = (moved(*story[begin:end], before=case) or [case])[-1]
    assert (
        ([case] if case else []) == []
        or not whole
        or (case.incident, case.members)
        == (
            whole[-1].incident,
            whole[-1].members,
        )
    )
    assert bool(whole) == (case is not None)


@given(changes)
@settings(max_examples=80)
def test_counts_are_those_of_the_members(story):
    for case in moved(*story):
        firing = sum(member.until_step is None for member in case.members.values())
        assert (case.incident.firing, case.incident.ever_firing) == (firing, len(case.members))
        assert (case.incident.state == "open") == (firing > 0)
