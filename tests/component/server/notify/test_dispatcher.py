"""The delivery loop on a real store and real receivers."""

import itertools
import json
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest
from sqlalchemy import func, select, update

from gradcanary_server.errors import StoreUnavailable
from gradcanary_server.incidents import silences, text
from gradcanary_server.incidents.silences import Silence
from gradcanary_server.notify import dispatcher as dispatchers
from gradcanary_server.notify import endpoints, outbox, planner
from gradcanary_server.notify.dispatcher import Dispatcher
from gradcanary_server.notify.planner import Enqueue
from gradcanary_server.notify.sender import Attempt
from gradcanary_server.rules.config import Pace, Rules
from gradcanary_server.storage.schema import attempt, delivery, endpoint, incident, run
from support import postgres
from support.receivers import close_mid_answer, flood, hang, status
from support.server.stores import SLOW, URL, Store
from support.server.transitions import fired, resolved
from support.waiting import eventually

QUICK = Pace(wait_s=0.1, interval_s=3.0)


def listen(store, receiver, secret=None):
    with store.database.write() as connection:
        return endpoints.upsert_configured(
            connection, endpoints.ConfiguredEndpoint(receiver.url), secret, store.database.now(connection)
        )


@contextmanager
def delivering(store, pace):
    dispatcher = Dispatcher(store.database, pace, URL)
    dispatcher.start()
    try:
        yield dispatcher
    finally:
        dispatcher.stop()


def test_three_hundred_layers_are_one_verified_message(store, receiver_factory):
    receiver = receiver_factory()
    secret = listen(store, receiver)
    store.record(*[fired(layer) for layer in range(300)])
    with delivering(store, SLOW):
        receiver.wait(1)
        eventually(lambda: store.rows(select(delivery.c.state))[0]["state"] == "delivered")
    [message] = receiver.verified(secret)
    assert message["type"] == "gradient.collapse.opened"
    assert message["data"]["counts"] == {"firing": 300, "ever": 300, "layers": 300}
    assert len(message["data"]["worst"]) == 10
    assert message["data"]["prefixes"] == ["*"]
    assert message["data"]["url"] == f"{URL}/runs/sdxl?incident=1"
    assert receiver.got[0].id == "msg_1_1"


@pytest.mark.parametrize(("module", "limit", "value"), [(dispatchers, "MAX_STEPS", 1), (text, "COMPOSE_S", 0.0)])
def test_due_messages_are_written_in_portions(store, receiver_factory, monkeypatch, module, limit, value):
    """Nobody else can write meanwhile, and there may be thousands."""
    monkeypatch.setattr(module, limit, value)
    receiver = receiver_factory()
    listen(store, receiver)
    store.record(fired(0), fired(1, rule="accumulation_loss"), fired(2, rule="clip_before_unscale"))
    with delivering(store, SLOW):
        receiver.wait(3)
    moments = {row["enqueued_at"] for row in store.rows(select(delivery.c.enqueued_at))}
    assert len(moments) == 3, "each is of a transaction of its own"


@pytest.mark.slow
def test_the_story_of_an_incident_reaches_the_receiver(store, receiver_factory):
    receiver = receiver_factory()
    listen(store, receiver)
    with delivering(store, QUICK):
        store.record(fired(0))
        receiver.wait(1)
        store.record(fired(2), fired(4))
        receiver.wait(2)
        store.record(*[resolved(layer) for layer in (0, 2, 4)])
        receiver.wait(3)
        eventually(lambda: store.rows(select(incident.c.notifications_done))[0]["notifications_done"])
        store.record(fired(0, step=1000))
        receiver.wait(4)
    assert [m.type.rsplit(".", 1)[1] for m in receiver.got] == ["opened", "grew", "resolved", "reopened"]
    assert [m.id for m in receiver.got] == [f"msg_1_{version}" for version in (1, 2, 3, 4)]
    made = [row["enqueued_at"] for row in store.rows(select(delivery.c.enqueued_at).order_by(delivery.c.version))]
    gaps = [after - before for before, after in itertools.pairwise(made)]
    assert min(gaps) >= QUICK.interval_s
    assert gaps[2] >= 2 * QUICK.interval_s


def test_a_new_endpoint_hears_of_what_is_open_and_not_of_what_was(store, receiver_factory):
    store.record(fired(0))
    store.close_run()
    store.record(fired(1, rule="nonfinite"), launch_no=1)
    receiver = receiver_factory()
    secret = listen(store, receiver)
    with delivering(store, SLOW):
        receiver.wait(1)
        eventually(
            lambda: (
                {row["notifications_done"] for row in store.rows(select(incident.c.notifications_done))}
                == {True, False}
            )
        )
    assert [message["type"] for message in receiver.verified(secret)] == ["gradient.nonfinite.opened"]


def test_information_is_not_sent(store, receiver_factory):
    receiver = receiver_factory()
    listen(store, receiver)
    store.record(fired(0, severity="information", evidence="joined_late"), fired(None, rule="nonfinite"))
    with delivering(store, QUICK):
        receiver.wait(1)
        store.record(resolved(0))
        eventually(
            lambda: store.rows(select(incident.c.notifications_done).order_by(incident.c.incident_id))[0][
                "notifications_done"
            ]
        )
    assert {message.type for message in receiver.got} == {"gradient.nonfinite.opened"}


@pytest.mark.parametrize(
    ("fault", "code"),
    [(status(500), 500), (status(302, Location="/elsewhere"), 302), (close_mid_answer, None)],
    ids=["500", "redirect", "reset"],
)
def test_a_failed_attempt_is_made_again_with_the_same_bytes(store, receiver_factory, monkeypatch, fault, code):
    monkeypatch.setattr("gradcanary_server.notify.webhook.FIRST_RETRY_S", 0.2)
    receiver = receiver_factory(fault, fault)
    secret = listen(store, receiver)
    store.record(fired(0))
    with delivering(store, SLOW):
        receiver.wait(3)
        eventually(lambda: len(store.rows(select(attempt))) == 3)
    assert len({(message.id, message.body) for message in receiver.got}) == 1
    assert len(receiver.verified(secret)) == 3
    tried = store.rows(select(attempt).order_by(attempt.c.number))
    assert [row["error"] is None for row in tried] == [False, False, True]
    assert [row["status"] for row in tried] == [code, code, 200]
    assert store.rows(select(endpoint.c.failing_since))[0]["failing_since"] is None


def test_retry_after_is_honoured(store, receiver_factory, monkeypatch):
    monkeypatch.setattr("gradcanary_server.notify.webhook.FIRST_RETRY_S", 0.01)
    receiver = receiver_factory(status(503, Retry_After="3"))
    listen(store, receiver)
    store.record(fired(0))
    with delivering(store, SLOW):
        first, second = receiver.wait(2)[:2]
    assert second.at - first.at >= 2.9


def test_gone_disables_the_endpoint(store, receiver_factory):
    gone, other = receiver_factory(status(410)), receiver_factory()
    of_gone = select(endpoint.c.disabled).where(endpoint.c.endpoint_id == 1)
    listen(store, gone)
    listen(store, other)
    store.record(fired(0))
    with delivering(store, QUICK):
        other.wait(1)
        eventually(lambda: store.rows(of_gone)[0]["disabled"] is not None)
        store.record(fired(2))
        other.wait(2)
    assert len(gone.got) == 1
    assert store.rows(select(delivery.c.state).where(delivery.c.endpoint_id == 1))[0]["state"] == "disabled"
    listen(store, gone)
    assert store.rows(of_gone)[0]["disabled"] is None


def test_five_days_of_failures_disable_the_endpoint(store, receiver_factory):
    receiver = receiver_factory(status(500))
    listen(store, receiver)
    fails(store, since_s=endpoints.DISABLE_AFTER_S, last_s=3_600)
    store.record(fired(0))
    with delivering(store, SLOW):
        eventually(lambda: store.rows(select(endpoint.c.disabled))[0]["disabled"] is not None)
    assert "5 days" in store.rows(select(endpoint.c.disabled_reason))[0]["disabled_reason"]


def fails(store, *, since_s, last_s):
    with store.database.write() as connection:
        now = store.database.now(connection)
        connection.execute(update(endpoint).values(failing_since=now - since_s, last_failure=now - last_s))


def test_failures_of_five_days_ago_disable_nobody(store, receiver_factory, monkeypatch):
    """Between them nothing was to be said, or the clock was set."""
    monkeypatch.setattr("gradcanary_server.notify.webhook.FIRST_RETRY_S", 0.1)
    receiver = receiver_factory(*[status(500)] * 3)
    listen(store, receiver)
    fails(store, since_s=endpoints.DISABLE_AFTER_S + 60, last_s=endpoints.DISABLE_AFTER_S)
    store.record(fired(0))
    with delivering(store, SLOW):
        receiver.wait(4)
        eventually(lambda: store.rows(select(delivery.c.state))[0]["state"] == "delivered")
    assert store.rows(select(endpoint.c.disabled))[0]["disabled"] is None


def test_enabled_endpoint_gets_the_end_of_sent_incidents(store, receiver_factory):
    receiver = receiver_factory()
    listen(store, receiver)
    store.record(fired(0))
    with delivering(store, QUICK):
        receiver.wait(1)
        eventually(lambda: store.rows(select(delivery.c.state))[0]["state"] == "delivered")
        with store.database.write() as connection:
            endpoints.disable_missing(connection, [], store.database.now(connection))
        store.record(resolved(0))
        eventually(lambda: store.rows(select(incident.c.notifications_done))[0]["notifications_done"])
        listen(store, receiver)
        receiver.wait(2)
        eventually(lambda: store.rows(select(incident.c.notifications_done))[0]["notifications_done"])
    assert [message.type for message in receiver.got] == ["gradient.collapse.opened", "gradient.collapse.resolved"]


def test_a_hanging_receiver_holds_up_nobody(store, receiver_factory, monkeypatch):
    monkeypatch.setattr("gradcanary_server.notify.webhook.TIMEOUT_S", 2.0)
    stuck, endless, fine = receiver_factory(hang), receiver_factory(flood), receiver_factory()
    for receiver in (stuck, endless, fine):
        listen(store, receiver)
    store.record(fired(0))
    with delivering(store, SLOW):
        fine.wait(1)
        stuck.wait(1)
        eventually(lambda: len(store.rows(select(attempt))) >= 3)
    tried = {row["endpoint_id"]: row for row in store.rows(select(attempt).where(attempt.c.number == 1))}
    assert tried[1]["error"] == "no answer within 2 s"
    assert tried[2]["status"] == 200
    assert tried[3]["status"] == 200


@contextmanager
def held_up(store):
    """Keep all others from writing for the length of the block; readers go on."""
    with store.database.write() as connection:
        if not store.database.has_one_writer:
            connection.exec_driver_sql("LOCK TABLE incident, delivery, endpoint IN EXCLUSIVE MODE")
        yield


def test_a_busy_store_is_not_a_receiver_that_does_not_answer(store, receiver_factory, monkeypatch):
    """Sealing and claiming wait for the writer; an attempt that is under way does not, and is made once."""
    monkeypatch.setattr("gradcanary_server.notify.webhook.TIMEOUT_S", 2.0)
    monkeypatch.setattr("gradcanary_server.notify.webhook.FIRST_RETRY_S", 0.1)
    arrived, may_answer = threading.Event(), threading.Event()

    def answer_late(handler):
        arrived.set()
        may_answer.wait(60)
        status(200)(handler)

    receiver = receiver_factory(answer_late)
    listen(store, receiver)
    store.record(fired(0))
    with delivering(store, SLOW):
        assert arrived.wait(60)
        store.record(fired(1, rule="nonfinite"))
        with held_up(store):
            time.sleep(0.5)  # by then the next round waits for the writer, to seal the second message
            may_answer.set()
            time.sleep(2.0)
        receiver.wait(2)
        eventually(lambda: [row["state"] for row in store.rows(select(delivery.c.state))] == ["delivered"] * 2)
    assert sorted(message.id for message in receiver.got) == ["msg_1_1", "msg_2_1"]
    assert [row["error"] for row in store.rows(select(attempt))] == [None, None]


def test_a_message_that_arrived_is_not_sent_again_while_that_cannot_be_recorded(store, receiver_factory, monkeypatch):
    monkeypatch.setattr(outbox, "LEASE_S", 0.2)
    monkeypatch.setattr("gradcanary_server.notify.webhook.FIRST_RETRY_S", 0.1)
    conclude, until = outbox.finish_attempt, []

    def refuse_for_a_while(*arguments):
        until.append(time.monotonic() + 2.0)
        if time.monotonic() < until[0]:
            raise StoreUnavailable("Other writers did not finish in time.")
        conclude(*arguments)

    monkeypatch.setattr(outbox, "finish_attempt", refuse_for_a_while)
    receiver = receiver_factory()
    listen(store, receiver)
    store.record(fired(0))
    with delivering(store, SLOW):
        eventually(lambda: [row["state"] for row in store.rows(select(delivery.c.state))] == ["delivered"])
    assert [message.id for message in receiver.got] == ["msg_1_1"]
    assert len(store.rows(select(attempt))) == 1


def test_a_message_that_arrived_before_a_stop_is_recorded(store, receiver_factory, monkeypatch):
    monkeypatch.setattr(dispatchers, "STOP_S", 0.1)
    may_answer = threading.Event()

    def answer_late(handler):
        may_answer.wait(60)
        status(200)(handler)

    receiver = receiver_factory(answer_late)
    listen(store, receiver)
    store.record(fired(0))
    with delivering(store, SLOW) as dispatcher:
        receiver.wait(1)
        with held_up(store):
            may_answer.set()
            time.sleep(0.5)  # by then the answer is there, and its record waits for the writer
            dispatcher.end()
            time.sleep(0.5)  # longer than an attempt without an answer is waited for
    assert [row["state"] for row in store.rows(select(delivery.c.state))] == ["delivered"]
    assert [row["error"] for row in store.rows(select(attempt))] == [None]
    assert len(receiver.got) == 1


HANGS = """
import threading
from gradcanary_server.notify.dispatcher import Dispatcher
from gradcanary_server.rules.config import Pace
begun = threading.Event()
Dispatcher._enqueue = lambda self: begun.set() or threading.Event().wait()
dispatcher = Dispatcher(None, Pace(), "")
dispatcher.start()
begun.wait()
dispatcher.stop(0.1)
"""


def test_a_transaction_that_hangs_does_not_hold_up_the_end_of_the_process():
    subprocess.run([sys.executable, "-c", HANGS], check=True, timeout=30)


def test_a_message_that_is_too_old_is_replaced_by_the_truth(store, receiver_factory, monkeypatch):
    monkeypatch.setattr("gradcanary_server.notify.webhook.FIRST_RETRY_S", 2.5)
    receiver = receiver_factory(status(500))
    listen(store, receiver)
    store.record(fired(0))
    with delivering(store, Pace(wait_s=0.1, interval_s=1.0)):
        receiver.wait(1)
        store.record(*[fired(layer) for layer in range(2, 20)])
        receiver.wait(2)
    assert [(m.id, m.data["counts"]["ever"]) for m in receiver.got[:2]] == [("msg_1_1", 1), ("msg_1_2", 19)]
    assert {m.type for m in receiver.got[:2]} == {"gradient.collapse.opened"}
    # The renewed message is not a reason to ask a failing receiver sooner.
    assert receiver.got[1].at - receiver.got[0].at >= 2.0
    states = store.rows(select(delivery.c.state).order_by(delivery.c.version))
    assert states[0]["state"] == "expired"


def test_a_stop_in_the_middle_repeats_the_message_after_the_start(store, receiver_factory, monkeypatch):
    monkeypatch.setattr("gradcanary_server.notify.webhook.FIRST_RETRY_S", 0.1)
    monkeypatch.setattr("gradcanary_server.notify.dispatcher.STOP_S", 0.2)
    receiver = receiver_factory(hang)
    listen(store, receiver)
    store.record(fired(0))
    with delivering(store, SLOW):
        receiver.wait(1)
    with delivering(store, SLOW):
        receiver.wait(2)
        eventually(lambda: store.rows(select(delivery.c.state))[0]["state"] == "delivered")
    assert len({(message.id, message.body) for message in receiver.got}) == 1


def test_two_dispatchers_on_one_store_send_each_message_once(store, receiver_factory):
    receiver = receiver_factory()
    listen(store, receiver)
    with delivering(store, SLOW), delivering(store, SLOW):
        for rule in ("collapse", "clip_before_unscale", "accumulation_loss"):
            store.record(fired(0, rule=rule))
        receiver.wait(3)
        eventually(lambda: store.rows(select(func.count()).where(delivery.c.state == "delivered"))[0]["count_1"] == 3)
    assert sorted(message.id for message in receiver.got) == ["msg_1_1", "msg_2_1", "msg_3_1"]


def test_no_reminder_is_sent_of_a_detached_run(store, receiver_factory):
    """Nothing measures it: a reminder every day would repeat what may be over."""
    receiver = receiver_factory()
    listen(store, receiver)
    store.record(fired(0))
    with delivering(store, SLOW):
        receiver.wait(1)
        eventually(lambda: store.rows(select(delivery.c.state))[0]["state"] == "delivered")

    def due():
        with store.database.read() as connection:
            later = store.database.now(connection) + 2 * SLOW.remind_s
            return [
                step.due.kind for step in outbox.plan_deliveries(connection, SLOW, later) if isinstance(step, Enqueue)
            ]

    assert due() == ["reminder"]
    with store.database.write() as connection:
        connection.execute(update(run).values(ended="detached"))
    assert due() == []
    store.record(fired(1), fired(2))  # of a batch that came late
    assert due() == ["grew"]


def test_muted_rule_sends_nothing_and_leaves_nothing(store, receiver_factory):
    listen(store, receiver_factory())
    store.record(fired(0, rule="frozen", evidence="measured"), fired(1))
    with store.database.write() as connection:
        now = store.database.now(connection) + 1
        planned = outbox.plan_deliveries(connection, SLOW, now, Rules().muted)
        assert [step.key.incident_id for step in planned] == [2]
    store.close_run()
    with store.database.write() as connection:
        planned = outbox.plan_deliveries(connection, SLOW, now, Rules().muted)
        assert planner.MarkDone(1, 1) in planned


def test_dispatcher_after_its_lease_writes_nothing(store, receiver_factory):
    listen(store, receiver_factory())
    store.record(fired(0))
    with store.database.write() as connection:
        now = store.database.now(connection) + 1
        for step in outbox.plan_deliveries(connection, SLOW, now):
            outbox.apply_step(connection, step, outbox.compose_drafts(connection, [step], URL, now), now)
        [key] = outbox.claimable(connection, now)
        late = outbox.claim_delivery(connection, key, now)
        assert outbox.claim_delivery(connection, key, now) is None
        after = now + outbox.LEASE_S + 1
        current = outbox.claim_delivery(connection, key, after)
        outbox.finish_attempt(connection, late, Attempt(200, 10), after, 0.0)
        assert connection.execute(select(delivery.c.state)).scalar_one() == "pending"
        outbox.finish_attempt(connection, current, Attempt(200, 10), after, 0.0)
        assert connection.execute(select(delivery.c.state)).scalar_one() == "delivered"
        assert connection.execute(select(func.count()).select_from(attempt)).scalar_one() == 1


def test_claimed_delivery_of_another_collector_does_not_expire(store, receiver_factory):
    listen(store, receiver_factory())
    store.record(fired(0))
    with store.database.write() as connection:
        now = store.database.now(connection) + 1
        for step in outbox.plan_deliveries(connection, SLOW, now):
            outbox.apply_step(connection, step, outbox.compose_drafts(connection, [step], URL, now), now)
        [key] = outbox.claimable(connection, now)
        outbox.claim_delivery(connection, key, now)
        outbox.apply_step(connection, outbox.Expire(key), {}, now)
        assert connection.execute(select(delivery.c.state)).scalar_one() == "pending"
        outbox.apply_step(connection, outbox.Expire(key), {}, now + outbox.LEASE_S + 1)
        assert connection.execute(select(delivery.c.state)).scalar_one() == "expired"


def test_a_draft_is_sealed_as_it_was_composed_and_what_changed_since_is_told_next(store, receiver_factory):
    """An incident that changes with each batch would get no message if its drafts had to be of this moment."""
    listen(store, receiver_factory())
    store.record(fired(0))
    drafts = compose(store, 1.0)
    store.record(*[fired(layer, severity="critical") for layer in range(8)])
    [sealed] = seal(store, drafts, 1.0)
    assert json.loads(sealed["body"])["data"]["counts"]["firing"] == sealed["notified_layers"] == 1
    with store.database.write() as connection:
        now = store.database.now(connection) + 1
        claim = outbox.claim_delivery(connection, planner.DeliveryKey(1, 1, 1, 1), now)
        outbox.finish_attempt(connection, claim, Attempt(200, 5), now, 0.0)
    later = 2 * SLOW.interval_s
    _, grown = seal(store, compose(store, later), later)
    assert (grown["kind"], grown["notified_layers"]) == ("grew", 8)


def test_a_draft_that_names_what_is_silenced_by_now_is_not_sealed(store, receiver_factory):
    listen(store, receiver_factory())
    store.record(fired(0), fired(2))
    drafts = compose(store, 1.0)
    with store.database.write() as connection:
        now = store.database.now(connection)
        silences.create_silence(connection, Silence(0, "*", None, r"^blocks\.0\.", now, now + 60, "ada", ""))
    assert seal(store, drafts, 1.0) == []
    [sealed] = seal(store, compose(store, 1.0), 1.0)
    assert json.loads(sealed["body"])["data"]["summary"].endswith(" 1 more parameter is silenced.")


def test_an_incident_is_settled_with_its_text(store):
    store.record(fired(0))
    store.record(resolved(0))
    assert seal(store, {}, 1.0) == []
    assert store.rows(select(incident.c.notifications_done))[0]["notifications_done"] is False, (
        "who reads would compose it for ever"
    )
    with store.database.write() as connection:
        text.store_summaries(connection, text.compose_missing(connection))
    seal(store, {}, 1.0)
    [row] = store.rows(select(incident))
    assert row["notifications_done"]
    assert text.stored_summary(row).endswith(" Recovered at step 900.")


def compose(store, shift_s):
    """Compose the messages that are due so much later."""
    with store.database.read() as connection:
        now = store.database.now(connection) + shift_s
        return outbox.compose_drafts(connection, outbox.plan_deliveries(connection, SLOW, now), URL, now)


def seal(store, drafts, shift_s):
    """Write what is due so much later; return all messages."""
    with store.database.write() as connection:
        now = store.database.now(connection) + shift_s
        for step in outbox.plan_deliveries(connection, SLOW, now, run_id=store.run_id):
            outbox.apply_step(connection, step, drafts, now)
    return store.rows(select(delivery).order_by(delivery.c.version))


def test_changing_incident_is_planned_in_the_next_round(postgres_server, receiver_factory):
    store = Store(postgres_server.create_database())
    listen(store, receiver_factory())
    store.record(fired(0))
    store.record(resolved(0))

    def planned():
        with store.database.write() as connection:
            return outbox.plan_deliveries(connection, SLOW, store.database.now(connection), run_id=store.run_id)

    with store.database.write() as changing:
        changing.execute(update(incident).values(ever_firing=2))
        assert planned() == []
    assert len(planned()) == 1
    store.database.close()


def test_a_round_that_fails_does_not_end_the_loop(store, receiver_factory, monkeypatch, caplog):
    receiver = receiver_factory()
    listen(store, receiver)
    store.record(fired(0))
    plan = outbox.plan_deliveries
    failures = [RuntimeError("disk"), RuntimeError("disk")]

    def failing(*arguments, **options):
        if failures:
            raise failures.pop()
        return plan(*arguments, **options)

    monkeypatch.setattr(outbox, "plan_deliveries", failing)
    with delivering(store, SLOW):
        receiver.wait(1)
    assert "a round of the dispatcher failed" in caplog.text


@pytest.mark.postgres
def test_a_restart_of_postgresql_delays_messages_and_is_told_in_a_line(receiver_factory, caplog):
    receiver = receiver_factory()
    with postgres.running() as server:
        store = Store(server.create_database())
        listen(store, receiver)
        with delivering(store, SLOW):
            store.record(fired(0))
            receiver.wait(1)
            eventually(lambda: store.rows(select(delivery.c.state))[0]["state"] == "delivered")
            server.stop(signal.SIGQUIT)
            time.sleep(2)
            server.start()
            store.record(fired(0, rule="nonfinite"))
            receiver.wait(2)
        store.database.close()
    assert [message.type for message in receiver.got] == ["gradient.collapse.opened", "gradient.nonfinite.opened"]
    assert caplog.text.count("cannot be reached") == 1
    assert "Traceback" not in caplog.text


def test_settled_incidents_are_not_planned_again(store):
    store.record(fired(0))
    store.record(resolved(0))
    with delivering(store, SLOW):
        eventually(lambda: store.rows(select(incident.c.notifications_done))[0]["notifications_done"])
    assert store.rows(select(delivery)) == []


def test_a_fault_and_its_effects_are_one_message_and_what_outlives_it_is_sent_then(store, receiver_factory):
    receiver = receiver_factory()
    listen(store, receiver)
    store.record(fired(0, rule="explosion"))
    store.record(fired(0), fired(2))
    store.record(fired(1, rule="vanished"))
    with delivering(store, QUICK):
        receiver.wait(1)
        time.sleep(1.0)
        [message] = receiver.got
        assert message.type == "gradient.explosion.opened"
        assert [(other["incident"], other["rule"]) for other in message.data["also"]] == [
            (2, "collapse"),
            (3, "vanished"),
        ]
        assert message.data["also"][0]["headline"].startswith("2 of 300 parameters collapsed")
        assert message.data["caused_by"] is None
        store.record(resolved(1, rule="vanished"))
        store.record(resolved(0, rule="explosion"))
        receiver.wait(3)
    last = {message.type: message.data for message in receiver.got[1:]}
    assert set(last) == {"gradient.collapse.opened", "gradient.explosion.resolved"}
    assert last["gradient.collapse.opened"]["caused_by"] == 1


def test_the_end_of_a_run_is_sent_once_to_who_asked_for_it(store, receiver_factory):
    plain, closing = receiver_factory(), receiver_factory()
    listen(store, plain)
    with store.database.write() as connection:
        configured = endpoints.ConfiguredEndpoint(closing.url, sends_ended=True)
        endpoints.upsert_configured(connection, configured, None, store.database.now(connection))
    store.record(fired(0, rule="nonfinite"))
    store.record(fired(0), fired(2))
    pace = Pace(wait_s=0.1, interval_s=1.0)
    with delivering(store, pace):
        plain.wait(1)
        closing.wait(1)
        store.close_run()
        closing.wait(2)
        eventually(lambda: all(row["notifications_done"] for row in store.rows(select(incident.c.notifications_done))))
        time.sleep(1.5)
    assert [message.type for message in plain.got] == ["gradient.nonfinite.opened"]
    assert [message.type for message in closing.got] == ["gradient.nonfinite.opened", "gradient.nonfinite.ended"]
    assert closing.got[1].data["state"] == "ended"
    assert closing.got[1].data["title"].startswith("[ended] sdxl: ")


def test_a_silence_that_begins_after_an_incident_was_over_does_not_change_its_end(store, receiver_factory):
    listen(store, receiver_factory())
    store.record(fired(0), fired(2))
    seal(store, compose(store, 1.0), 1.0)
    with store.database.write() as connection:
        now = store.database.now(connection) + 1
        claim = outbox.claim_delivery(connection, planner.DeliveryKey(1, 1, 1, 1), now)
        outbox.finish_attempt(connection, claim, Attempt(200, 5), now, 0.0)
    store.record(resolved(0), resolved(2))
    with store.database.write() as connection:
        now = store.database.now(connection) + 1.0
        for expression in (r"^blocks\.0\.", None):
            silence = Silence(0, "*", None, expression, now, now + 9 * SLOW.interval_s, "ada", "")
            silences.create_silence(connection, silence)
    later = 2 * SLOW.interval_s
    _, last = seal(store, compose(store, later), later)
    body = json.loads(last["body"])["data"]
    assert (last["kind"], body["counts"]["ever"], len(body["worst"])) == ("resolved", 2, 2)
    assert "silenced" not in body["summary"]
