"""Months of incidents in a real store, told to receivers that fail in every way, on a virtual clock.

What is carried out is what the dispatcher does: plan, seal, claim, send, conclude; a step of hypothesis is one of
these rounds, a change, or something that goes wrong between them.
"""

import json
import math
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from sqlalchemy import insert, select, update

from gradcanary_server.incidents import repository, service, text
from gradcanary_server.incidents.causes import is_inhibited_by
from gradcanary_server.incidents.lifecycle import RANKS
from gradcanary_server.notify import outbox
from gradcanary_server.notify.planner import Enqueue
from gradcanary_server.notify.sender import Attempt
from gradcanary_server.notify.webhook import TransportError
from gradcanary_server.rules.config import Pace, Rules
from gradcanary_server.rules.signals import RULES
from gradcanary_server.storage.schema import delivery, endpoint, incident
from support.server.covering import covers
from support.server.stores import Store
from support.server.transitions import fired, resolved
from support.streams import layer_names

PACE, URL, MUTED = Pace(), "http://127.0.0.1:8787", Rules().muted
LAYERS = 40
BEGIN = 1.7e9
NAMES = sorted([*RULES, "scale_drop"])
WORKS, FAILS, LOSES = "works", "fails", "answers into the void"
SLOW, AWAY = "answers too late", "is not there, which nobody can tell from that"
NO = {FAILS: TransportError("no", status=500), SLOW: TransportError("late", maybe_delivered=True)}
NO[AWAY] = NO[SLOW]


@dataclass
class Receiver:
    """An endpoint: ``got`` the bodies by id as often as they came, ``took`` those that the collector knows it has.

    ``heard`` are the messages in the order in which they came.
    """

    mood: str = WORKS
    got: dict[str, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    took: list[tuple[float, dict]] = field(default_factory=list)
    heard: list[dict] = field(default_factory=list)


class Mail(RuleBasedStateMachine):
    """One run of 40 layers, two receivers, one of them for criticals only."""

    store = None

    def __init__(self):
        super().__init__()
        # Never committed: an example leaves nothing behind.
        self.transaction = self.store.database.write()
        self.connection = self.transaction.__enter__()
        self.now, self.launch_no = BEGIN, 1
        self.firing = defaultdict(set)
        self.receivers = {}
        self.late = []

    @initialize()
    def listen(self):
        for number, least in ((1, "warning"), (2, "critical")):
            row = {"endpoint_id": number, "url": f"http://here/{number}", "secret": "whsec_" + "A" * 32}
            row |= {"min_severity": least, "sends_ended": number == 2}
            self.connection.execute(insert(endpoint).values(**row, created=BEGIN))
            self.receivers[number] = Receiver()

    def record(self, *changes):
        service.record_transitions(self.connection, self.store.run_id, self.launch_no, changes, self.now)

    @rule(
        name=st.sampled_from(NAMES),
        severity=st.sampled_from(["information", "warning", "critical"]),
        layers=st.lists(st.integers(0, LAYERS - 1), min_size=1, unique=True),
    )
    def fail(self, name, severity, layers):
        numbers = [None] if name == "scale_drop" else layers
        self.record(*[fired(number, rule=name, severity=severity) for number in numbers])
        self.firing[name] |= set(numbers)

    @rule(name=st.sampled_from(NAMES), share=st.sampled_from([0.5, 1]))
    def recover(self, name, share):
        firing = sorted(self.firing[name], key=lambda number: (number is not None, number))
        which = firing[: math.ceil(share * len(firing))]
        self.record(*[resolved(number, rule=name) for number in which])
        self.firing[name] -= set(which)

    @rule(name=st.sampled_from(["collapse", "explosion"]), times=st.integers(2, 8))
    def flap(self, name, times):
        for _ in range(times):
            self.fail(name, "critical", [1, 2])
            self.wait(30)
            self.recover(name, 1)
            self.wait(30)

    @rule()
    def end(self):
        service.close_run(self.connection, self.store.run_id, 1000, self.now, "run_finished")

    @rule(name=st.sampled_from(NAMES))
    def acknowledge(self, name):
        open_one = (incident.c.rule == name) & (incident.c.state == "open")
        values = {"acked": self.now, "acked_by": "ada", "ack_note": ""}
        self.connection.execute(update(incident).where(open_one).values(**values))

    @rule(who=st.sampled_from([1, 2]), mood=st.sampled_from([WORKS, FAILS, FAILS, LOSES, SLOW, AWAY]))
    def turn(self, who, mood):
        self.receivers[who].mood = mood

    @rule(seconds=st.sampled_from([0.5, 5.0, 10.0, 60.0, 900.0, 3600.0, 86_400.0]), rounds=st.integers(1, 4))
    def wait(self, seconds, rounds=1):
        for _ in range(rounds):
            self.now += seconds / rounds
            self.seal()
            while self.send():
                pass

    @rule()
    def come_back(self):
        """A dispatcher that hung while it sent says how that went."""
        for claim in self.late:
            self.conclude(claim, 200)
        self.late.clear()

    def seal(self):
        text.store_summaries(self.connection, text.compose_missing(self.connection))
        for step in outbox.plan_deliveries(self.connection, PACE, self.now, MUTED, run_id=self.store.run_id):
            outbox.apply_step(
                self.connection, step, outbox.compose_drafts(self.connection, [step], URL, self.now), self.now
            )
            if isinstance(step, Enqueue):
                self.check_sealed(step.key)

    def send(self):
        """Send one message to each receiver; tell whether there were any."""
        keys = {key.endpoint_id: key for key in reversed(outbox.claimable(self.connection, self.now))}
        for key in keys.values():
            claim = outbox.claim_delivery(self.connection, key, self.now)
            receiver = self.receivers[key.endpoint_id]
            if receiver.mood not in (FAILS, AWAY):
                receiver.got[claim.message.id].append(claim.message.body)
                receiver.heard.append(json.loads(claim.message.body))
            if receiver.mood == LOSES:
                self.late.append(claim)
            else:
                self.conclude(claim, NO.get(receiver.mood, 200))
        return bool(keys)

    def conclude(self, claim, result):
        its = select(delivery.c.state).where(*outbox.has_key(claim.key))
        before = self.connection.execute(its).scalar_one()
        outbox.finish_attempt(self.connection, claim, Attempt(result, 5), self.now, 0.0)
        if (before, self.connection.execute(its).scalar_one()) == ("pending", "delivered"):
            self.receivers[claim.key.endpoint_id].took.append((self.now, json.loads(claim.message.body)))

    def check_sealed(self, key):
        """A message counts and covers every layer that ever fired, and says what is."""
        query = select(delivery.c.body).where(*outbox.has_key(key))
        body = json.loads(self.connection.execute(query).scalar_one())["data"]
        what = (
            self.connection.execute(select(incident).where(incident.c.incident_id == key.incident_id)).mappings().one()
        )
        ever = [
            number
            for number in repository.load_members(self.connection, key.run_id, key.incident_id)
            if number is not None
        ]
        names = repository.layer_names(self.connection, self.store.run_id)
        assert what["rule"] not in MUTED
        assert body["counts"] == {"firing": what["firing"], "ever": len(ever), "layers": LAYERS}
        assert (body["state"], body["severity"]) == (what["state"], what["severity"])
        assert all(any(covers(pattern, names[each]) for pattern in body["prefixes"]) for each in ever)
        if what["state"] == "open":
            assert what["firing"] == len(self.firing[what["rule"]] - {None})

    def teardown(self):
        try:
            if self.receivers:
                self.settle()
                self.check()
        finally:
            self.transaction.__exit__(LookupError, LookupError("never committed"), None)

    def settle(self):
        """All receivers work again, and time goes by until everything is said."""
        for receiver in self.receivers.values():
            receiver.mood = WORKS
        for _ in range(10):
            self.wait(10 * 3600.0)

    def check(self):
        rows = self.connection.execute(select(incident)).mappings().all()
        disabled = {row.endpoint_id for row in self.connection.execute(select(endpoint)) if row.disabled}
        for number, receiver in self.receivers.items():
            for bodies in receiver.got.values():
                assert len(set(bodies)) == 1
            for row in rows:
                mine = [each for each in receiver.took if each[1]["data"]["incident"] == row["incident_id"]]
                self.check_messages(mine)
                heard = [body for body in receiver.heard if body["data"]["incident"] == row["incident_id"]]
                if number not in disabled:
                    self.check_last_word(row, heard, 1 if number == 1 else 2, rows)
        assert not disabled

    def check_messages(self, mine):
        kinds = [body["type"].rsplit(".", 1)[1] for _, body in mine]
        for (before, _), (after, body) in pairwise(mine):
            assert after - before >= PACE.interval_s * 2 ** min(self.reopened(body), 5) * (1 - 1e-9)
        assert kinds.count("opened") <= 1
        assert not kinds or kinds[0] in ("opened", "resolved", "ended"), "the end of what may have arrived"
        assert kinds.count("grew") <= math.log2(LAYERS) + 2

    def reopened(self, body):
        is_of_incident = delivery.c.incident_id == body["data"]["incident"]
        is_message = (delivery.c.endpoint_id == 1) & (delivery.c.version == body["data"]["version"])
        query = select(delivery.c.notified_reopens).where(is_of_incident, is_message)
        return self.connection.execute(query).scalar_one_or_none() or 0

    def check_last_word(self, row, bodies, least, rows):
        current = repository.incident_from_row(row)
        causes = [repository.incident_from_row(other) for other in rows if other["rule"] not in MUTED]
        holding = [cause for cause in causes if is_inhibited_by(current, cause) and cause.state != "resolved"]
        if not bodies:
            is_covered = any(RANKS[cause.severity] >= least for cause in holding)
            is_past = row["state"] == "resolved" or is_covered
            assert is_past or RANKS[row["severity"]] < least or row["rule"] in MUTED, dict(row)
            return
        last = bodies[-1]["data"]
        if row["state"] == "ended" and least == 1:
            assert row["notifications_done"]
            return
        if holding and row["state"] == "open":
            return
        assert last["state"] == row["state"]
        if row["state"] == "ended":
            assert row["notifications_done"]
        elif row["state"] == "resolved":
            assert (last["counts"]["ever"], last["severity"]) == (row["ever_firing"], row["severity"])
            assert row["notifications_done"]
        elif row["severity"] == "critical" and row["acked"] is None:
            assert last["counts"]["ever"] == row["ever_firing"]


def test_any_story_of_incidents_and_receivers(new_store_url):
    store = Store(new_store_url(), layer_names(LAYERS))
    machine = type("MailOfStore", (Mail,), {"store": store})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=5, stateful_step_count=20, phases=[Phase.generate])
    )
    store.database.close()
