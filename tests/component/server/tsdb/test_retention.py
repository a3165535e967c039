"""Deleting runs and thinning old samples."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import delete, event, func, select, update

from gradcanary import wire
from gradcanary_server.api import layer_table
from gradcanary_server.api import runs as api_runs
from gradcanary_server.rules.config import Rules
from gradcanary_server.storage import database as databases
from gradcanary_server.storage.database import Database
from gradcanary_server.storage.layers import LayerSetCache
from gradcanary_server.storage.schema import batch, tile
from gradcanary_server.tsdb import retention, tiles
from gradcanary_server.tsdb.compactor import Compactor
from gradcanary_server.tsdb.log import BatchLog
from support import blank_stores, streams, warm
from support.server.archives import RUN, Store
from support.waiting import eventually


@pytest.fixture
def store(new_store_url):
    made = Store(new_store_url())
    yield made
    made.database.close()


def measurements(collector):
    """Bytes of batches and tiles."""
    database = Database(collector.db or f"sqlite:///{collector.data / 'gradcanary.db'}")
    with database.read() as connection:
        bodies = [func.coalesce(func.sum(func.length(table.c.body)), 0) for table in (batch, tile)]
        found = sum(connection.execute(select(each)).scalar_one() for each in bodies)
    database.close()
    return found


def room(collector):
    """Bytes of SQLite's file; of PostgreSQL, which keeps them for what comes next, of the measurements."""
    return measurements(collector) if collector.db else (collector.data / "gradcanary.db").stat().st_size


def test_a_deleted_run_is_gone_its_sessions_are_told_and_its_room_comes_back(collector):
    session = streams.Session(collector.url)
    made = streams.Stream(streams.collapsed(3000, 200, (3,), 200), streams.falling_loss(3000))
    session.send(made, 64)
    streams.Session(collector.url, run="other").send(streams.Stream(streams.healthy(50, 2)))
    assert collector.get("/api/v1/incidents", run="run-1").json()["incidents"]
    eventually(lambda: room(collector) >= measurements(collector), 60)  # SQLite has them in its log first
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
    if store.database._engine.dialect.name == "sqlite":
        store.database.close()  # of these connections each would wait for hours
        event.listen(store.database._engine, "connect", lambda raw, _: raw.execute("PRAGMA busy_timeout = 9999999"))
    with ThreadPoolExecutor(1) as pool, store.database.read() as connection:
        connection.execute(select(func.count()).select_from(batch)).scalar_one()
        with store.database.write() as writer:
            writer.execute(delete(batch))
        pool.submit(store.database.release_free_pages).result(120)
    store.send("t", streams.Stream(streams.healthy(10, 2)), 5)


def test_leftovers_are_searched_after_a_deletion_only(store, monkeypatch):
    looked, look = [], retention.orphaned_tables
    monkeypatch.setattr(retention, "orphaned_tables", lambda connection: looked.append(1) or look(connection))
    store.send("s", streams.Stream(streams.healthy(30, 3)), 10, end="finished")
    for _ in range(3):
        store.compactor.compact()
    assert len(looked) == 1, "at its start: another collector may have died while it deleted"
    with store.database.write() as connection:
        api_runs.end_and_delete(connection, RUN, Rules(), "", store.database.now(connection))
    store.compactor.compact()
    assert store.count(tile) == 0


def free_pages(store):
    """How much of SQLite's file is nobody's."""
    with store.database.read() as connection:
        return connection.exec_driver_sql("PRAGMA freelist_count").scalar_one()


def test_the_room_of_a_large_run_comes_back_with_its_bites(tmp_path, monkeypatch):
    """What is left for the end takes the square of the time: SQLite looks for a page among all that are free."""
    monkeypatch.setattr(retention, "CHUNK_ROWS", 4)
    store = Store(f"sqlite:///{blank_stores.lay(tmp_path)}")
    store.send("s", streams.Stream(streams.healthy(2048, 40)), 256, end="finished")
    store.compactor.compact()
    free, purge = [], retention.purge_chunk
    monkeypatch.setattr(retention, "purge_chunk", lambda *of: free.append(free_pages(store)) or purge(*of))
    with store.database.write() as connection:
        api_runs.end_and_delete(connection, RUN, Rules(), "", store.database.now(connection))
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
    monkeypatch.setattr(databases, "_SEARCH_S", databases._RECLAIM_S / free / 10)
    assert store.database.release_free_pages(), "there is more"
    assert free - 10 <= free_pages(store) < free
    store.database.close()


def test_old_samples_go_and_the_rollups_stay(store, monkeypatch):
    monkeypatch.setattr(tiles, "TILE_ROWS", 8)
    store.send("s", streams.Stream(streams.healthy(1000, 3), streams.falling_loss(1000)), 50)
    store.compactor.compact()
    before = store.pictures(20)
    with store.database.write() as connection:
        connection.execute(update(tile).where(tile.c.range_no < 80).values(stored=0.0))
    monkeypatch.setattr(retention, "CHUNK_ROWS", 30)
    assert store.thin(1.0) == 14, "six ranges of five tiles at once"
    with store.database.read() as connection:
        assert retention.expired_streams(connection, 1.0) == []
        raw = select(func.min(tile.c.range_no)).where(tile.c.level == 0, tile.c.kind == "absmax")
        assert connection.execute(raw).scalar_one() == 80
    thinned = store.pictures(20)
    assert thinned.partition('"samples"')[0] == before.partition('"samples"')[0]
    fine = store.read(lambda c, run: run.name) and store.pictures(5000)
    assert '"bucket_steps": 8' in fine, "single steps are not told apart where they are gone"


def test_last_layer_states_are_kept(store, monkeypatch):
    monkeypatch.setattr(tiles, "TILE_ROWS", 8)
    store.send("s", streams.Stream(streams.healthy(128, 3)), 64, end="finished")
    store.compactor.compact()
    layers = store.read(lambda c, run: layer_table.build_layer_table(c, store.archive, run.run_id))
    store.thin(time.time() + 60)
    assert store.read(lambda c, run: layer_table.build_layer_table(c, store.archive, run.run_id)) == layers
    assert layers[0]["step"] == 127


DAY = 86_400.0


@pytest.fixture
def clock(store, monkeypatch):
    """Move the store's clock on by so many seconds, all told."""
    ahead, real = [0.0], store.database.now
    monkeypatch.setattr(store.database, "now", lambda connection: real(connection) + ahead[0])

    def move(seconds):
        ahead[0] = seconds

    return move


def test_a_clock_that_is_set_takes_no_samples_before_somebody_looked_on_for_a_day(store, clock, monkeypatch, caplog):
    monkeypatch.setattr(tiles, "TILE_ROWS", 8)
    store.send("s", streams.Stream(streams.healthy(128, 3)), 64)

    def left(at, *, is_heard=True):
        """Return what a collector that starts then leaves, and until when at least it does."""
        clock(at)
        if is_heard:
            store.watchdog.listen()
            store.ingest.heartbeat(RUN, "s", wire.dump(BEAT))
        Compactor(
            store.database, BatchLog(LayerSetCache()), tiles.TileStore(), store.ingest.merge_overdue, raw_days=30.0
        ).compact()
        with store.database.read() as connection:
            return store.count(tile), retention.doubted_until(connection, store.database.now(connection))

    whole, until = left(0.0)
    assert until is not None, "a store that nobody has looked at yet"
    for at in (DAY - 60.0, 400 * DAY, 401 * DAY - 60.0, 2 * DAY, 400 * DAY):
        assert left(at)[0] == whole
    assert "Check the clock" in caplog.text
    assert left(2 * DAY)[0] == whole, "it was put right"
    assert left(2.5 * DAY)[1] is not None
    assert left(3 * DAY + 60.0) == (whole, None), "it is believed, and nothing is too old"
    assert left(400 * DAY, is_heard=False)[0] == whole
    assert left(400.5 * DAY, is_heard=False)[0] == whole
    assert left(401 * DAY + 60.0, is_heard=False)[0] == whole, "nothing was heard since"
    assert left(401 * DAY + 120.0)[0] < whole


BEAT = wire.Heartbeat(None, 0, 0, 0.0)


def test_a_raw_days_that_is_no_number_is_refused(tmp_path):
    words = ["-m", "gradcanary.cli", "up", "--port", "0", "--data", str(tmp_path)]
    ended = warm.run(warm.COLLECTOR, words, {**os.environ, "GRADCANARY_RAW_DAYS": "soon"})
    assert ended.returncode == 2
    assert "GRADCANARY_RAW_DAYS='soon' must be a number of days" in ended.stderr
