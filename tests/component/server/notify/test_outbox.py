"""Messages that somebody wants sent once more, in the tables: what it changes, and what it does not."""

import re

import pytest
from sqlalchemy import insert, select, update

from gradcanary_server.api import endpoints as api_endpoints
from gradcanary_server.errors import RequestError
from gradcanary_server.incidents import silences
from gradcanary_server.incidents.silences import Silence
from gradcanary_server.notify import endpoints as notify_endpoints
from gradcanary_server.notify import outbox
from gradcanary_server.notify.planner import DeliveryKey, Enqueue, Expire
from gradcanary_server.notify.sender import Attempt
from gradcanary_server.notify.webhook import TransportError
from gradcanary_server.rules.config import Pace
from gradcanary_server.storage.schema import PAGE_RUNS, attempt, delivery, endpoint, incident, run
from support.server.asked import counted
from support.server.transitions import fired

PACE = Pace(wait_s=0.0, interval_s=900.0)
FIRST = DeliveryKey(1, 1, 1, 1)
NO = TransportError("answered 500", status=500)
LATE = TransportError("no answer within 10 s", maybe_delivered=True)


@pytest.fixture
def told(store):
    """Return a connection to a store with an incident that one endpoint is to be told of, and its time."""
    store.record(fired(0))
    with store.database.write() as connection:
        now = store.database.now(connection)
        notify_endpoints.upsert_configured(
            connection, notify_endpoints.ConfiguredEndpoint("http://127.0.0.1:9/hook"), None, now - 10
        )
        yield connection, now + 1


def seal(connection, now):
    """Write what is due; return the steps."""
    steps = outbox.plan_deliveries(connection, PACE, now)
    for step in steps:
        outbox.apply_step(connection, step, outbox.compose_drafts(connection, [step], "", now), now)
    return steps


def send(connection, now, result=200):
    [key] = outbox.claimable(connection, now)
    outbox.finish_attempt(connection, outbox.claim_delivery(connection, key, now), Attempt(result, 5), now, 0.0)


def again(connection, now, result=200, key=FIRST):
    claim = outbox.claim_for_redelivery(connection, *key[1:], now)
    outbox.finish_attempt(connection, claim, Attempt(result, 5), now, 0.0)
    return claim


def states(connection):
    return list(connection.scalars(select(delivery.c.state).order_by(delivery.c.version)))


def expire(connection, now):
    seal(connection, now)
    send(connection, now, NO)
    steps = seal(connection, now + PACE.interval_s)
    assert steps == [Expire(FIRST)]


def test_late_arrival_counts_as_sent(told):
    connection, now = told
    expire(connection, now)
    connection.execute(
        update(incident).values(state="resolved", resolved=now, resolution="recovered", notifications_done=True)
    )
    assert again(connection, now + 1000).message.id == "msg_1_1"
    assert states(connection) == ["delivered"]
    assert seal(connection, now + 1000 + PACE.interval_s - 1) == []
    [step] = seal(connection, now + 1000 + PACE.interval_s)
    assert (type(step), step.due.kind, step.key.version) == (Enqueue, "resolved", 2)


def test_an_old_message_that_arrives_after_a_newer_one_is_not_the_last_word(told):
    connection, now = told
    expire(connection, now)
    seal(connection, now + PACE.interval_s)
    send(connection, now + PACE.interval_s)
    connection.execute(update(incident).values(state="resolved", resolved=now, resolution="recovered"))
    seal(connection, now + 3 * PACE.interval_s)
    send(connection, now + 3 * PACE.interval_s)
    assert states(connection) == ["expired", "delivered", "delivered"]
    again(connection, now + 4 * PACE.interval_s)
    [step] = seal(connection, now + 6 * PACE.interval_s)
    assert (type(step), step.due.kind, step.key.version) == (Enqueue, "resolved", 4)


def test_sealed_message_of_a_disabled_endpoint_is_not_sent(told):
    connection, now = told
    seal(connection, now)
    connection.execute(update(endpoint).values(disabled=now))
    assert outbox.claimable(connection, now) == []
    assert outbox.claim_delivery(connection, FIRST, now) is None
    connection.execute(update(endpoint).values(disabled=None))
    assert outbox.claim_delivery(connection, FIRST, now) is not None


def test_failed_redelivery_changes_nothing(told):
    connection, now = told
    expire(connection, now)
    before = connection.execute(select(delivery.c.next_attempt)).scalar_one()
    again(connection, now + 1000, NO)
    row = connection.execute(select(delivery)).mappings().one()
    assert (row["state"], row["next_attempt"], row["attempts"]) == ("expired", before, 2)
    assert outbox.claimable(connection, now + 10**6) == [], "nobody tries it by itself"
    assert connection.execute(select(endpoint.c.last_error)).scalar_one() == "answered 500"


def test_a_second_copy_of_what_arrived_changes_nothing_that_is_told(told):
    connection, now = told
    seal(connection, now)
    send(connection, now)
    again(connection, now + 100)
    row = connection.execute(select(delivery)).mappings().one()
    assert (row["state"], row["delivered"], row["attempts"]) == ("delivered", now, 2)
    assert connection.scalars(select(attempt.c.status).order_by(attempt.c.number)).all() == [200, 200]
    assert seal(connection, now + 100) == []


def test_redelivery_tries_a_waiting_message_now(told):
    connection, now = told
    seal(connection, now)
    send(connection, now, NO)
    assert outbox.claimable(connection, now + 1) == []
    again(connection, now + 1)
    assert states(connection) == ["delivered"]


def test_redelivery_refuses_claimed_messages_and_disabled_endpoints(told):
    connection, now = told
    seal(connection, now)
    claim = outbox.claim_delivery(connection, FIRST, now)
    with pytest.raises(RequestError, match="at this moment"):
        outbox.claim_for_redelivery(connection, *FIRST[1:], now + 1)
    outbox.finish_attempt(
        connection, claim, Attempt(TransportError("answered 410", permanent=True, status=410), 5), now, 0.0
    )
    row = connection.execute(select(endpoint)).mappings().one()
    assert (row["disabled_by"], row["disabled_reason"], states(connection)) == (
        "failures",
        "answered 410",
        ["disabled"],
    )
    with pytest.raises(RequestError, match="enable it first"):
        outbox.claim_for_redelivery(connection, *FIRST[1:], now + 1)
    notify_endpoints.enable_endpoint(connection, row, now + 2)
    again(connection, now + 3)
    assert states(connection) == ["delivered"]
    with pytest.raises(RequestError, match="no such delivery"):
        outbox.claim_for_redelivery(connection, 1, 1, 2, now + 4)


@pytest.mark.parametrize("result", [200, LATE])
def test_arrival_during_disabling_is_followed_by_the_end(told, result):
    connection, now = told
    seal(connection, now)
    claim = outbox.claim_delivery(connection, FIRST, now)
    notify_endpoints.disable_endpoint(connection, 1, now + 1, "asked for", "api")
    outbox.finish_attempt(connection, claim, Attempt(result, 5), now + 2, 0.0)
    assert states(connection) == ["delivered" if result == 200 else "disabled"]
    connection.execute(
        update(incident).values(state="resolved", resolved=now, resolution="recovered", notifications_done=True)
    )
    notify_endpoints.enable_endpoint(connection, connection.execute(select(endpoint)).mappings().one(), now + 3)
    [step] = seal(connection, now + 2 + PACE.interval_s)
    assert (type(step), step.due.kind) == (Enqueue, "resolved")


def test_a_second_try_that_certainly_failed_leaves_the_doubt_of_the_first(told):
    connection, now = told
    seal(connection, now)
    send(connection, now, LATE)
    again(connection, now + 10, NO)
    connection.execute(update(incident).values(state="resolved", resolved=now, resolution="recovered"))
    assert [type(step) for step in seal(connection, now + PACE.interval_s)] == [Expire]
    [step] = seal(connection, now + PACE.interval_s)
    assert (step.due.kind, step.key.version) == ("resolved", 2)


def test_an_end_that_may_have_arrived_is_told_until_it_has(told):
    connection, now = told
    seal(connection, now)
    send(connection, now)
    connection.execute(update(incident).values(state="resolved", resolved=now, resolution="recovered"))
    seal(connection, now + PACE.interval_s)
    send(connection, now + PACE.interval_s, LATE)
    assert [type(step) for step in seal(connection, now + 2 * PACE.interval_s)] == [Expire]
    [step] = seal(connection, now + 2 * PACE.interval_s)
    assert (step.due.kind, step.key.version) == ("resolved", 3)


def test_a_copy_that_may_have_come_after_the_end_is_followed_by_it_again(told):
    connection, now = told
    expire(connection, now)
    seal(connection, now + PACE.interval_s)
    send(connection, now + PACE.interval_s)
    connection.execute(update(incident).values(state="resolved", resolved=now, resolution="recovered"))
    seal(connection, now + 3 * PACE.interval_s)
    send(connection, now + 3 * PACE.interval_s)
    assert [type(step).__name__ for step in seal(connection, now + 4 * PACE.interval_s)] == ["MarkDone"]
    again(connection, now + 5 * PACE.interval_s, LATE)
    [step] = seal(connection, now + 6 * PACE.interval_s)
    assert (step.due.kind, step.key.version) == ("resolved", 4)


def test_late_result_after_two_redeliveries_writes_nothing(told):
    connection, now = told
    expire(connection, now)
    late = outbox.claim_for_redelivery(connection, *FIRST[1:], now + 1000)
    assert seal(connection, now + 1000) == [], "while it is under way nothing else is said"
    after = now + 1001 + outbox.LEASE_S
    again(connection, after)
    outbox.finish_attempt(connection, late, Attempt(NO, 5), after, 0.0)
    assert (states(connection), len(connection.execute(select(attempt)).all())) == (["delivered"], 2)


def test_the_log_comes_in_pages(told, monkeypatch):
    connection, now = told
    monkeypatch.setattr(api_endpoints, "PAGE", 2)
    for version in range(1, 6):
        row = {
            "run_id": 1,
            "incident_id": 1,
            "endpoint_id": 1,
            "version": version,
            "kind": "grew",
            "state": "delivered",
            "body": b"",
        }
        numbers = {
            "notified_layers": 1,
            "notified_reopens": 0,
            "notified_severity": "critical",
            "next_attempt": now,
            "attempts": 0,
        }
        connection.execute(delivery.insert().values(**row, **numbers, enqueued_at=now + version // 3, fence=0))
    seen, before = [], None
    while True:
        page = api_endpoints.delivery_page(connection, 1, before)
        seen.append([each["version"] for each in page["deliveries"]])
        before = page["next"]
        if before is None:
            break
    assert seen == [[5, 4], [3, 2], [1]]


def test_an_incident_that_ended_before_its_first_message_arrived_is_not_told(told):
    connection, now = told
    expire(connection, now)
    connection.execute(update(incident).values(state="resolved", resolved=now, resolution="recovered"))
    assert [type(step).__name__ for step in seal(connection, now + 1000)] == ["MarkDone"]


def test_without_an_endpoint_what_is_open_is_not_read(store):
    def rows():
        with store.database.read() as connection, counted(store.database) as asked:
            assert outbox.plan_deliveries(connection, PACE, store.database.now(connection) + 1) == []
        return asked.rows

    store.record(fired(0))
    few = rows()
    store.record(fired(0, rule="explosion"), fired(1, rule="vanished"))
    assert rows() == few


def test_no_statement_names_all_runs_that_messages_are_to_come_of(told, store):
    """A database takes so many parameters of a statement and no more: then no message would be sent again."""
    connection, now = told
    [known] = connection.execute(select(incident)).mappings()
    [of] = connection.execute(select(run)).mappings()
    numbers = range(2, PAGE_RUNS + 100)
    connection.execute(insert(run), [{**of, "run_id": number, "name": f"run-{number}"} for number in numbers])
    both = [
        {**known, "run_id": each, "incident_id": 2 * each, "rule": "explosion", "opened_step": 1} for each in numbers
    ]
    both += [{**known, "run_id": number, "incident_id": 2 * number + 1} for number in numbers]
    connection.execute(insert(incident), both)
    silences.create_silence(connection, Silence(0, "other", None, None, now, now + 900.0, "ada", ""))
    with counted(store.database) as asked:
        steps = outbox.plan_deliveries(connection, PACE, now)
    found = [step.key.incident_id for step in steps if isinstance(step, Enqueue)]
    assert found == [1, *(each["incident_id"] for each in sorted(both, key=lambda each: each["incident_id"]))]
    assert asked.parameters <= PAGE_RUNS


def test_what_one_run_is_planned_by_names_it_in_each_query(told, store):
    """Else a node of a cluster that is away kept the messages about runs of all others."""
    connection, now = told
    with counted(store.database) as asked:
        assert outbox.plan_deliveries(connection, PACE, now, run_id=1)
    texts = [text for text in asked.texts if "incident" in text]
    assert len(texts) > 1
    assert [text for text in texts if text.count("SELECT") > len(re.findall(r"run_id = [%?]", text))] == []
