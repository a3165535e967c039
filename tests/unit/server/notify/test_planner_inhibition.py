"""Several incidents of one run and an endpoint on a virtual clock: one fault is one message, and none is lost."""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradcanary_server.incidents.causes import CAUSES_OF, covered_incidents, is_inhibited_by
from gradcanary_server.incidents.lifecycle import Incident, close_incident
from gradcanary_server.notify.endpoints import Endpoint
from gradcanary_server.notify.planner import (
    LAST_KINDS,
    Delivery,
    Enqueue,
    LastNotification,
    inhibition,
    next_action,
    notified_cause,
)
from gradcanary_server.rules.config import Pace

PACE = Pace()
RULES = sorted({*CAUSES_OF, "accumulation_loss"})


@dataclass
class Message:
    at: float
    incident: int
    kind: str
    also: list[int]


@dataclass
class World:
    """One run; the endpoint takes each message at once."""

    target: Endpoint = field(default_factory=lambda: Endpoint(1, "http://here", "warning", 0.0))
    now: float = 1_000.0
    incidents: dict[int, Incident] = field(default_factory=dict)
    sent: dict[int, list[Delivery]] = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)

    def open(self, rule, step, severity="critical", beside=None):
        number = len(self.incidents) + 1
        counts = {"layers": 12, "firing": 3, "ever_firing": 3}
        self.incidents[number] = Incident(
            rule, 1, severity, "open", step, self.now, step, **counts, beside=beside, run_id=1, id=number
        )
        self.sent[number] = []
        return number

    def recover(self, number):
        self.incidents[number] = close_incident(self.incidents[number], 0, self.now, "recovered")

    def reopen(self, number):
        before = self.incidents[number]
        self.incidents[number] = replace(
            before, state="open", resolved=None, resolution=None, reopened=before.reopened + 1, reopened_at=self.now
        )

    def end(self):
        for number, incident in self.incidents.items():
            if incident.state == "open":
                self.incidents[number] = close_incident(incident, 0, self.now, "run_finished")

    def wait(self, seconds):
        end = self.now + seconds
        while self.now < end:
            self.now = min(self.now + (1.0 if end - self.now < 100 else 60.0), end)
            self.look()

    def causes(self, incident):
        others = [other for other in self.incidents.values() if is_inhibited_by(incident, other)]
        found = [notified_cause(other, None, self.sent[other.id], self.target) for other in others]
        return [cause for cause in found if cause is not None]

    def look(self):
        steps = []
        for number, incident in self.incidents.items():
            held = inhibition(incident, self.causes(incident), PACE)
            steps.append(next_action(incident, None, self.target, self.sent[number], PACE, self.now, held))
        for step in steps:
            if isinstance(step, Enqueue):
                self.send(step)

    def send(self, step):
        incident = self.incidents[step.key.incident_id]
        told = LastNotification(self.now, step.due.kind, step.due.layers, incident.severity, incident.reopened)
        self.sent[incident.id].append(Delivery(step.key, "delivered", self.now, self.now, None, told))
        also = [other.id for other in covered_incidents(incident, self.others(incident))]
        self.messages.append(Message(self.now, incident.id, step.due.kind, also))

    def others(self, incident):
        return [other for other in self.incidents.values() if other.id != incident.id]

    def kinds(self, number):
        return [message.kind for message in self.messages if message.incident == number]

    def is_known(self, number):
        kinds = self.kinds(number)
        return bool(kinds) and kinds[-1] not in LAST_KINDS


def test_effects_within_the_gathering_time_are_in_the_message_of_their_cause():
    world = World()
    cause = world.open("explosion", 100, "warning")
    world.wait(5)
    effects = [world.open("collapse", 140), world.open("vanished", 160)]
    world.wait(PACE.remind_s / 2)
    assert [(message.incident, message.also) for message in world.messages] == [(cause, effects)]


@pytest.mark.parametrize("effect", ["scale_drop", "vanished"])
def test_gradients_of_zero_are_an_effect_of_a_scale_that_fell(effect):
    world = World()
    cause = world.open("loss_scale", 197, "warning")
    world.wait(60)
    world.open(effect, 284)
    world.wait(60)
    assert [message.incident for message in world.messages] == [cause]


def test_a_later_effect_is_told_only_if_it_outlives_its_cause():
    world = World()
    cause = world.open("explosion", 100)
    world.wait(60)
    effect, gone = world.open("collapse", 200), world.open("vanished", 201)
    world.wait(3_600)
    assert [message.incident for message in world.messages] == [cause]
    world.recover(cause)
    world.wait(PACE.wait_s - 1)
    world.recover(gone)
    world.wait(60)
    assert (world.kinds(effect), world.kinds(gone)) == (["opened"], [])


def test_a_critical_nonfinite_takes_the_explosion_before_it_along():
    world = World()
    before = world.open("explosion", 100, "warning")
    world.wait(5)
    nonfinite = world.open("nonfinite", 130)
    fallen = world.open("collapse", 131)
    world.end()
    world.wait(2 * PACE.interval_s)
    assert [(message.incident, message.kind, message.also) for message in world.messages] == [
        (nonfinite, "opened", [before, fallen])
    ]


@pytest.mark.parametrize(("first", "second"), [("scale_drop", "collapse"), ("nonfinite", "explosion")])
def test_of_two_at_one_step_the_cause_is_told(first, second):
    for rules in ((first, second), (second, first)):
        world = World()
        numbers = {rule: world.open(rule, 220) for rule in rules}
        world.wait(PACE.remind_s / 2)
        assert [(message.incident, message.also) for message in world.messages] == [(numbers[first], [numbers[second]])]


def test_an_explosion_beside_a_collapse_is_in_its_message():
    world = World()
    fallen = world.open("collapse", 132)
    beside, elsewhere = (world.open("explosion", 156, "warning", beside=each) for each in (fallen, None))
    grown = world.open("explosion", 157, beside=fallen)
    world.wait(60)
    said = [(message.incident, message.also) for message in world.messages]
    assert said == [(fallen, [beside]), (elsewhere, []), (grown, [])]


def test_a_collapse_before_a_nan_is_in_its_message():
    world = World()
    fallen = world.open("collapse", 132)
    nonfinite = world.open("nonfinite", 156)
    world.end()
    world.wait(60)
    assert [(message.incident, message.also) for message in world.messages] == [(nonfinite, [fallen])]


def test_a_critical_nonfinite_is_told_also_long_after_the_explosion():
    world = World()
    before = world.open("explosion", 100)
    world.wait(60)
    after = world.open("nonfinite", 150)
    world.wait(60)
    assert (world.kinds(before), world.kinds(after)) == (["opened"], ["opened"])


@pytest.mark.parametrize(("waited", "told"), [(3, []), (60, ["opened"])])
def test_a_crash_is_in_the_message_of_its_cause_or_has_its_own(waited, told):
    world = World()
    cause = world.open("nonfinite", 100)
    world.wait(waited)
    crash = world.open("crash", 120)
    world.end()
    world.wait(120)
    assert (world.kinds(cause), world.kinds(crash)) == (["opened"], told)
    assert crash in world.messages[0].also or told


def test_a_cause_of_which_an_endpoint_is_not_notified_holds_nothing_back():
    world = World(Endpoint(1, "http://here", "critical", 0.0))
    world.open("explosion", 100, "warning")
    effect = world.open("collapse", 120)
    world.wait(60)
    assert [message.incident for message in world.messages] == [effect]


@pytest.mark.parametrize(("rule", "step"), [("accumulation_loss", 120), ("collapse", 301), ("collapse", 99)])
def test_other_faults_have_messages_of_their_own(rule, step):
    world = World()
    cause, other = world.open("explosion", 100), world.open(rule, step)
    world.wait(60)
    assert (world.kinds(cause), world.kinds(other)) == (["opened"], ["opened"])


@pytest.mark.parametrize("sends_ended", [False, True])
def test_the_end_of_a_run_is_sent_only_where_it_is_asked_for(sends_ended):
    world = World(Endpoint(1, "http://here", "warning", 0.0, sends_ended))
    told = world.open("collapse", 100)
    absent = world.open("stalled", 100)
    world.wait(60)
    late = world.open("accumulation_loss", 500)
    world.end()
    world.wait(PACE.remind_s)
    ended = ["ended"] if sends_ended else []
    assert world.kinds(told) == ["opened", *ended]
    assert world.kinds(absent) == ["opened", "resolved"], "the run was heard of again"
    assert world.kinds(late) == ["opened", *ended], "nobody had heard of it"


def test_what_grew_worse_or_came_back_before_the_end_is_sent_after_it():
    world = World()
    worse, back = world.open("explosion", 100, "warning"), world.open("accumulation_loss", 100)
    world.wait(60)
    world.recover(back)
    world.wait(2 * PACE.interval_s)
    world.reopen(back)
    world.incidents[worse] = replace(world.incidents[worse], severity="critical")
    world.end()
    world.wait(4 * PACE.interval_s)
    assert world.kinds(worse) == ["opened", "grew"]
    assert world.kinds(back) == ["opened", "resolved", "reopened"]


def test_an_effect_that_is_open_again_after_the_end_has_its_own_message():
    world = World(Endpoint(1, "http://here", "warning", 0.0, sends_ended=True))
    cause, effect = world.open("explosion", 100), world.open("collapse", 120)
    world.wait(60)
    world.end()
    world.wait(2 * PACE.interval_s)
    world.reopen(effect)
    world.wait(60)
    assert (world.kinds(cause), world.kinds(effect)) == (["opened", "ended"], ["opened"])


events = st.one_of(
    st.tuples(st.just("open"), st.sampled_from(RULES), st.integers(0, 150), st.sampled_from(["warning", "critical"])),
    st.tuples(st.just("recover"), st.integers(0, 20)),
    st.tuples(st.just("reopen"), st.integers(0, 20)),
    st.tuples(st.just("end")),
)
stories = st.lists(st.tuples(events, st.sampled_from([0.0, 0.0, 3.0, 12.0, 60.0, 1_000.0])), min_size=2, max_size=25)


def play(story, target):
    world, step = World(target), 0
    for event, pause in story:
        opened = {incident.rule for incident in world.incidents.values() if incident.state == "open"}
        numbers = list(world.incidents)
        if event[0] == "open" and event[1] not in opened:
            step += event[2]
            world.open(event[1], step, event[3])
        elif event[0] == "end":
            world.end()
        elif event[0] in ("recover", "reopen") and numbers:
            incident = world.incidents[numbers[event[1] % len(numbers)]]
            if event[0] == "recover" and incident.state == "open":
                world.recover(incident.id)
            elif event[0] == "reopen" and incident.state != "open" and incident.rule not in opened:
                world.reopen(incident.id)
        before = len(world.messages)
        world.wait(pause)
        check_messages(world, world.messages[before:])
    before = len(world.messages)
    world.wait(40 * PACE.interval_s)
    check_messages(world, world.messages[before:])
    return world


def is_holding(incident, cause):
    """A cause that the run ended on holds back no incident that is open again."""
    return cause.state == "open" or (cause.state == "ended" and incident.state != "open")


def check_messages(world, messages):
    """Hold what was sent since the last event against the incidents, which did not change in that time."""
    for message in messages:
        incident = world.incidents[message.incident]
        told = {other for other in world.incidents if any(m.incident == other and m.at < message.at for m in messages)}
        holding = [
            other.id
            for other in world.others(incident)
            if is_inhibited_by(incident, other) and is_holding(incident, other) and other.id in told
        ]
        assert message.kind in LAST_KINDS or not holding or incident.rule == "crash", (message, holding)


targets = st.builds(
    Endpoint,
    st.just(1),
    st.just("http://here"),
    st.sampled_from(["warning", "critical"]),
    st.just(0.0),
    st.booleans(),
)


def is_told(world, incident, seen=()):
    """An incident has a message, is named in one, or is held back by one of which that is true."""
    covering = any(incident.id in message.also and world.is_known(message.incident) for message in world.messages)
    holding = [o for o in world.others(incident) if is_inhibited_by(incident, o) and is_holding(incident, o)]
    seen = {*seen, incident.id}
    return world.is_known(incident.id) or covering or any(is_told(world, o, seen) for o in holding if o.id not in seen)


@given(stories, targets)
@settings(max_examples=120)
def test_no_incident_is_lost_and_none_is_told_beside_its_cause(story, target):
    world = play(story, target)
    for number, incident in world.incidents.items():
        if target.min_severity == "critical" and incident.severity == "warning":
            assert not world.kinds(number)
        elif incident.state == "open":
            assert is_told(world, incident)
        if incident.rule == "nonfinite" and incident.severity == "critical" and incident.state != "resolved":
            assert world.kinds(number), "a critical non-finite is always told"


@given(stories, targets)
@settings(max_examples=80)
def test_the_end_is_one_message_where_it_is_asked_for(story, target):
    world = play([*story, (("end",), 0.0)], target)
    for number in world.incidents:
        kinds = world.kinds(number)
        assert kinds.count("ended") <= 1 + kinds.count("reopened")
        if not target.sends_ended:
            assert "ended" not in kinds
        elif world.incidents[number].state == "ended" and kinds:
            assert kinds[-1] == "ended" or kinds[-1] == "resolved"


@given(stories, targets)
@settings(max_examples=80)
def test_one_fault_is_one_message_within_the_gathering_time(story, target):
    world = play(story, target)
    opened = [message for message in world.messages if message.kind == "opened"]
    for message in opened:
        incident = world.incidents[message.incident]
        for other in opened:
            cause = world.incidents[other.incident]
            if is_inhibited_by(incident, cause) and other.at <= message.at and incident.rule != "crash":
                is_over = cause.resolved is not None and cause.resolved <= message.at
                assert is_over or cause.reopened, "its cause was told, and had not recovered"
