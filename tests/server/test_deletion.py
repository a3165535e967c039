"""Deleting runs and thinning old samples."""

import os
import time

import blank_stores
import pytest
import streams
import warm
from archives import RUN, Store
from sqlalchemy import delete, func, select, update

from gradcanary_server import database as databases
from gradcanary_server import deletion, layer_table, tiles
from gradcanary_server.compactor import Compactor
from gradcanary_server.database import Database
from gradcanary_server.engines import BUSY_S
from gradcanary_server.layer_sets import KnownSets
from gradcanary_server.log import Log
from gradcanary_server.schema import batch, tile


@pytest.fixture
def store(new_store_url):
    made = Store(new_store_url())
    yield made
    made.database.close()


def room(collector):
    """Bytes of SQLite's file; of PostgreSQL, which keeps them for what comes next, of the measurements."""
    if collector.db is None:
        return (collector.data / "gradcanary.db").stat().st_size
    database = Database(collector.db)
    with database.read() as connection:
        bodies = [func.coalesce(func.sum(func.length(table.c.body)), 0) for table in (batch, tile)]
        found = sum(connection.execute(select(each)).scalar_one() for each in bodies)
    database.close()
    return found


def test_a_deleted_run_is_gone_its_sessions_are_told_and_its_room_comes_back(collector):
    session = streams.Session(collector.url)
    made = streams.Stream(streams.collapsed(3000, 200, (3,), 200), streams.falling_loss(3000))
    session.send(made, 64)
    streams.Session(collector.url, run="other").send(streams.Stream(streams.healthy(50, 2)))
    assert collector.get("/api/v1/incidents", run="run-1").json()["incidents"]
    before = room(collector)
    assert session.client.delete(f"{collector.url}/api/v1/runs/run-1").status_code == 204
    assert session.client.delete(f"{collector.url}/api/v1/runs/run-1").status_code == 404
    assert [each["run"] for each in collector.get("/api/v1/runs").json()["runs"]] == ["other"]
    assert collector.get("/api/v1/incidents").json()["incidents"] == []
    for answer in (session.post_batch(47, made.batch(0, 10)), session.put_hello(made.hello()), session.heartbeat()):
        assert (answer.status_code, answer.json()["error"]["code"]) == (410, "run_deleted")
    deadline = time.monotonic() + 60
    while (left := room(collector)) > before / 3:
        assert time.monotonic() < deadline, f"{left} of {before} bytes are left"
        time.sleep(0.5)
    again = streams.Session(collector.url, session="another")
    again.send(streams.Stream(streams.healthy(10, 2)))
    assert collector.get("/api/v1/runs/run-1").json()["step"] == 9


def test_a_reader_that_takes_its_time_holds_up_no_writer(store):
    """Room is given back while a snapshot is open: what cannot be done beside it waits for another day."""
    store.send("s", streams.Stream(streams.healthy(300, 100)), 50)
    with store.database.read() as connection:
        connection.execute(select(func.count()).select_from(batch)).scalar_one()
        with store.database.write() as writer:
            writer.execute(delete(batch))
        began = time.monotonic()
        store.database.reclaim()
        assert time.monotonic() - began < BUSY_S / 2
    store.send("t", streams.Stream(streams.healthy(10, 2)), 5)


def test_what_is_left_behind_is_looked_for_after_a_deletion_only(store, monkeypatch):
    looked, look = [], deletion.orphans
    monkeypatch.setattr(deletion, "orphans", lambda connection: looked.append(1) or look(connection))
    store.send("s", streams.Stream(streams.healthy(30, 3)), 10, end="finished")
    for _ in range(3):
        store.compactor.compact()
    assert len(looked) == 1, "at its start: another collector may have died while it deleted"
    with store.database.write() as connection:
        deletion.delete_run(connection, RUN, store.database.now(connection))
    store.compactor.compact()
    assert store.count(tile) == 0


def free_pages(store):
    """How much of SQLite's file is nobody's."""
    with store.database.read() as connection:
        return connection.exec_driver_sql("PRAGMA freelist_count").scalar_one()


def test_the_room_of_a_large_run_comes_back_with_its_bites(tmp_path, monkeypatch):
    """What is left for the end takes the square of the time: SQLite looks for a page among all that are free."""
    monkeypatch.setattr(deletion, "BITE", 4)
    store = Store(f"sqlite:///{blank_stores.lay(tmp_path)}")
    store.send("s", streams.Stream(streams.healthy(2048, 40)), 256, end="finished")
    store.compactor.compact()
    free, purge = [], deletion.purge
    monkeypatch.setattr(deletion, "purge", lambda *of: free.append(free_pages(store)) or purge(*of))
    with store.database.write() as connection:
        deletion.delete_run(connection, RUN, store.database.now(connection))
    store.compactor.compact()
    assert len(free) > 5
    assert max(free[1:]) == free_pages(store) == 0
    store.database.close()


def test_the_more_is_free_the_less_is_given_back_at_once(tmp_path, monkeypatch):
    store = Store(f"sqlite:///{blank_stores.lay(tmp_path)}")
    store.send("s", streams.Stream(streams.healthy(300, 100)), 50)
    with store.database.write() as connection:
        connection.execute(delete(batch))
    free = free_pages(store)
    assert free > 20
    monkeypatch.setattr(databases, "_SOUGHT_S", databases._RECLAIM_S / free / 10)
    assert store.database.reclaim(), "there is more"
    assert free - 10 <= free_pages(store) < free
    store.database.close()


def thin(store, older_than):
    """Take away what was stored before a time; return how many bites that took."""
    with store.database.read() as connection:
        (aged,) = deletion.aged(connection, older_than)
    bites = 1
    while True:
        with store.database.write() as connection:
            if not deletion.thin(connection, *aged):
                return bites
        bites += 1


def test_old_samples_go_and_the_pyramid_stays(store, monkeypatch):
    monkeypatch.setattr(tiles, "ROWS", 8)
    store.send("s", streams.Stream(streams.healthy(1000, 3), streams.falling_loss(1000)), 50)
    store.compactor.compact()
    before = store.pictures(20)
    with store.database.write() as connection:
        connection.execute(update(tile).where(tile.c.number < 80).values(stored=0.0))
    monkeypatch.setattr(deletion, "BITE", 30)
    assert thin(store, 1.0) == 14, "six ranges of five tiles at once"
    with store.database.read() as connection:
        assert deletion.aged(connection, 1.0) == []
        raw = select(func.min(tile.c.number)).where(tile.c.level == 0, tile.c.kind == "absmax")
        assert connection.execute(raw).scalar_one() == 80
    store.forget()
    thinned = store.pictures(20)
    assert thinned.partition('"samples"')[0] == before.partition('"samples"')[0]
    fine = store.read(lambda c, run: run.name) and store.pictures(5000)
    assert '"bucket_steps": 8' in fine, "single steps are not told apart where they are gone"


def test_how_the_layers_ended_is_kept(store, monkeypatch):
    monkeypatch.setattr(tiles, "ROWS", 8)
    store.send("s", streams.Stream(streams.healthy(128, 3)), 64, end="finished")
    store.compactor.compact()
    layers = store.read(lambda c, run: layer_table.table(c, store.archive, run.run_id))
    thin(store, time.time() + 60)
    store.forget()
    assert store.read(lambda c, run: layer_table.table(c, store.archive, run.run_id)) == layers
    assert layers[0]["step"] == 127


def test_a_clock_that_is_set_a_year_forward_takes_nothing(store, monkeypatch):
    monkeypatch.setattr(tiles, "ROWS", 8)
    ahead, by_s = [0.0, 0.0], 400 * 86_400.0
    real, steady = store.database.now, store.database.steady
    monkeypatch.setattr(store.database, "now", lambda connection: real(connection) + ahead[0])
    monkeypatch.setattr(store.database, "steady", lambda: steady() + ahead[1])
    store.send("s", streams.Stream(streams.healthy(128, 3)), 64, end="finished")
    keeper = Compactor(store.database, Log(KnownSets()), tiles.Tiles(), store.ingest.settle, raw_days=30.0)

    def counted():
        keeper.compact()
        return store.count(tile)

    whole = counted()
    ahead[:] = [by_s, 3600.0]
    assert counted() == whole
    ahead[:] = [by_s + 7200.0, 3600.0 + 7200.0]
    assert counted() == whole, "nor an hour or two after that"
    ahead[:] = [2 * by_s, by_s + 3600.0]
    assert counted() < whole, "it was so for a day"


def test_a_raw_days_that_is_no_number_is_refused(tmp_path):
    words = ["-m", "gradcanary.cli", "up", "--port", "0", "--data", str(tmp_path)]
    ended = warm.run(warm.COLLECTOR, words, {**os.environ, "GRADCANARY_RAW_DAYS": "soon"})
    assert ended.returncode == 2
    assert "GRADCANARY_RAW_DAYS='soon' must be a number of days" in ended.stderr
