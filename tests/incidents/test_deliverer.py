"""The delivery loop on a real store and real receivers."""

import signal
import time
from contextlib import contextmanager

import postgres
import pytest
from changes import fired, resolved
from receivers import close_mid_answer, flood, hang, status
from sqlalchemy import func, select, update
from stores import Store
from waiting import eventually

from gradcanary_server import attempts, deliveries, endpoints
from gradcanary_server import deliverer as deliverers
from gradcanary_server.deliverer import Deliverer
from gradcanary_server.pace import Pace
from gradcanary_server.rules import Rules
from gradcanary_server.schema import attempt, delivery, endpoint, incident

QUICK = Pace(wait_s=0.1, interval_s=3.0)
SLOW = Pace(wait_s=0.1, interval_s=600.0)
URL = "http://127.0.0.1:8787"


def listen(store, receiver, secret=None):
    with store.database.write() as connection:
        return endpoints.ensure_operator_endpoint(connection, receiver.url, secret, store.database.now(connection))


@contextmanager
def delivering(store, pace):
    deliverer = Deliverer(store.database, pace, URL)
    deliverer.start()
    try:
        yield deliverer
    finally:
        deliverer.stop()


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


def test_what_is_due_is_written_some_at_a_time(store, receiver_factory, monkeypatch):
    """Nobody else can write meanwhile, and there may be thousands."""
    monkeypatch.setattr(deliverers, "MAX_STEPS", 1)
    receiver = receiver_factory()
    listen(store, receiver)
    store.record(fired(0), fired(1, rule="nonfinite"), fired(2, rule="explosion"))
    with delivering(store, SLOW):
        receiver.wait(3)
    moments = {row["sealed"] for row in store.rows(select(delivery.c.sealed))}
    assert len(moments) == 3, "each is of a transaction of its own"


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
        eventually(lambda: store.rows(select(incident.c.settled))[0]["settled"])
        store.record(fired(0, step=1000))
        receiver.wait(4)
    assert [m.type.rsplit(".", 1)[1] for m in receiver.got] == ["opened", "grew", "resolved", "reopened"]
    assert [m.id for m in receiver.got] == [f"msg_1_{version}" for version in (1, 2, 3, 4)]
    gaps = [after.at - before.at for before, after in zip(receiver.got, receiver.got[1:], strict=False)]
    assert min(gaps) >= QUICK.interval_s - 0.1
    assert gaps[2] >= 2 * QUICK.interval_s - 0.1


def test_a_new_endpoint_hears_of_what_is_open_and_not_of_what_was(store, receiver_factory):
    store.record(fired(0))
    store.close_run()
    store.record(fired(1, rule="nonfinite"), launch_no=1)
    receiver = receiver_factory()
    secret = listen(store, receiver)
    with delivering(store, SLOW):
        receiver.wait(1)
        eventually(lambda: {row["settled"] for row in store.rows(select(incident.c.settled))} == {True, False})
    assert [message["type"] for message in receiver.verified(secret)] == ["gradient.nonfinite.opened"]


def test_information_is_not_sent(store, receiver_factory):
    receiver = receiver_factory()
    listen(store, receiver)
    store.record(fired(0, severity="information", evidence="late"), fired(None, rule="nonfinite"))
    with delivering(store, QUICK):
        receiver.wait(1)
        store.record(resolved(0))
        eventually(lambda: store.rows(select(incident.c.settled).order_by(incident.c.incident_id))[0]["settled"])
    assert {message.type for message in receiver.got} == {"gradient.nonfinite.opened"}


@pytest.mark.parametrize(
    ("fault", "code"),
    [(status(500), 500), (status(302, Location="/elsewhere"), 302), (close_mid_answer, None)],
    ids=["500", "redirect", "reset"],
)
def test_a_failed_attempt_is_made_again_with_the_same_bytes(store, receiver_factory, monkeypatch, fault, code):
    monkeypatch.setattr("gradcanary_server.webhooks.FIRST_RETRY_S", 0.2)
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
    monkeypatch.setattr("gradcanary_server.webhooks.FIRST_RETRY_S", 0.01)
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
    fails(store, since_s=endpoints.GIVE_UP_S, last_s=3_600)
    store.record(fired(0))
    with delivering(store, SLOW):
        eventually(lambda: store.rows(select(endpoint.c.disabled))[0]["disabled"] is not None)
    assert "5 days" in store.rows(select(endpoint.c.disabled_why))[0]["disabled_why"]


def fails(store, *, since_s, last_s):
    with store.database.write() as connection:
        now = store.database.now(connection)
        connection.execute(update(endpoint).values(failing_since=now - since_s, last_failure=now - last_s))


def test_failures_of_five_days_ago_disable_nobody(store, receiver_factory, monkeypatch):
    """Between them nothing was to be said, or the clock was set."""
    monkeypatch.setattr("gradcanary_server.webhooks.FIRST_RETRY_S", 0.1)
    receiver = receiver_factory(*[status(500)] * 3)
    listen(store, receiver)
    fails(store, since_s=endpoints.GIVE_UP_S + 60, last_s=endpoints.GIVE_UP_S)
    store.record(fired(0))
    with delivering(store, SLOW):
        receiver.wait(4)
        eventually(lambda: store.rows(select(delivery.c.state))[0]["state"] == "delivered")
    assert store.rows(select(endpoint.c.disabled))[0]["disabled"] is None


def test_who_is_enabled_again_hears_the_end_of_what_it_was_told(store, receiver_factory):
    receiver = receiver_factory()
    listen(store, receiver)
    store.record(fired(0))
    with delivering(store, QUICK):
        receiver.wait(1)
        eventually(lambda: store.rows(select(delivery.c.state))[0]["state"] == "delivered")
        with store.database.write() as connection:
            endpoints.disable_others(connection, [], store.database.now(connection))
        store.record(resolved(0))
        eventually(lambda: store.rows(select(incident.c.settled))[0]["settled"])
        listen(store, receiver)
        receiver.wait(2)
        eventually(lambda: store.rows(select(incident.c.settled))[0]["settled"])
    assert [message.type for message in receiver.got] == ["gradient.collapse.opened", "gradient.collapse.resolved"]


def test_a_hanging_receiver_holds_up_nobody(store, receiver_factory, monkeypatch):
    monkeypatch.setattr("gradcanary_server.webhooks.TIMEOUT_S", 2.0)
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


def test_a_message_that_is_too_old_is_replaced_by_the_truth(store, receiver_factory, monkeypatch):
    monkeypatch.setattr("gradcanary_server.webhooks.FIRST_RETRY_S", 2.5)
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
    monkeypatch.setattr("gradcanary_server.webhooks.FIRST_RETRY_S", 0.1)
    monkeypatch.setattr("gradcanary_server.deliverer.STOP_S", 0.2)
    receiver = receiver_factory(hang)
    listen(store, receiver)
    store.record(fired(0))
    with delivering(store, SLOW):
        receiver.wait(1)
    with delivering(store, SLOW):
        receiver.wait(2)
        eventually(lambda: store.rows(select(delivery.c.state))[0]["state"] == "delivered")
    assert len({(message.id, message.body) for message in receiver.got}) == 1


def test_two_deliverers_on_one_store_send_each_message_once(store, receiver_factory):
    receiver = receiver_factory()
    listen(store, receiver)
    with delivering(store, SLOW), delivering(store, SLOW):
        for rule in ("collapse", "nonfinite", "scale_drop"):
            store.record(fired(0, rule=rule))
        receiver.wait(3)
        eventually(lambda: store.rows(select(func.count()).where(delivery.c.state == "delivered"))[0]["count_1"] == 3)
    assert sorted(message.id for message in receiver.got) == ["msg_1_1", "msg_2_1", "msg_3_1"]


def test_of_a_muted_rule_nobody_is_told_and_its_end_leaves_nothing_to_do(store, receiver_factory):
    listen(store, receiver_factory())
    store.record(fired(0, rule="unused", evidence=None), fired(1))
    with store.database.write() as connection:
        now = store.database.now(connection) + 1
        planned = deliveries.plan(connection, SLOW, now, Rules().muted)
        assert [step.key.incident for step in planned] == [2]
    store.close_run()
    with store.database.write() as connection:
        planned = deliveries.plan(connection, SLOW, now, Rules().muted)
        assert deliveries.Settle(1) in planned


def test_who_comes_back_after_its_lease_writes_nothing(store, receiver_factory):
    listen(store, receiver_factory())
    store.record(fired(0))
    with store.database.write() as connection:
        now = store.database.now(connection) + 1
        for step in deliveries.plan(connection, SLOW, now):
            deliveries.carry_out(connection, step, URL, now)
        [key] = deliveries.claimable(connection, now)
        late = attempts.claim(connection, key, now)
        assert attempts.claim(connection, key, now) is None
        after = now + attempts.LEASE_S + 1
        current = attempts.claim(connection, key, after)
        attempts.conclude(connection, late, 200, 10, after, 0.0)
        assert connection.execute(select(delivery.c.state)).scalar_one() == "pending"
        attempts.conclude(connection, current, 200, 10, after, 0.0)
        assert connection.execute(select(delivery.c.state)).scalar_one() == "delivered"
        assert connection.execute(select(func.count()).select_from(attempt)).scalar_one() == 1


def test_what_somebody_else_has_claimed_does_not_expire(store, receiver_factory):
    listen(store, receiver_factory())
    store.record(fired(0))
    with store.database.write() as connection:
        now = store.database.now(connection) + 1
        for step in deliveries.plan(connection, SLOW, now):
            deliveries.carry_out(connection, step, URL, now)
        [key] = deliveries.claimable(connection, now)
        attempts.claim(connection, key, now)
        deliveries.carry_out(connection, deliveries.Expire(key), URL, now)
        assert connection.execute(select(delivery.c.state)).scalar_one() == "pending"
        deliveries.carry_out(connection, deliveries.Expire(key), URL, now + attempts.LEASE_S + 1)
        assert connection.execute(select(delivery.c.state)).scalar_one() == "expired"


def test_what_is_being_changed_has_its_turn_in_the_next_round(postgres_server, receiver_factory):
    store = Store(postgres_server.create_database())
    listen(store, receiver_factory())
    store.record(fired(0))
    store.record(resolved(0))

    def planned():
        with store.database.write() as connection:
            return deliveries.plan(connection, SLOW, store.database.now(connection), holding=True)

    with store.database.write() as changing:
        changing.execute(update(incident).values(ever=2))
        assert planned() == []
    assert len(planned()) == 1
    store.database.close()


def test_a_round_that_fails_does_not_end_the_loop(store, receiver_factory, monkeypatch, caplog):
    receiver = receiver_factory()
    listen(store, receiver)
    store.record(fired(0))
    plan = deliveries.plan
    failures = [RuntimeError("disk"), RuntimeError("disk")]

    def failing(*arguments, **options):
        if failures:
            raise failures.pop()
        return plan(*arguments, **options)

    monkeypatch.setattr(deliveries, "plan", failing)
    with delivering(store, SLOW):
        receiver.wait(1)
    assert "a round of deliveries failed" in caplog.text


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


def test_what_is_settled_costs_nothing_more(store):
    store.record(fired(0))
    store.record(resolved(0))
    with delivering(store, SLOW):
        eventually(lambda: store.rows(select(incident.c.settled))[0]["settled"])
    assert store.rows(select(delivery)) == []
