"""A run that is deleted while somebody thinks it ill: whoever heard of an incident hears that it is over, and when."""

import pytest
from changes import fired, resolved
from clocks import delivering, listen
from receivers import status
from sqlalchemy import func, select, update
from waiting import eventually

from gradcanary_server import deletion, silences
from gradcanary_server.pace import Pace
from gradcanary_server.schema import delivery, incident, metadata, run
from gradcanary_server.silences import Silence

PACE = Pace()
GATHERED_S = PACE.wait_s + 1.0


def delete(store):
    with store.database.write() as connection:
        deletion.delete_run(connection, "sdxl", store.database.now(connection))


def forget(store):
    """Do what the compactor does in each round; return how many runs are there in any way."""
    with store.database.write() as connection:
        deletion.forget(connection)
        return connection.execute(select(func.count()).select_from(run)).scalar_one()


def test_what_was_told_is_told_to_be_over_at_its_pace_and_then_all_of_it_goes(new_store, receiver_factory):
    store, receiver = new_store(), receiver_factory()
    listen(store, receiver)
    store.record(fired(0), fired(1, rule="nonfinite"))
    with delivering(store):
        store.database.wait(GATHERED_S)
        receiver.wait(2)
        store.record(resolved(1, rule="nonfinite"))  # of which nobody has heard yet
        store.database.wait(60.0)
        delete(store)
        store.database.wait(PACE.interval_s - 120.0)
        assert len(receiver.got) == 2, "messages keep their distance"
        assert forget(store) == 1
    with delivering(store), delivering(store):  # another process goes on, and a replica beside it
        store.database.wait(120.0)
        receiver.wait(4)
        eventually(lambda: all(row["settled"] for row in store.rows(select(incident.c.settled))))
        store.database.wait(PACE.remind_s)
    last = receiver.got[2:]
    ends = {"gradient.collapse.resolved": "run_deleted", "gradient.nonfinite.resolved": "recovered"}
    assert {message.type: message.data["resolution"] for message in last} == ends
    assert len(receiver.got) == 4
    for message in last:
        said = message.data
        assert (said["run"], said["state"]) == ("sdxl", "resolved")
        assert "blocks" in said["worst"][0]["name"], "layers have their names"
        assert ("the run was deleted" in said["summary"]) is ("collapse" in message.type)
    assert forget(store) == 0
    left = [table.name for table in metadata.sorted_tables if store.rows(select(table))]
    assert left == [table for table in left if table in ("alembic_version", "endpoint", "deleted_session", "vigil")]


@pytest.mark.parametrize("heard", ["nobody to hear", "too short", "not begun", "not taken", "the end of the run"])
def test_of_what_was_told_to_nobody_nothing_is_told(new_store, receiver_factory, monkeypatch, heard):
    store, receiver = new_store(), receiver_factory(*[status(500)] * (heard == "not taken"))
    if heard != "nobody to hear":
        listen(store, receiver)
    store.record(fired(0))
    if heard == "not begun":
        monkeypatch.setattr("gradcanary_server.deliverer.Deliverer._send", lambda *_: None)
    with delivering(store):
        if heard in ("nobody to hear", "not begun", "not taken"):
            store.database.wait(GATHERED_S)
        if heard == "the end of the run":
            store.close_run()  # which is told, after a while
        delete(store)
        monkeypatch.undo()
        assert store.rows(select(run)) == [], "it goes at once"
        store.database.wait(2 * PACE.interval_s)
    assert [each for each in receiver.got if each.is_taken] == []


def test_a_message_that_may_have_arrived_is_followed_by_the_end(new_store, receiver_factory):
    """Whoever is behind a gateway that got no answer may have read it."""
    store, receiver = new_store(), receiver_factory(status(504))
    listen(store, receiver)
    store.record(fired(0))
    with delivering(store):
        store.database.wait(GATHERED_S)
        receiver.wait(1)
        delete(store)
        store.database.wait(60.0)
        receiver.wait(2)
        store.database.wait(PACE.interval_s + 1.0)
        receiver.wait(3)
        eventually(lambda: forget(store) == 0)
    assert [message.type.rsplit(".", 1)[1] for message in receiver.got] == ["opened", "opened", "resolved"]


def test_who_has_not_heard_of_what_the_end_of_a_run_closed_does_not_begin_to(new_store, receiver_factory):
    """One message at a time goes to an endpoint: another one may have been told meanwhile."""
    store, receivers = new_store(), [receiver_factory(), receiver_factory()]
    for each in receivers:
        listen(store, each)
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
        eventually(lambda: forget(store) == 0)
    assert len(receivers[1].got) == 1


def test_a_silence_of_the_run_covers_its_last_word(new_store, receiver_factory):
    store, receiver = new_store(), receiver_factory()
    listen(store, receiver)
    store.record(fired(0))
    with delivering(store):
        store.database.wait(GATHERED_S)
        with store.database.write() as connection:
            now = store.database.now(connection)
            silences.add(connection, Silence(0, "sd*", None, None, now, now + 2 * PACE.interval_s, "me", ""))
        delete(store)
        store.database.wait(1.5 * PACE.interval_s)
        assert len(receiver.got) == 1
        store.database.wait(PACE.interval_s)
        receiver.wait(2)
    assert receiver.got[1].data["resolution"] == "run_deleted"
