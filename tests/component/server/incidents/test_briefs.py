"""What the replies to an agent say of open incidents: their words, acknowledgements and silences."""

import pytest
from sqlalchemy import event, insert, select, update

from gradcanary_server.incidents import silences
from gradcanary_server.incidents.briefs import MAX_ADVISED, Briefs, has_open
from gradcanary_server.incidents.silences import Silence
from gradcanary_server.storage.schema import incident, incident_layer
from support.server.transitions import fired, resolved

URL = "http://here"


def brief_of(store, briefs):
    with store.database.read() as connection:
        (found,) = briefs.read(connection, 1, store.database.now(connection))
    return found


def silence(store, match=None):
    with store.database.write() as connection:
        now = store.database.now(connection)
        silences.create_silence(connection, Silence(0, "sd*", None, match, now, now + 600, "me", ""))


def test_a_brief_has_what_to_do_first(store):
    store.record(fired(0))
    found = brief_of(store, Briefs(URL))
    assert (found.acknowledged, found.silenced, found.reopened) == (False, False, 0)
    assert found.summary.startswith("1 of 300 parameters (blocks.0.attn.lora_A.weight) fell")
    assert found.do_first.endswith(".")
    assert "\n" not in found.do_first


def test_a_brief_says_that_its_rule_sends_no_messages(store):
    store.record(fired(0))
    assert [brief_of(store, Briefs(URL, frozenset(muted))).muted for muted in ((), {"frozen"}, {"collapse"})] == [
        False,
        False,
        True,
    ]


def test_texts_are_composed_once_for_each_change(store):
    briefs, statements = Briefs(URL), []
    store.record(fired(0))
    first = brief_of(store, briefs)
    event.listen(store.database._engine, "before_cursor_execute", lambda *found: statements.append(found[2]))
    assert brief_of(store, briefs) == first
    assert len([each for each in statements if "clock" not in each]) == 2, "incidents and silences"
    store.record(fired(2))
    assert brief_of(store, briefs).summary.startswith("2 of 300 parameters")


def open_copies(store, numbers):
    """Open warnings beside incident 1, each with its members."""
    with store.database.write() as connection:
        for table in (incident, incident_layer):
            rows = connection.execute(select(table).where(table.c.incident_id == 1)).mappings().all()
            copies = [{**row, "incident_id": number, "severity": "warning"} for row in rows for number in numbers]
            connection.execute(insert(table), copies)


def test_the_work_of_a_change_does_not_grow_with_the_open_incidents(store):
    briefs, statements, counts = Briefs(URL), [], []
    store.record(fired(0))
    event.listen(store.database._engine, "before_cursor_execute", lambda *found: statements.append(found[2]))
    for numbers in (range(100, 120), range(120, 180)):
        open_copies(store, numbers)
        for _ in ("they opened", "one changed"):
            statements.clear()
            with store.database.write() as connection:
                connection.execute(update(incident).where(incident.c.incident_id == 1).values(revision=7 + len(counts)))
            with store.database.read() as connection:
                found = briefs.read(connection, 1, 0.0)
            counts.append(len(statements))
    assert counts[1] == counts[3]
    assert [each.id for each in found if each.do_first] == [1, *range(181 - MAX_ADVISED, 180)]
    assert all(each.summary.startswith("1 of 300 parameters") for each in found)


def test_an_acknowledgement_is_read_each_time(store):
    briefs = Briefs(URL)
    store.record(fired(0))
    assert not brief_of(store, briefs).acknowledged
    with store.database.write() as connection:
        connection.execute(update(incident).values(acked=1.0, acked_by="me", ack_note=""))
    assert brief_of(store, briefs).acknowledged


@pytest.mark.parametrize(
    ("match", "is_silenced"), [(None, True), (r"blocks\.0\.", True), (r"blocks\.1\.", False), ("nothing", False)]
)
def test_it_is_silenced_if_the_worst_of_what_fires_is(store, match, is_silenced):
    """The first is critical, the second a warning."""
    briefs = Briefs(URL)
    store.record(fired(0), fired(2, severity="warning"))
    assert not brief_of(store, briefs).silenced
    silence(store, match)
    assert brief_of(store, briefs).silenced is is_silenced


def test_nothing_is_open_after_a_recovery_and_a_return_is_counted(store):
    briefs = Briefs(URL)
    with store.database.read() as connection:
        assert not has_open(connection, 1)
    store.record(fired(0))
    store.record(resolved(0))
    with store.database.read() as connection:
        assert not has_open(connection, 1)
        assert briefs.read(connection, 1, 0.0) == ()
    store.record(fired(0, step=950))
    assert brief_of(store, briefs).reopened == 1
    with store.database.read() as connection:
        assert has_open(connection, 1)
