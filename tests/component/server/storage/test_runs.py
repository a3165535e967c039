"""Ids of runs, and the names that lead to them."""

import pytest
from sqlalchemy import select

from gradcanary import wire
from gradcanary_server.storage import runs
from gradcanary_server.storage.schema import run, run_name, session_tombstone
from support import streams
from support.server.asked import counted


def test_ids_of_runs_are_in_the_order_of_time_and_fit_both_databases():
    ids = [runs.new_run_id(now) for now in (-1.0, 1.8e9, 1.8e9 + 0.002, 1.9e9, 1e18)]
    assert ids == sorted(ids)
    assert 0 <= ids[0] < 2**22
    assert ids[-1] < 2**63
    assert len({runs.new_run_id(1.8e9) for _ in range(20)}) == 20, "what begins at the same moment"


def test_an_id_that_is_taken_is_drawn_again(archive, monkeypatch):
    drawn = iter([7, 7, 7, 8])
    monkeypatch.setattr(runs, "new_run_id", lambda now: next(drawn))
    with archive.database.write() as connection:
        made = [runs.create_run(connection, name, 1.0, {}) for name in ("first", "second")]
        assert [(row.run_id, row.name) for row in made] == [(7, "first"), (8, "second")]
        assert runs.find_run(connection, "first").run_id == 7


def test_a_name_that_is_taken_meanwhile_leads_to_the_run_that_took_it(archive):
    with archive.database.write() as connection:
        made = [runs.create_run(connection, "same", 1.0, {}) for _ in range(2)]
        assert made[0].run_id == made[1].run_id
        assert list(connection.scalars(select(run.c.run_id))) == [made[0].run_id]


def test_the_names_of_a_deleted_run_are_free_again(archive):
    with archive.database.write() as connection:
        runs.rename_run(connection, runs.create_run(connection, "before", 1.0, {}), "now")
        kept = runs.create_run(connection, "other", 1.0, {})
        runs.delete_run(connection, runs.get_run(connection, "now", held=True), 2.0)
        assert list(connection.scalars(select(run_name.c.name))) == ["other"]
        again = [runs.create_run(connection, name, 3.0, {}) for name in ("before", "now")]
        assert [row.name for row in again] == ["before", "now"]
        assert len({kept.run_id, *(row.run_id for row in again)}) == 3


def test_a_run_that_is_held_has_the_same_columns_wherever_it_comes_from(archive):
    archive.send("s0", streams.Stream(streams.healthy(3, 2)), 3)
    with archive.database.write() as connection:
        held, row = runs.lock_session(connection, "run", "s0")
        assert (row.is_primary, row.is_sharded) == (True, False)
        assert all(isinstance(flag, bool) for flag in (row.is_primary, row.is_sharded)), "SQLite has numbers"
        assert runs.read_held_run(connection, held.run_id) == held
        with pytest.raises(AttributeError):
            _ = runs.read_held_run(connection, held.run_id).step  # what one of them had the other one had not


def test_a_hello_and_a_deletion_take_as_many_statements_of_many_launches(archive):
    """A job that is queued again keeps its id: each start is a launch of that id, which has this rank already."""

    def statements(starts):
        archive.clear()
        stream = streams.Stream(streams.healthy(1, 2))
        for number in range(starts):
            archive.ingest.hello("run", f"s{number}", wire.dump(stream.hello(launch="fixed")))
        with counted(archive.database) as joining:
            archive.ingest.hello("run", "last", wire.dump(stream.hello(launch="fixed")))
        with archive.database.write() as connection, counted(archive.database) as deleting:
            runs.delete_run(connection, runs.get_run(connection, "run", held=True), 2.0)
        with archive.database.read() as connection:
            deleted = set(connection.scalars(select(session_tombstone.c.session)))
        assert deleted == {"last", *(f"s{number}" for number in range(starts))}
        return joining.statements, deleting.statements

    assert statements(12) == statements(2)
