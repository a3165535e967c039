"""A run that is deleted while somebody thinks it ill: whoever heard of an incident hears that it is over, and when."""

import pytest
from sqlalchemy import select, update

from gradcanary_server.api import runs as api_runs
from gradcanary_server.incidents import silences
from gradcanary_server.incidents.silences import Silence
from gradcanary_server.notify import endpoints
from gradcanary_server.notify.outbox import FINAL_WAIT_S
from gradcanary_server.rules.config import Pace, Rules
from gradcanary_server.storage.schema import delivery, endpoint, incident, metadata, run
from support.receivers import status
from support.server.clocks import URL, delivering, listen
from support.server.transitions import fired, resolved
from support.waiting import eventually

PACE = Pace()
GATHERED_S = PACE.wait_s + 1.0


def delete(store):
    with store.database.write() as connection:
        api_runs.end_and_delete(connection, "sdxl", Rules(), URL, store.database.now(connection))
    assert store.rows(select(run)) == [] == store.rows(select(incident)), "it goes at once"


def test_deleted_run_sends_its_resolutions_and_then_goes(new_store, receiver_factory):
    store, receiver = new_store(), receiver_factory()
    listen(store, receiver, sends_ended=True)
    store.record(fired(0), fired(1, rule="accumulation_loss"))
    with delivering(store):
        store.database.wait(GATHERED_S)
        receiver.wait(2)
        store.record(resolved(1, rule="accumulation_loss"))  # of which nobody has heard yet
        store.database.wait(60.0)
        delete(store)
        store.database.wait(PACE.interval_s - 120.0)
        assert len(receiver.got) == 2, "messages keep their distance"
    with delivering(store), delivering(store):  # another process goes on, and a replica beside it
        store.database.wait(120.0)
        receiver.wait(4)
        eventually(lambda: store.rows(select(delivery)) == [])
        store.database.wait(PACE.remind_s)
    last = receiver.got[2:]
    ends = {"gradient.collapse.ended": "run_deleted", "gradient.accumulation_loss.resolved": "recovered"}
    assert {message.type: message.data["resolution"] for message in last} == ends
    assert len(receiver.got) == 4
    for message in last:
        said = message.data
        assert (said["run"], said["state"]) == ("sdxl", message.type.rpartition(".")[2])
        assert "blocks" in said["worst"][0]["name"], "layers have their names"
        assert ("the run was deleted" in said["summary"]) is ("collapse" in message.type)
    left = [table.name for table in metadata.sorted_tables if store.rows(select(table))]
    assert set(left) <= {
        "alembic_version",
        "counter",
        "deleted_run",  # until the compactor has deleted its measurements
        "endpoint",
        "session_tombstone",
        "collector_heartbeat",
    }


@pytest.mark.parametrize("heard", ["nobody to hear", "too short", "not begun", "not taken", "the end of the run"])
def test_deleted_run_without_messages_sends_nothing(new_store, receiver_factory, monkeypatch, heard):
    store, receiver = new_store(), receiver_factory(*[status(500)] * (heard == "not taken"))
    if heard != "nobody to hear":
        listen(store, receiver, sends_ended=True)
    store.record(fired(0))
    if heard == "not begun":
        monkeypatch.setattr("gradcanary_server.notify.dispatcher.Dispatcher._claim", lambda *_: [])
    with delivering(store):
        if heard in ("nobody to hear", "not begun", "not taken"):
            store.database.wait(GATHERED_S)
        if heard == "the end of the run":
            store.close_run()  # which is told, after a while
        delete(store)
        monkeypatch.undo()
        assert store.rows(select(delivery)) == []
        store.database.wait(2 * PACE.interval_s)
    assert [each for each in receiver.got if each.is_taken] == []


def test_a_deleted_run_is_no_news_where_its_end_was_not_asked_for(new_store, receiver_factory):
    store, receiver = new_store(), receiver_factory()
    listen(store, receiver)
    store.record(fired(0))
    with delivering(store):
        store.database.wait(GATHERED_S)
        receiver.wait(1)
        delete(store)
        assert store.rows(select(delivery)) == []
        store.database.wait(2 * PACE.interval_s)
    assert len(receiver.got) == 1


def test_a_message_that_may_have_arrived_is_followed_by_the_end(new_store, receiver_factory):
    """Whoever is behind a gateway that got no answer may have read it."""
    store, receiver = new_store(), receiver_factory(status(504))
    listen(store, receiver, sends_ended=True)
    store.record(fired(0))
    with delivering(store):
        store.database.wait(GATHERED_S)
        receiver.wait(1)
        delete(store)
        store.database.wait(60.0)
        assert len(receiver.got) == 1, "nothing of a run that is not there begins any more"
        store.database.wait(PACE.interval_s)
        receiver.wait(2)
        eventually(lambda: store.rows(select(delivery)) == [])
    assert [message.type.rsplit(".", 1)[1] for message in receiver.got] == ["opened", "ended"]


def test_unsent_incidents_of_a_deleted_run_are_not_sent(new_store, receiver_factory):
    """One message at a time goes to an endpoint: another one may have been told meanwhile."""
    store, receivers = new_store(), [receiver_factory(), receiver_factory()]
    for each in receivers:
        listen(store, each, sends_ended=True)
    store.record(fired(0))
    store.close_run()
    with delivering(store):
        store.database.wait(GATHERED_S)
        assert [len(each.wait(1)) for each in receivers] == [1, 1]
    with store.database.write() as connection:
        unsent = {"state": "pending", "fence": 0, "attempts": 0, "delivered": None}
        connection.execute(update(delivery).where(delivery.c.endpoint_id == 2).values(**unsent))
    delete(store)
    with delivering(store):
        store.database.wait(PACE.interval_s + 1.0)
        receivers[0].wait(2)
        eventually(lambda: store.rows(select(delivery)) == [])
    assert len(receivers[1].got) == 1


def test_a_silence_of_the_run_covers_its_last_word(new_store, receiver_factory):
    store, receiver = new_store(), receiver_factory()
    listen(store, receiver, sends_ended=True)
    store.record(fired(0))
    with delivering(store):
        store.database.wait(GATHERED_S)
        with store.database.write() as connection:
            now = store.database.now(connection)
            silences.create_silence(connection, Silence(0, "sd*", None, None, now, now + 2 * PACE.interval_s, "me", ""))
        delete(store)
        store.database.wait(1.5 * PACE.interval_s)
        assert len(receiver.got) == 1
        store.database.wait(PACE.interval_s)
        receiver.wait(2)
    assert receiver.got[1].data["resolution"] == "run_deleted"


@pytest.mark.parametrize("is_first", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("is_removed", [True, False], ids=["removed", "enabled"])
def test_an_endpoint_that_is_disabled_gets_the_end_when_it_is_enabled(
    new_store, receiver_factory, is_first, is_removed
):
    store, receiver = new_store(), receiver_factory()
    listen(store, receiver, sends_ended=True)
    store.record(fired(0))
    with delivering(store):
        store.database.wait(GATHERED_S)
        receiver.wait(1)
        if not is_first:
            delete(store)
        with store.database.write() as connection:
            endpoints.disable_endpoint(connection, 1, store.database.now(connection), "asked for", "api")
        if is_first:
            delete(store)
        store.database.wait(2 * PACE.interval_s)
        assert len(receiver.got) == 1
        with store.database.write() as connection:
            now = store.database.now(connection)
            if is_removed:
                endpoints.delete_endpoint(connection, 1, now)
            else:
                endpoints.enable_endpoint(connection, connection.execute(select(endpoint)).mappings().one(), now)
        store.database.wait(2 * PACE.interval_s)
        assert store.rows(select(delivery)) == []
    ends = [message.data["resolution"] for message in receiver.got[1:]]
    assert ends == ([] if is_removed else ["run_deleted"])


def test_an_end_that_waited_a_month_for_its_endpoint_goes_with_the_next_deletion(new_store, receiver_factory):
    store, receiver = new_store(), receiver_factory()
    listen(store, receiver, sends_ended=True)
    store.record(fired(0))
    with delivering(store):
        store.database.wait(GATHERED_S)
        receiver.wait(1)
        with store.database.write() as connection:
            endpoints.disable_endpoint(connection, 1, store.database.now(connection), "asked for", "api")
        delete(store)
        api_runs.drop_old_messages(store.database)
        assert [row.kind for row in store.rows(select(delivery))] == ["ended"]
        store.database.wait(FINAL_WAIT_S + PACE.interval_s)
        api_runs.drop_old_messages(store.database)
        assert store.rows(select(delivery)) == []


def test_an_end_that_is_under_way_is_not_told_twice(new_store, receiver_factory):
    store, receiver = new_store(), receiver_factory(status(200), status(504))
    listen(store, receiver, sends_ended=True)
    store.record(fired(0))
    with delivering(store):
        store.database.wait(GATHERED_S)
        receiver.wait(1)
        store.record(resolved(0))
        store.database.wait(PACE.interval_s)
        receiver.wait(2)
        store.database.wait()
        delete(store)
        store.database.wait(2 * PACE.interval_s)
        assert store.rows(select(delivery)) == []
    assert [message.type.rsplit(".", 1)[1] for message in receiver.got] == ["opened", "resolved", "resolved"]
    assert (receiver.got[1].id, receiver.got[1].body) == (receiver.got[2].id, receiver.got[2].body)


def test_the_last_word_names_no_layer_that_is_silenced(new_store, receiver_factory):
    store, receiver = new_store(), receiver_factory()
    listen(store, receiver, sends_ended=True)
    store.record(fired(0), fired(1))
    with delivering(store):
        store.database.wait(GATHERED_S)
        receiver.wait(1)
        with store.database.write() as connection:
            now = store.database.now(connection)
            name = receiver.got[0].data["worst"][1]["name"]
            silences.create_silence(connection, Silence(0, "*", None, f"^{name}$", now, now + PACE.remind_s, "me", ""))
        delete(store)
        store.database.wait(PACE.interval_s + 1.0)
        receiver.wait(2)
    assert [len(message.data["worst"]) for message in receiver.got] == [2, 1]
