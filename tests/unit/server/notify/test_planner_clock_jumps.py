"""What comes next for an endpoint while the clock of the store is set forward and back; time itself only goes on.

What was written ahead of the clock is brought back in each round, as a collector does each 15 s.
"""

import itertools
import math
from dataclasses import dataclass, field, replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from gradcanary_server.incidents.lifecycle import IncidentCase, TransitionContext, apply_transitions
from gradcanary_server.notify.endpoints import Endpoint
from gradcanary_server.notify.planner import (
    LEASE_S,
    Delivery,
    Enqueue,
    Expire,
    LastNotification,
    is_leased,
    next_action,
)
from gradcanary_server.notify.webhook import JITTER, LAST_RETRY_S, retry_delay
from gradcanary_server.rules.config import Pace
from support.server.transitions import fired, resolved

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
    """One incident, one endpoint, and a dispatcher; ``time`` is true, the clock says ``set_s`` more."""

    time: float = 1e9
    set_s: float = 0.0
    case: IncidentCase | None = None
    sent: list[Delivery] = field(default_factory=list)
    sealed: dict[int, tuple[float, Enqueue, str]] = field(default_factory=dict)
    heard: list[Heard] = field(default_factory=list)
    outcomes: list[str] = field(default_factory=list)
    is_set_back: bool = False
    set_at: list[float] = field(default_factory=list)

    @property
    def now(self):
        return self.time + self.set_s

    def change(self, *changes):
        before = self.case
        [self.case] = apply_transitions(before, changes, TransitionContext(1, 300, self.now), math.inf) or [before]
        self.case.incident = replace(self.case.incident, run_id=1, id=1)

    def wait(self, seconds):
        end = self.time + seconds
        while self.time < end:
            self.time = min(self.time + ROUND_S, end)
            self.look()

    def look(self):
        """One round of a dispatcher."""
        now = self.now
        if self.case is None:
            return
        self.pull_back(now)
        step = next_action(self.case.incident, None, TARGET, self.sent, PACE, now)
        if isinstance(step, Enqueue):
            self.sent.append(Delivery(step.key, "pending", now, now, None, None))
            self.sealed[step.key.version] = self.time, step, self.case.incident.state
        elif isinstance(step, Expire):
            self.sent[-1] = replace(self.sent[-1], state="expired")
        self.send(now)

    def pull_back(self, now):
        def here(moment):
            return None if moment is None else min(moment, now)

        def told(of):
            return None if of is None else replace(of, at=here(of.at))

        for place, each in enumerate(self.sent if self.is_set_back else ()):
            times = {name: here(getattr(each, name)) for name in ("enqueued_at", "next_attempt", "lease_until")}
            self.sent[place] = replace(
                each, **times, delivered=told(each.delivered), maybe_delivered=told(each.maybe_delivered)
            )
        what = self.case.incident
        times = {name: here(getattr(what, name)) for name in ("opened", "reopened_at", "resolved")}
        self.case.incident = replace(what, **times)
        self.is_set_back = False

    def send(self, now):
        last = self.sent[-1] if self.sent else None
        if last is None or last.state != "pending" or last.next_attempt > now or is_leased(last.lease_until, now):
            return
        outcome = self.outcomes.pop() if self.outcomes else "taken"
        _, seal, state = self.sealed[last.key.version]
        reopened = self.case.incident.reopened
        if outcome not in ("refused", "nowhere"):
            self.heard.append(Heard(self.time, last.key.version, seal.due.kind, state, reopened, outcome == "taken"))
        told = LastNotification(now, seal.due.kind, seal.due.layers, "critical", reopened)
        if outcome == "taken":
            self.sent[-1] = replace(last, state="delivered", lease_until=None, delivered=told, maybe_delivered=None)
        elif outcome == "killed":  # with the collector that waited for the answer
            self.sent[-1] = replace(last, lease_until=now + LEASE_S, maybe_delivered=told)
        else:
            retry = now + retry_delay(1, HOUR / 2, 0.0)
            unsure = last.maybe_delivered if outcome == "refused" else told
            self.sent[-1] = replace(last, next_attempt=retry, lease_until=None, maybe_delivered=unsure)


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


@settings(max_examples=40)
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
def test_planner_is_right_for_any_clock_jumps(story):
    world = World()
    for (what, which), pause in story:
        if what == "set":
            world.look()
            world.set_s += which
            world.is_set_back |= which < 0
            world.set_at.append(world.time)
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
    world.wait(8 * HOUR + LAST_RETRY_S * (1 + JITTER) + 4 * ROUND_S)
    check(world)


def check(world):
    taken = [each for each in world.heard if each.is_noted]
    assert len({each.version for each in taken}) == len(taken), "noted once"
    for before, after in itertools.pairwise(taken):
        least = PACE.interval_s * 2 ** min(after.reopened, 5)
        is_set = any(before.at <= at <= after.at for at in world.set_at)
        assert is_set or after.at - before.at >= least - 1e-3, (before, after)
    for before, after in itertools.pairwise(world.heard):
        is_set = any(world.sealed[before.version][0] <= at <= after.at for at in world.set_at)
        if after.version != before.version and not before.is_noted and not is_set:
            assert after.at - world.sealed[before.version][0] >= PACE.interval_s, "as old as any message may become"
        assert after.version >= before.version
    if world.case is None:
        return
    what = world.case.incident
    assert (world.heard[-1].state if world.heard else "resolved") == what.state
