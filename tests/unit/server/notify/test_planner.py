"""due(): what is said about an incident and when, on a virtual clock."""

import math
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradcanary_server.incidents.lifecycle import (
    RULE_CHANGE_S,
    IncidentCase,
    TransitionContext,
    apply_transitions,
    close_incident,
)
from gradcanary_server.notify.planner import LastNotification, NextNotification, min_interval_s, next_notification
from gradcanary_server.rules.config import Pace
from gradcanary_server.rules.types import Transition

PACE = Pace()
DAY = 86_400.0


def fired(layer, step=0, severity="critical"):
    return Transition(step, "collapse", layer, "fired", severity, step, evidence="fall")


def resolved(layer, step=0):
    return Transition(step, "collapse", layer, "resolved", "critical", step, resolution="recovered")


def by_other_rules(layer):
    return replace(resolved(layer), resolution="rule_changed")


@dataclass
class Message:
    at: float
    kind: str
    ever: int
    state: str
    reopened: int


@dataclass
class World:
    """One incident, one endpoint that takes every message at once, and a clock that only this class moves."""

    pace: Pace = PACE
    now: float = 0.0
    case: IncidentCase | None = None
    told: LastNotification | None = None
    acked: bool = False
    messages: list[Message] = field(default_factory=list)

    def change(self, *changes):
        before = self.case
        [self.case] = apply_transitions(before, changes, TransitionContext(1, 300, self.now), math.inf) or [before]
        if before is not None and self.case.incident.reopened > before.incident.reopened:
            self.acked = False

    def wait(self, seconds):
        end = self.now + seconds
        while self.case is not None:
            news = next_notification(self.case.incident, self.told, self.pace, self.acked)
            if news is None or news.not_before > end:
                break
            self.now = max(self.now, news.not_before)
            self.send(news)
        self.now = end

    def send(self, news: NextNotification):
        what = self.case.incident
        assert news.layers == what.ever_firing
        self.told = LastNotification(self.now, news.kind, news.layers, what.severity, what.reopened)
        self.messages.append(Message(self.now, news.kind, news.layers, what.state, what.reopened))

    def kinds(self):
        return [message.kind for message in self.messages]


def test_three_hundred_layers_over_a_few_seconds_are_one_message():
    world = World()
    for layer in range(300):
        world.change(fired(layer))
        world.wait(0.02)
    world.wait(DAY / 2)
    assert [(m.at, m.kind, m.ever) for m in world.messages] == [(PACE.wait_s, "opened", 300)]


def test_incident_resolved_before_its_first_message_is_not_sent():
    world = World()
    world.change(fired(1))
    world.wait(PACE.wait_s - 1)
    world.change(resolved(1))
    world.wait(DAY)
    assert world.messages == []


@pytest.mark.parametrize(("waited", "kinds"), [(0, []), (PACE.wait_s, ["opened", "resolved"])])
def test_finding_withdrawn_by_a_changed_rule_is_sent_where_it_was_known(waited, kinds):
    world = World()
    world.change(fired(1))
    world.wait(waited)
    world.change(by_other_rules(1))
    world.wait(RULE_CHANGE_S - 1)
    assert world.kinds() == kinds[:1], "the other rule may find it again"
    world.wait(1)
    assert world.kinds() == kinds
    assert world.case.incident.resolution == "rule_changed"


def test_a_changed_rule_that_finds_the_same_again_says_nothing():
    world = World()
    world.change(fired(1), fired(2))
    world.wait(PACE.wait_s)
    for _ in range(10):
        world.change(by_other_rules(1), by_other_rules(2))
        world.wait(RULE_CHANGE_S - 1)
        world.change(fired(2))
        world.wait(RULE_CHANGE_S)
    assert world.kinds() == ["opened"]
    world.change(resolved(2))
    world.wait(1)
    assert world.kinds() == ["opened", "resolved"]


def test_later_finding_of_a_changed_rule_is_sent():
    world = World()
    world.change(fired(1))
    world.wait(PACE.wait_s)
    world.change(by_other_rules(1))
    world.wait(RULE_CHANGE_S + 1)
    world.change(fired(1))
    world.wait(PACE.interval_s * 2)
    assert world.kinds() == ["opened", "resolved", "reopened"]


def test_incident_at_the_end_of_a_run_is_sent():
    world = World()
    world.change(fired(1))
    world.case.incident = close_incident(world.case.incident, 1, 1.0, "run_finished")
    world.wait(DAY)
    assert world.kinds() == ["opened"]


def test_silent_run_that_ends_within_seconds_is_not_sent():
    world = World()
    world.change(replace(fired(None), rule="silent"))
    world.case.incident = close_incident(world.case.incident, 1, 1.0, "run_finished")
    world.wait(DAY)
    assert world.messages == []


def test_growth_is_said_when_it_doubles_and_a_rise_of_severity_at_once():
    world = World()
    world.change(fired(0, severity="warning"), fired(1, severity="warning"))
    world.wait(PACE.wait_s)
    world.change(fired(2, severity="warning"))
    world.wait(PACE.interval_s * 2)
    assert world.kinds() == ["opened"]
    world.change(fired(3, severity="warning"))
    world.wait(1)
    assert [(m.kind, m.ever) for m in world.messages] == [("opened", 2), ("grew", 4)]
    world.change(fired(3, severity="critical"))
    world.wait(PACE.interval_s)
    assert world.kinds() == ["opened", "grew", "grew"]


def test_reminders_come_daily_until_somebody_knows():
    world = World()
    world.change(fired(1))
    world.wait(3 * DAY + 60)
    assert world.kinds() == ["opened", "reminder", "reminder", "reminder"]
    world.acked = True
    world.change(*[fired(layer) for layer in range(100)])
    world.wait(3 * DAY)
    assert len(world.messages) == 4
    world.change(*[resolved(layer) for layer in range(100)])
    world.wait(1)
    assert (world.kinds()[-1], world.messages[-1].ever) == ("resolved", 100)


def test_warnings_are_not_repeated():
    world = World()
    world.change(fired(1, severity="warning"))
    world.wait(10 * DAY)
    assert world.kinds() == ["opened"]


def test_resolved_keeps_its_distance_too():
    world = World()
    world.change(fired(1))
    world.wait(PACE.wait_s)
    world.change(resolved(1))
    world.wait(PACE.interval_s - 1)
    assert world.kinds() == ["opened"]
    world.wait(1)
    assert world.kinds() == ["opened", "resolved"]


def test_layers_that_came_and_went_after_the_last_word_are_owed_another():
    world = World()
    world.change(fired(1))
    world.wait(PACE.wait_s)
    world.change(resolved(1))
    world.wait(PACE.interval_s)
    world.change(fired(2))
    world.wait(60)
    world.change(resolved(2))
    world.wait(PACE.interval_s * 2)
    assert [(m.kind, m.ever) for m in world.messages] == [("opened", 1), ("resolved", 1), ("resolved", 2)]


def test_six_days_of_flapping_each_minute_are_few_messages():
    world = World()
    for _ in range(6 * 24 * 60):
        world.change(fired(1))
        world.wait(30)
        world.change(resolved(1))
        world.wait(30)
    assert 12 <= len(world.messages) <= 24


def test_flapping_faster_than_the_gathering_is_not_silent():
    world = World()
    for _ in range(20):
        world.change(fired(1))
        world.wait(4)
        world.change(resolved(1))
        world.wait(4)
    assert world.kinds() == ["opened"]


layer_numbers = st.integers(0, 40)
events = st.one_of(
    st.tuples(st.just("fire"), st.lists(layer_numbers, min_size=1, max_size=12)),
    st.tuples(st.just("rise"), layer_numbers),
    st.tuples(st.just("resolve"), st.lists(layer_numbers, max_size=41)),
    st.tuples(st.just("resolve"), st.just(list(range(41)))),
    st.tuples(st.just("rules"), st.none()),
    st.tuples(st.just("ack"), st.none()),
)
pauses = st.one_of(st.sampled_from([0.0, 1.0, 11.0, 60.0, PACE.interval_s]), st.floats(0, 1e5))
stories = st.lists(st.tuples(events, pauses), min_size=1, max_size=30)


def tell(story):
    world = World()
    for (what, which), pause in story:
        if what == "fire":
            world.change(*[fired(layer, severity="warning") for layer in which])
        elif what == "rise":
            world.change(fired(which))
        elif what == "resolve" and world.case is not None:
            world.change(*[resolved(layer) for layer in which])
        elif what == "rules" and world.case is not None:
            world.change(*[by_other_rules(layer) for layer in range(41)])
        elif what == "ack":
            world.acked = True
        world.wait(pause)
    return world


@given(stories)
@settings(max_examples=80)
def test_two_messages_keep_the_distance_of_their_reopenings(story):
    world = tell(story)
    for before, after in zip(world.messages, world.messages[1:], strict=False):
        least = PACE.interval_s * 2 ** min(after.reopened, 5)
        assert after.at - before.at >= least * (1 - 1e-9)


@given(stories)
@settings(max_examples=80)
def test_the_last_word_is_true(story):
    world = tell(story)
    world.wait(40 * PACE.interval_s)
    if world.case is None:
        return
    what = world.case.incident
    if world.messages:
        assert world.messages[-1].state == what.state
        assert (world.messages[-1].kind == "resolved") == (what.state == "resolved")
    else:
        assert what.state == "resolved"


@given(stories)
@settings(max_examples=80)
def test_every_layer_that_fired_is_covered_at_the_latest_when_it_is_over(story):
    world = tell(story)
    if not world.messages:
        return
    world.change(*[resolved(layer) for layer in range(41)])
    world.wait(40 * PACE.interval_s)
    assert world.messages[-1].ever == world.case.incident.ever_firing


@given(stories)
@settings(max_examples=80)
def test_a_reminder_covers_every_layer_within_a_day(story):
    world = tell(story)
    if world.case is None or world.case.incident.state == "resolved":
        return
    world.acked = False
    world.change(fired(0))
    world.wait(PACE.remind_s + 40 * PACE.interval_s)
    assert world.messages[-1].ever == world.case.incident.ever_firing


@given(stories)
@settings(max_examples=80)
def test_opened_once_and_growth_at_most_log2(story):
    kinds = tell(story).kinds()
    assert kinds.count("opened") <= 1
    assert not kinds or kinds[0] == "opened"
    rises = 1
    assert kinds.count("grew") <= math.log2(41) + rises


@given(stories)
@settings(max_examples=40)
def test_nothing_is_due_twice(story):
    world = tell(story)
    if world.case is None or world.told is None:
        return
    news = next_notification(world.case.incident, world.told, PACE, world.acked)
    assert news is None or news.not_before >= world.told.at + min_interval_s(world.case.incident, PACE) - 1e-6
