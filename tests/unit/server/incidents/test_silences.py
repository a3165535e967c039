"""What is said of an incident while silences come and go, on a virtual clock."""

import math
from dataclasses import dataclass, field, replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from gradcanary_server.incidents.lifecycle import IncidentCase, TransitionContext, apply_transitions, close_incident
from gradcanary_server.incidents.silences import SilencedMembers
from gradcanary_server.notify import planner
from gradcanary_server.notify.planner import LastNotification, next_notification
from gradcanary_server.rules.config import Pace
from support.server.transitions import fired, resolved

PACE = Pace()
LAYERS = range(3)


@dataclass
class World:
    """One incident, one endpoint that takes every message at once, the members that are silenced, and a clock."""

    now: float = 0.0
    case: IncidentCase | None = None
    told: LastNotification | None = None
    silenced: frozenset = frozenset()
    settled: bool = False
    messages: list = field(default_factory=list)

    def change(self, *changes):
        changed = apply_transitions(self.case, changes, TransitionContext(1, 300, self.now), math.inf)
        if changed:
            [self.case], self.settled = changed, False

    def end_run(self):
        if self.case is not None and self.case.incident.state == "open":
            self.case, self.settled = (
                IncidentCase(close_incident(self.case.incident, 1, self.now, "run_finished"), self.case.members),
                False,
            )

    def view(self):
        covered = self.silenced & self.case.members.keys()
        return planner.visible_to(self.case.incident, SilencedMembers(self.case.members, covered), self.told)

    def wait(self, seconds):
        """Pass the time, as rounds of the dispatcher do."""
        end = self.now + seconds
        while self.case is not None and not self.settled:
            seen = self.view()
            news = (
                None
                if seen is None
                else next_notification(seen.incident, self.told, PACE, acked=False, sends_ended=True)
            )
            if news is None:
                is_owed = seen is None and planner.needs_notification_later(self.case.incident, self.told)
                self.settled = self.case.incident.state != "open" and not is_owed
                break
            if news.not_before > end:
                break
            self.now = max(self.now, news.not_before)
            what = seen.incident
            self.told = LastNotification(self.now, news.kind, news.layers, what.severity, what.reopened)
            self.messages.append((self.told, what, self.case.members.keys() - seen.hidden, self.silenced))
        self.now = end

    def kinds(self):
        return [told.kind for told, *_ in self.messages]


every = st.just(list(LAYERS))
some = st.lists(st.sampled_from(LAYERS), min_size=1, max_size=2)
events = st.one_of(
    st.tuples(st.just("fire"), some),
    st.tuples(st.just("resolve"), every),
    st.tuples(st.just("resolve"), some),
    st.tuples(st.just("silence"), every),
    st.tuples(st.just("silence"), some),
    st.tuples(st.just("unsilence"), st.none()),
    st.tuples(st.just("end"), st.none()),
)
pauses = st.sampled_from([0.0, 11.0, PACE.interval_s, 3 * PACE.interval_s])
stories = st.lists(st.tuples(events, pauses), min_size=3, max_size=9)
"""Short ones of few layers: what can go wrong takes three or four events in the right order."""


HEARD, SILENT = (("fire", [0]), 11.0), (("silence", [0, 1, 2]), 0.0)
OVER = (("resolve", [0, 1, 2]), PACE.interval_s)
OVER_AT_ONCE = (("resolve", [0, 1, 2]), 0.0)
ENDED = (("end", None), 3 * PACE.interval_s)


def tell(story, world=None):
    world = world or World()
    for (what, which), pause in story:
        if what == "fire":
            world.change(*[fired(layer, severity="warning") for layer in which])
        elif what == "resolve":
            world.change(*[resolved(layer) for layer in which])
        elif what == "end":
            world.end_run()
        else:
            world.silenced = frozenset(which or ())
        world.wait(pause)
    return world


@given(stories)
@example([HEARD, SILENT, OVER])
@example([HEARD, (("end", None), 3 * PACE.interval_s), (("fire", [0]), 0.0), OVER])
@example([HEARD, OVER, SILENT, (("fire", [0]), 0.0), (("end", None), 0.0)])
@settings(max_examples=80)
def test_once_nothing_is_silenced_the_last_word_is_true(story):
    world = tell(story)
    world.silenced = frozenset()
    world.wait(40 * PACE.interval_s)
    if world.case is None:
        return
    state = world.case.incident.state
    assert world.messages or state != "open"
    if world.messages:
        last, notified, *_ = world.messages[-1]
        # A receiver that closed the incident at the end of the run needs no message of a fault too short for one.
        # Nor does one that had recovered, and reopened under a silence until that end, or recovered once more after it.
        is_over = not world.case.is_firing or "silence" in {what for (what, _), _ in story}
        known = {("ended", "resolved"), *([("resolved", "ended")] if is_over else [])}
        assert notified.state == state or (last.kind, state) in known


@given(stories)
@example([(("silence", [1]), 0.0), (("fire", [0, 1]), 0.0), (("resolve", [0]), 11.0)])
@example([HEARD, (("fire", [1]), 0.0), OVER_AT_ONCE, (("fire", [0]), 0.0), (("silence", [0]), 0.0), ENDED])
@settings(max_examples=80)
def test_a_message_names_nobody_who_is_silenced_and_somebody_who_is_not(story):
    for told, what, named, silenced in tell(story).messages:
        assert named
        assert not named & silenced
        assert (what.ever_firing, what.severity) == (len(named), "warning")
        assert told.kind in ("resolved", "ended") or what.firing


@given(stories)
@settings(max_examples=80)
def test_opened_comes_first_and_resolved_never_twice(story):
    world = tell(story)
    kinds = world.kinds()
    assert kinds.count("opened") <= 1
    assert not kinds or kinds[0] == "opened"
    for (before, *_), (after, *_) in zip(world.messages, world.messages[1:], strict=False):
        assert after.at - before.at >= PACE.interval_s * (1 - 1e-9)
        assert (before.kind, after.kind) != ("resolved", "resolved") or after.layers > before.layers


@given(stories)
@example([HEARD, OVER, SILENT, (("fire", [0, 1]), 0.0), OVER])
@settings(max_examples=80)
def test_the_end_of_a_silence_is_one_message_at_most_and_only_an_end_of_what_is_over(story):
    world = tell(story)
    world.silenced = frozenset(LAYERS)
    world.wait(40 * PACE.interval_s)
    said, over = len(world.messages), world.case is not None and world.case.incident.state != "open"
    was_told = world.told
    world.silenced = frozenset()
    world.wait(40 * PACE.interval_s)
    assert len(world.messages) - said <= 1
    if over:
        assert set(world.kinds()[said:]) <= {"resolved", "ended"}
        assert was_told is not None or len(world.messages) == said, "only a receiver that knows of it"
        assert was_told is None or world.told.kind in ("resolved", "ended")


def test_incident_within_a_silence_is_one_message_at_most():
    world = World()
    world.change(fired(0, severity="warning"))
    world.wait(PACE.wait_s)
    world.silenced = frozenset({1, 2, 3})
    world.change(*[fired(layer, severity="warning") for layer in (1, 2, 3)])
    world.change(*[resolved(layer) for layer in (1, 2, 3)])
    world.wait(PACE.interval_s)
    world.silenced = frozenset()
    world.wait(40 * PACE.interval_s)
    assert world.kinds() == ["opened", "grew"]
    assert world.messages[-1][1].firing == 1


def test_the_whole_run_is_silenced_as_any_member():
    world = World(silenced=frozenset({None}))
    world.change(replace(fired(None, rule="nonfinite"), evidence=None))
    world.wait(PACE.interval_s)
    assert world.messages == []
    world.change(fired(3, rule="nonfinite"))
    world.wait(PACE.interval_s)
    assert [(told.kind, named) for told, _, named, _ in world.messages] == [("opened", {3})]


def test_members_that_were_told_and_are_silenced_stay_told():
    world = World()
    world.change(fired(0), fired(1))
    world.wait(PACE.wait_s)
    world.silenced = frozenset({0})
    world.change(resolved(0), resolved(1))
    world.wait(PACE.interval_s)
    assert [(told.kind, told.layers, named) for told, _, named, _ in world.messages] == [
        ("opened", 2, {0, 1}),
        ("resolved", 2, {1}),
    ]
