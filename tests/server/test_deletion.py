"""Deleting runs and thinning old samples."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import blank_stores
import pytest
import streams
import warm
from archives import RUN, Store
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import delete, event, func, select, update

from gradcanary import wire
from gradcanary_server import database as databases
from gradcanary_server import deletion, layer_table, retention, tiles
from gradcanary_server.compactor import Compactor
from gradcanary_server.database import Database
from gradcanary_server.layer_sets import KnownSets
from gradcanary_server.log import Log
from gradcanary_server.retention import Trust
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
    if store.database._engine.dialect.name == "sqlite":
        store.database.close()  # of these connections each would wait for hours
        event.listen(store.database._engine, "connect", lambda raw, _: raw.execute("PRAGMA busy_timeout = 9999999"))
    with ThreadPoolExecutor(1) as pool, store.database.read() as connection:
        connection.execute(select(func.count()).select_from(batch)).scalar_one()
        with store.database.write() as writer:
            writer.execute(delete(batch))
        pool.submit(store.database.reclaim).result(120)
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


def test_old_samples_go_and_the_pyramid_stays(store, monkeypatch):
    monkeypatch.setattr(tiles, "ROWS", 8)
    store.send("s", streams.Stream(streams.healthy(1000, 3), streams.falling_loss(1000)), 50)
    store.compactor.compact()
    before = store.pictures(20)
    with store.database.write() as connection:
        connection.execute(update(tile).where(tile.c.number < 80).values(stored=0.0))
    monkeypatch.setattr(deletion, "BITE", 30)
    assert store.thin(1.0) == 14, "six ranges of five tiles at once"
    with store.database.read() as connection:
        assert deletion.aged(connection, 1.0) == []
        raw = select(func.min(tile.c.number)).where(tile.c.level == 0, tile.c.kind == "absmax")
        assert connection.execute(raw).scalar_one() == 80
    thinned = store.pictures(20)
    assert thinned.partition('"samples"')[0] == before.partition('"samples"')[0]
    fine = store.read(lambda c, run: run.name) and store.pictures(5000)
    assert '"bucket_steps": 8' in fine, "single steps are not told apart where they are gone"


def test_how_the_layers_ended_is_kept(store, monkeypatch):
    monkeypatch.setattr(tiles, "ROWS", 8)
    store.send("s", streams.Stream(streams.healthy(128, 3)), 64, end="finished")
    store.compactor.compact()
    layers = store.read(lambda c, run: layer_table.table(c, store.archive, run.run_id))
    store.thin(time.time() + 60)
    assert store.read(lambda c, run: layer_table.table(c, store.archive, run.run_id)) == layers
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


def test_a_clock_that_is_ahead_at_a_start_is_believed_after_a_day_and_a_sign_of_life(store, clock, monkeypatch, caplog):
    monkeypatch.setattr(tiles, "ROWS", 8)
    store.send("s", streams.Stream(streams.healthy(128, 3)), 64)

    def left():
        """Return what a collector that starts leaves, and until when at least it does."""
        Compactor(store.database, Log(KnownSets()), tiles.Tiles(), store.ingest.settle, raw_days=30.0).compact()
        with store.database.read() as connection:
            return store.count(tile), retention.doubted_until(connection, store.database.now(connection))

    whole, until = left()
    assert until is not None, "a store that nobody has looked at yet"
    clock(20 * 3600.0)
    assert left()[0] == whole
    clock(30.5 * DAY)
    store.ingest.heartbeat(RUN, "s", wire.dump(BEAT))
    assert left()[0] == whole, "one that is set within the day is not believed because of that"
    clock(0)
    assert left()[0] == whole, "it was put right"
    caplog.clear()
    clock(DAY - 60.0)
    assert left()[0] == whole
    clock(DAY + 3600.0)
    store.ingest.heartbeat(RUN, "s", wire.dump(BEAT))
    assert left() == (whole, None), "it is believed, and nothing is too old"
    assert "See that it is right" not in caplog.text
    for hours in (0, 1, 23):
        clock(400 * DAY + hours * 3600.0)
        assert left()[0] == whole
        store.ingest.heartbeat(RUN, "s", wire.dump(BEAT))
    assert "See that it is right" in caplog.text
    clock(2 * DAY)
    assert left()[0] == whole, "it was put right"
    clock(500 * DAY)
    assert left()[0] == whole
    clock(501 * DAY - 3600.0)
    assert left()[0] == whole
    clock(501 * DAY + 3600.0)
    count, until = left()
    assert (count, until is not None) == (whole, True), "nobody was heard of since"
    store.ingest.heartbeat(RUN, "s", wire.dump(BEAT))
    assert left()[0] < whole
    clock(510 * DAY)
    store.ingest.heartbeat(RUN, "s", wire.dump(BEAT))
    assert left()[1] is not None, "a pause of days, or a clock: it waits again"


BEAT = wire.Heartbeat(None, 0, 0, 0.0)


@given(st.lists(st.floats(1.0, 5 * DAY), min_size=1, max_size=40))
def test_whoever_looks_on_for_long_enough_believes_a_clock_that_goes_on(pauses):
    """Samples are not kept for ever because a machine is on now and then only, for little more than an hour."""
    trust, now, doubted_s = Trust(0.0, 0.0), 0.0, 0.0
    for pause in pauses:
        before = trust
        for gap in (pause, retention.HOLD_S + 1.0):
            now += gap
            trust = trust.looked(now)
        doubted_s = 0.0 if trust.believes(now, now) else doubted_s + (now - before.at if doubted_s else 1e-9)
        assert doubted_s < DAY + 1.0
        assert trust.at == now


@given(st.lists(st.floats(600.0, 2 * DAY) | st.floats(-60 * DAY, 60 * DAY), min_size=1, max_size=40))
def test_a_clock_that_leapt_is_not_believed_before_somebody_looked_on(gaps):
    """However often it leaps: an hour after the last one, and by what was heard after that."""
    trust, now, leapt = Trust(0.0, 0.0), 0.0, 0.0
    for gap in gaps:
        now += gap
        trust = trust.looked(now)
        leapt = now if abs(gap) > DAY else min(leapt, now)
        assert not (trust.believes(now, now) and now < leapt + retention.HOLD_S - 1.0)
        assert not trust.believes(now, leapt - 1.0)


def test_a_raw_days_that_is_no_number_is_refused(tmp_path):
    words = ["-m", "gradcanary.cli", "up", "--port", "0", "--data", str(tmp_path)]
    ended = warm.run(warm.COLLECTOR, words, {**os.environ, "GRADCANARY_RAW_DAYS": "soon"})
    assert ended.returncode == 2
    assert "GRADCANARY_RAW_DAYS='soon' must be a number of days" in ended.stderr
