"""The dispatcher as shipped and a real receiver, while the clock of the store is set forward an hour and back a day."""

import itertools

import pytest
from sqlalchemy import select, update

from gradcanary_server.incidents import silences
from gradcanary_server.incidents.silences import Silence
from gradcanary_server.notify import outbox
from gradcanary_server.notify.sender import Attempt
from gradcanary_server.rules.config import Pace
from gradcanary_server.storage.schema import delivery, endpoint, incident
from support.receivers import status
from support.server.clocks import delivering, listen
from support.server.transitions import fired, resolved

HOUR, DAY = 3_600.0, 86_400.0
PACE = Pace()
SOON = PACE.interval_s + 60.0

sets = pytest.mark.parametrize("by_s", [HOUR, -DAY], ids=["forward", "back"])


def told(receiver):
    return [(message.id, message.type.rsplit(".", 1)[1]) for message in receiver.got]


def test_messages_keep_their_distance_in_true_time(new_store, receiver_factory):
    """Where the clock goes back; where it goes forward a message may be early."""
    by_s = -DAY
    store, receiver = new_store(), receiver_factory()
    listen(store, receiver)
    store.record(fired(0))
    with delivering(store):
        store.database.wait(20.0)
        store.record(resolved(0))
        store.database.set(by_s)
        store.database.wait(PACE.interval_s - 60.0)
        assert told(receiver) == [("msg_1_1", "opened")]
        store.database.wait(120.0)
        assert told(receiver) == [("msg_1_1", "opened"), ("msg_1_2", "resolved")]
        store.record(fired(0))
        store.database.wait(20.0)
        store.database.set(-by_s)
        store.database.wait(2 * PACE.interval_s + 60.0)
    assert told(receiver)[2:] == [("msg_1_3", "reopened")]


@sets
def test_waiting_messages_are_sent_soon_after_a_jump(new_store, receiver_factory, by_s):
    store, receiver, other = new_store(), receiver_factory(status(503), status(503)), receiver_factory()
    listen(store, receiver)
    listen(store, other)
    store.record(fired(0))
    with delivering(store):
        store.database.wait(20.0)
        assert (told(receiver), told(other)) == ([("msg_1_1", "opened")], [("msg_1_1", "opened")])
        store.record(fired(0, rule="nonfinite"))
        store.database.set(by_s)
        store.database.wait(30.0)
        assert told(other)[1:] == [("msg_2_1", "opened")]
        store.database.wait(120.0)
    first = "msg_1_2" if by_s > 0 else "msg_1_1"  # an hour makes a message too old: what it said is sent anew
    assert set(told(receiver)) - {("msg_1_1", "opened")} | {(first, "opened")} == {
        (first, "opened"),
        ("msg_2_1", "opened"),
    }
    assert {row["state"] for row in store.rows(select(delivery.c.state))} <= {"delivered", "expired"}


@sets
def test_a_message_that_nobody_concluded_is_sent_again_under_its_id(new_store, receiver_factory, by_s):
    """Its sender was killed. Lease and age are by the clock of before: one that is too old now may be made anew."""
    store, receiver = new_store(), receiver_factory()
    listen(store, receiver)
    store.record(fired(0))
    store.database.ahead_s = 20.0
    with store.database.write() as connection:
        now = store.database.now(connection)
        for step in outbox.plan_deliveries(connection, PACE, now):
            outbox.apply_step(connection, step, outbox.compose_drafts(connection, [step], "", now), now)
        [key] = outbox.claimable(connection, now)
        outbox.claim_delivery(connection, key, now)
    with delivering(store):
        store.database.look_on(10)
        assert told(receiver) == [], "somebody has it"
        store.database.set(by_s)
        store.database.wait(60.0)
    assert told(receiver) in ([("msg_1_1", "opened")], [("msg_1_2" if by_s > 0 else "msg_1_1", "opened")])


def test_messages_dated_ahead_do_not_delay_a_new_collector(new_store, receiver_factory):
    """The clock is set while no collector runs, as at a boot; also of endpoints that were made before."""
    store, receiver = new_store(), receiver_factory()
    store.database.set_s = DAY
    store.database.beat()
    listen(store, receiver)
    store.record(fired(0))
    with delivering(store):
        store.database.wait(20.0)
    store.record(resolved(0))
    store.database.set_s = 0.0
    store.database.beat()
    store.record(fired(1, rule="nonfinite"))
    with store.database.write() as connection:
        ended = {"state": "ended", "resolved": store.database.now(connection), "resolution": "run_finished"}
        connection.execute(update(incident).where(incident.c.rule == "nonfinite").values(**ended))
    with delivering(store):
        store.database.wait(20.0)
        assert told(receiver) == [("msg_1_1", "opened"), ("msg_2_1", "opened")]
        store.database.wait(PACE.interval_s)
    assert told(receiver)[2:] == [("msg_1_2", "resolved")]


def test_the_order_in_which_messages_arrived_is_kept_while_the_clock_goes_back(new_store, receiver_factory):
    store, receiver = new_store(), receiver_factory()
    listen(store, receiver)
    store.record(fired(0))
    with delivering(store):
        store.database.wait(20.0)
    store.database.beat()
    store.record(*[fired(layer) for layer in range(8)])
    with store.database.write() as connection:  # the second one is on its way as the clock is set back
        now = store.database.now(connection) + SOON
        for step in outbox.plan_deliveries(connection, PACE, now):
            outbox.apply_step(connection, step, outbox.compose_drafts(connection, [step], "", now), now)
        [key] = outbox.claimable(connection, now)
        claim = outbox.claim_delivery(connection, key, now)
        outbox.finish_attempt(connection, claim, Attempt(200, 10), now - DAY, 0.0)
    store.database.set_s = -DAY
    store.database.beat()
    with delivering(store):
        store.database.wait(2 * HOUR)
    assert told(receiver) == [("msg_1_1", "opened")], "eight layers were told of: they have not grown"
    first, second = (row["delivered"] for row in store.rows(select(delivery).order_by(delivery.c.version)))
    assert first <= second


@sets
def test_reminders_and_silences_go_on(new_store, receiver_factory, by_s):
    store, receiver = new_store(), receiver_factory()
    listen(store, receiver)
    store.record(fired(0), fired(1))
    with delivering(store):
        store.database.wait(20.0)
        store.database.set(by_s)
        store.database.wait(DAY + SOON)
        assert told(receiver)[1:] == [("msg_1_2", "reminder")]
        with store.database.write() as connection:  # until a moment that somebody named, whatever the clock does
            now = store.database.now(connection)
            silences.create_silence(connection, Silence(0, "sdxl", None, None, now, now + 2 * HOUR, "ada", ""))
        store.record(fired(0, rule="nonfinite"))
        store.database.wait(HOUR)
        assert len(told(receiver)) == 2
        store.database.wait(HOUR + 60.0)
    assert told(receiver)[2:] == [("msg_2_1", "opened")]
    assert store.rows(select(endpoint.c.disabled))[0]["disabled"] is None
    gaps = [after.at - before.at for before, after in itertools.pairwise(receiver.got)]
    assert len(gaps) == 2
