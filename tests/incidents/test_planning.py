"""What comes next for an endpoint while the clock of the store is set forward and back; time itself only goes on."""

import itertools
import math
from dataclasses import dataclass, field, replace

import pytest
from changes import fired, resolved
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gradcanary_server import leaps as leaping
from gradcanary_server.endpoints import Endpoint
from gradcanary_server.incident_state import Case, Origin, apply
from gradcanary_server.leaps import AHEAD_S, Leap, Leaps, Pulse
from gradcanary_server.pace import Pace, Told
from gradcanary_server.planning import (
    LEASE_S,
    Expire,
    Key,
    Seal,
    Sent,
    aged,
    following,
    gathered,
    is_leased,
    redated,
)
from gradcanary_server.webhooks import LONGEST_RETRY_S, retry_delay

PACE = Pace()
HOUR, DAY = 3_600.0, 86_400.0
ROUND_S = 300.0
TARGET = Endpoint(1, "http://here", "warning", 0.0)
LAYERS = 12
OUTCOMES = ["taken", "refused", "killed", "late", "nowhere"]
"""Of an attempt; one that is late arrives, though its sender hears nothing, and one that gets nowhere does not."""


@dataclass
class Heard:
    at: float
    version: int
    kind: str
    state: str
    reopened: int
    is_noted: bool


@dataclass
class World:
    """One incident, one endpoint, and a deliverer; ``time`` is true, the clock says ``set_s`` more."""

    time: float = 1e9
    set_s: float = 0.0
    case: Case | None = None
    sent: list[Sent] = field(default_factory=list)
    sealed: dict[int, tuple[float, Seal, str]] = field(default_factory=dict)
    heard: list[Heard] = field(default_factory=list)
    outcomes: list[str] = field(default_factory=list)
    pulse: Pulse = field(default_factory=Pulse)
    leaps: Leaps = ()

    @property
    def now(self):
        return self.time + self.set_s

    def change(self, *changes):
        before = self.case
        [self.case] = apply(before, changes, Origin(1, 300, self.now), math.inf) or [before]
        self.case.incident = replace(self.case.incident, id=1)

    def wait(self, seconds):
        end = self.time + seconds
        while self.time < end:
            self.time = min(self.time + ROUND_S, end)
            self.look()

    def look(self):
        """One round of a deliverer, and one more where times are to be written anew first."""
        now = self.now
        if by_s := self.pulse.leap(now, self.time, self.time):
            self.leaps = leaping.after(self.leaps, by_s, now)
        if self.case is None:
            return
        for redate in redated(self.sent, now):
            at = next(place for place, each in enumerate(self.sent) if each.key == redate.key)
            told, unsure = self.sent[at].told, self.sent[at].unsure
            self.sent[at] = replace(
                self.sent[at],
                sealed=redate.sealed,
                next_attempt=redate.next_attempt,
                told=None if told is None else replace(told, at=redate.delivered),
                unsure=None if unsure is None else replace(unsure, at=redate.unsure),
            )
        assert redated(self.sent, now) == []
        what = gathered(self.case.incident, self.leaps, now)
        step = following(what, None, TARGET, [aged(each, self.leaps) for each in self.sent], PACE, now)
        if isinstance(step, Seal):
            self.sent.append(Sent(step.key, "pending", now, now, None, None))
            self.sealed[step.key.version] = self.time, step, self.case.incident.state
        elif isinstance(step, Expire):
            self.sent[-1] = replace(self.sent[-1], state="expired")
        self.send(now)

    def send(self, now):
        last = self.sent[-1] if self.sent else None
        if last is None or last.state != "pending" or last.next_attempt > now or is_leased(last.lease_until, now):
            return
        outcome = self.outcomes.pop() if self.outcomes else "taken"
        _, seal, state = self.sealed[last.key.version]
        reopened = self.case.incident.reopened
        if outcome not in ("refused", "nowhere"):
            self.heard.append(Heard(self.time, last.key.version, seal.due.kind, state, reopened, outcome == "taken"))
        before = [told.at for each in self.sent for told in (each.told, each.unsure) if told is not None]
        arrived = max([now, *(math.nextafter(at, math.inf) for at in before)])
        told = Told(arrived, seal.due.kind, seal.due.members, "critical", reopened)
        if outcome == "taken":
            self.sent[-1] = replace(last, state="delivered", lease_until=None, told=told, unsure=None)
        elif outcome == "killed":  # with the collector that waited for the answer
            self.sent[-1] = replace(last, lease_until=now + LEASE_S, unsure=told)
        else:
            retry = now + retry_delay(1, HOUR / 2, 0.0)
            unsure = last.unsure if outcome == "refused" else told
            self.sent[-1] = replace(last, next_attempt=retry, lease_until=None, unsure=unsure)


layers = st.lists(st.integers(0, LAYERS - 1), min_size=1, max_size=LAYERS)
events = st.one_of(
    st.tuples(st.just("fire"), layers),
    st.tuples(st.just("resolve"), st.one_of(layers, st.just(list(range(LAYERS))))),
    st.tuples(st.just("set"), st.sampled_from([HOUR, -HOUR, 30.0, 7 * HOUR, -DAY, -DAY, -7 * HOUR, 12.0])),
    st.tuples(st.just("away"), st.sampled_from([2 * ROUND_S, HOUR, DAY])),
    st.tuples(st.just("answer"), st.lists(st.sampled_from(OUTCOMES), max_size=4)),
)
pauses = st.sampled_from([0.0, 1.0, 11.0, ROUND_S, PACE.interval_s, 2 * HOUR, DAY])
stories = st.lists(st.tuples(events, pauses), min_size=2, max_size=25)


@settings(max_examples=100)
@given(stories)
@example(
    [
        (("answer", ["killed"]), 0.0),
        (("fire", [0]), 11.0),
        (("set", HOUR), ROUND_S),
    ]
)
@example([(("fire", [0]), PACE.interval_s), (("resolve", [0]), 0.0), (("set", HOUR), ROUND_S)])
@example([(("answer", ["killed"]), 0.0), (("fire", [0]), ROUND_S), (("away", HOUR), 0.0), (("resolve", [0]), 0.0)])
@example([(("answer", ["refused", "late"]), 0.0), (("fire", [0]), ROUND_S), (("resolve", [0]), HOUR)])
def test_whatever_the_clock_is_set_to_messages_keep_their_distance_and_the_last_word_is_true(story):
    world = World()
    for (what, which), pause in story:
        if what == "set":
            world.look()
            world.set_s += which
        elif what == "away":
            world.time += which
        elif what == "answer":
            world.outcomes = list(which)
        elif what == "fire":
            world.change(*[fired(layer) for layer in which])
        elif world.case is not None:
            world.change(*[resolved(layer) for layer in which])
        world.wait(pause)
    world.outcomes = []
    world.wait(8 * HOUR + LONGEST_RETRY_S + 4 * ROUND_S)
    check(world)


def check(world):
    taken = [each for each in world.heard if each.is_noted]
    assert len({each.version for each in taken}) == len(taken), "noted once"
    for before, after in itertools.pairwise(taken):
        least = PACE.interval_s * 2 ** min(after.reopened, 5)
        assert after.at - before.at >= least - 1e-3, (before, after)
    for before, after in itertools.pairwise(world.heard):
        if after.version != before.version and not before.is_noted:
            assert after.at - world.sealed[before.version][0] >= PACE.interval_s, "as old as any message may become"
        assert after.version >= before.version
    if world.case is None:
        return
    what = world.case.incident
    assert (world.heard[-1].state if world.heard else "resolved") == what.state


moments = st.integers(0, int(4 * DAY)).map(float)
messages = st.builds(
    lambda version, sealed, later, retry, lease: Sent(
        Key(1, 1, version),
        "pending" if later is None else "delivered",
        sealed,
        sealed + retry,
        None if lease is None else sealed + lease,
        None if later is None else Told(sealed + later, "grew", 1, "critical", 0),
    ),
    st.integers(1, 9),
    moments,
    st.one_of(st.none(), moments),
    st.integers(0, int(3 * LONGEST_RETRY_S)),
    st.one_of(st.none(), st.integers(0, int(LEASE_S))),
)


@settings(max_examples=150)
@given(st.lists(messages, max_size=6), moments)
def test_no_time_is_further_ahead_than_a_rule_allows_and_what_is_not_ahead_stays(sent, now):
    changed = {each.key: each for each in redated(sent, now)}
    if not changed:
        assert all(max(each.sealed, each.told.at if each.told else 0) <= now + AHEAD_S for each in sent)
        assert all(each.next_attempt <= now + LONGEST_RETRY_S + AHEAD_S for each in sent)
    if len({each.key for each in sent}) < len(sent):
        return
    for each in sent:
        after = changed.get(each.key)
        if after is None:
            continue
        assert max(after.sealed, after.delivered or 0.0) <= now + AHEAD_S
        assert after.next_attempt <= now + LONGEST_RETRY_S + AHEAD_S
        assert each.sealed > now or after.sealed == each.sealed
        assert each.told is None or each.told.at > now or after.delivered == each.told.at
    arrived = [each for each in sent if each.told is not None]
    if arrived and len({each.told.at for each in arrived}) == len(arrived):
        last = max(arrived, key=lambda each: each.told.at)
        times = {each.key: changed[each.key].delivered if each.key in changed else each.told.at for each in arrived}
        assert all(times[last.key] >= each for each in times.values()), "the last one is the last one"


@pytest.mark.parametrize(
    ("by_s", "expected"),
    [
        ([3600.0], (Leap(1e6, 3600.0),)),
        ([3600.0, -3600.0], ()),
        ([7200.0, -3600.0], (Leap(1e6, 3600.0),)),
        ([3600.0, -DAY], ()),
        ([-DAY], ()),
    ],
)
def test_what_is_set_back_takes_back_what_was_set_forward(by_s, expected):
    found, now = (), 1e6
    for each in by_s:
        now += each
        found = leaping.after(found, each, now)
    assert found == expected
    assert leaping.since(1e6 - 1, found) == 1e6 - 1 + sum(leap.by_s for leap in expected)
    assert leaping.since(1e6 + 1, found) == 1e6 + 1


def test_what_late_answers_leave_possible_is_no_leap():
    pulse = Pulse()
    asked = [(0.0, 0.0, 0.0), (1.0, 1.0, 30.0), (40.0, 20.0, 60.0), (75.0, 61.0, 75.0), (3700.0, 80.0, 110.0)]
    assert [pulse.leap(*each) for each in asked] == [0.0, 0.0, 0.0, 0.0, 3590.0]
    assert [pulse.leap(*each) for each in [(3720.0, 125.0, 126.0), (130.0, 130.0, 130.0)]] == [0.0, -3594.0]


def test_a_late_answer_is_asked_for_again():
    pulse, steady = Pulse(), iter([0.0, 0.0, 1.0, 31.0, 32.0, 32.1])
    assert pulse.look(lambda: 0.0, lambda: next(steady)) == (0.0, 0.0)
    answers = iter([5.0, 32.0])
    assert pulse.look(lambda: next(answers), lambda: next(steady)) == (32.0, 0.0)


def test_a_clock_that_is_slewed_for_days_does_not_leap():
    pulse = Pulse()
    assert {pulse.leap(1.0005 * at, at, at + 0.1) for at in range(0, 3 * 86_400, 60)} == {0.0}
