"""SQLite's log under a collector that is written to and read all the time: it stays short, and no batch pays for it."""

import contextlib
import itertools
import shutil
import threading
from functools import partial

import pytest
from fastapi.testclient import TestClient

from gradcanary import wire
from gradcanary_server.app import create_app
from gradcanary_server.settings import Settings
from gradcanary_server.storage import database, sqlite_writer
from gradcanary_server.storage.sqlite import CHECKPOINT_PAGES
from gradcanary_server.tsdb import compactor
from support import streams
from support.server.disks import limited
from support.server.frail import Frail, Killed
from support.server.metrics import samples
from support.waiting import eventually

SIZE = 32
STREAM = streams.Stream(streams.healthy(SIZE, 1000))
BODY = wire.dump(STREAM.batch(0, SIZE))
"""Half a megabyte."""

KEPT = len(BODY) // 2
"""Less than what a batch adds to the store, where base64 is kept as the bytes that it stands for."""

OF_SQLITE = CHECKPOINT_PAGES * 4096
"""From so much in the log on SQLite's own commits put it into the file."""


def app_of(folder):
    return create_app(Settings.from_env({}, data=folder))


@contextlib.contextmanager
def opened(app):
    with TestClient(app, base_url="http://localhost", headers={"Content-Type": "application/json"}) as client:
        yield client


def path(run, rest=""):
    return f"/api/v1/runs/run-{run}/sessions/s{rest}"


def post(client, run):
    """Post half a megabyte to a run of its own."""
    client.put(path(run), content=wire.dump(STREAM.hello())).raise_for_status()
    return client.post(path(run, "/batches/0"), content=BODY)


def stored(client, runs):
    """Return for each run what its batch was, posted now."""
    return {post(client, run).raise_for_status().json()["status"] for run in runs}


@pytest.fixture
def seldom(monkeypatch):
    """Nothing is put into the file unless a test asks for it."""
    monkeypatch.setattr(sqlite_writer, "CHECKPOINT_S", 3600.0)
    monkeypatch.setattr(compactor, "WAKE_S", 3600.0)  # which gives room back


@pytest.fixture
def often(monkeypatch):
    """Each batch is put into the file, by the checkpointer alone."""
    monkeypatch.setattr(sqlite_writer, "CHECKPOINT_S", 0.02)
    monkeypatch.setattr(compactor, "WAKE_S", 3600.0)


@pytest.mark.usefixtures("seldom")
def test_acknowledged_batches_survive_a_kill_with_a_long_log(tmp_path):
    folder, runs = tmp_path / "killed", range(10)
    app = app_of(tmp_path / "data")
    with opened(app) as client:
        assert stored(client, runs) == {"stored"}
        assert app.state.services.database.log_size() > OF_SQLITE, "no commit put it into the file"
        shutil.copytree(tmp_path / "data", folder)  # as a kill -9 leaves it
    with opened(app_of(folder)) as client:
        assert stored(client, runs) == {"duplicate"}


@pytest.mark.usefixtures("seldom")
def test_a_log_that_is_written_and_read_all_the_time_begins_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(database, "RESTART_PAGES", 1)
    app = app_of(tmp_path)
    with opened(app) as client, contextlib.ExitStack() as stack:
        store, stopping = app.state.services.database, threading.Event()
        for _ in range(2):
            stack.enter_context(_Reading(store, stopping))
        stack.callback(stopping.set)
        for round_ in range(3):
            assert stored(client, range(2 * round_, 2 * round_ + 2)) == {"stored"}
            eventually(store.checkpoint)  # the checkpointer tries again, too, where a reader has no time to end
        assert store.log_size() < OF_SQLITE, "each time it was written from its beginning"


def test_a_checkpoint_whose_connection_is_lost_raises_the_error_that_lost_it(tmp_path):
    with contextlib.closing(Frail(f"sqlite:///{tmp_path / 'gradcanary.db'}")) as store:
        store.migrate()
        for points in itertools.count(1):
            store.break_at(points, Killed)
            try:
                store.release_free_pages()
            except Killed:
                continue
            break
    assert points > 3


class _Reading:
    """Somebody who is never done reading: the next question begins before the one before has its answer."""

    turns = threading.Condition()
    reading = 0

    def __init__(self, store, stopping):
        self._store, self._stopping = store, stopping
        self._thread = threading.Thread(target=self._read)

    def __enter__(self):
        self._thread.start()

    def __exit__(self, *_):
        self._thread.join()

    def _read(self):
        while not self._stopping.is_set():
            with self._store.read() as connection:
                connection.exec_driver_sql("SELECT count(*) FROM batch").scalar_one()
                self._stay()

    def _stay(self):
        """Stay until another one reads, too, or nobody may begin to."""
        with self.turns:
            type(self).reading += 1
            self.turns.notify_all()
            self.turns.wait_for(lambda: self.reading > 1, 0.2)
            type(self).reading -= 1


@pytest.mark.usefixtures("seldom")
def test_long_reader_blocks_no_writer_and_the_log_ends_after_it(tmp_path, monkeypatch):
    monkeypatch.setattr(database, "RESTART_PAGES", 1)
    monkeypatch.setattr(database, "RESTART_WAIT_S", 0.05)
    app = app_of(tmp_path)
    with opened(app) as client:
        store = app.state.services.database
        with store.read() as connection:
            before = connection.exec_driver_sql("SELECT count(*) FROM batch").scalar_one()
            for run in range(3):
                assert stored(client, [run]) == {"stored"}
                assert not store.checkpoint()
            assert connection.exec_driver_sql("SELECT count(*) FROM batch").scalar_one() == before
            size = store.log_size()
        assert size > 3 * KEPT
        assert store.checkpoint()
        assert stored(client, [3]) == {"stored"}
        assert store.log_size() == size, "written again from its beginning"


@pytest.mark.usefixtures("often")
def test_a_collector_puts_its_log_into_the_file_by_itself_and_says_how_long_it_is(tmp_path):
    app = app_of(tmp_path)
    with opened(app) as client:
        assert stored(client, [0]) == {"stored"}
        file = tmp_path / "gradcanary.db"
        eventually(partial(_is_over, file, KEPT))
        found = samples(client)
        assert 0 < found["gradcanary_store_log_bytes",] < found["gradcanary_store_bytes",]
        assert ("gradcanary_loop_lag_seconds", "checkpointer") in found


@pytest.mark.usefixtures("often")
def test_a_checkpoint_that_fails_is_told_tried_again_and_fails_no_batch(tmp_path, caplog):
    app = app_of(tmp_path)
    with opened(app) as client:
        file, store = tmp_path / "gradcanary.db", app.state.services.database
        for number in range(6):
            assert stored(client, [number]) == {"stored"}
            eventually(partial(_is_over, file, (number + 1) * KEPT))
        eventually(lambda: (store.release_free_pages(), store.log_size() == 0)[1])
        with limited(file.stat().st_size):  # the log, which begins anew, is shorter
            assert stored(client, [6]) == {"stored"}
            eventually(lambda: "full" in checked(client))
            assert stored(client, [7]) == {"stored"}
        eventually(lambda: checked(client) == "ok")
    told = [each.message for each in caplog.records if each.name == sqlite_writer.logger.name]
    begun = ["Trying again" in message for message in told]
    assert begun == [True, False] * (len(told) // 2), "each outage has its beginning and its end"
    assert all("is back" in message for message in told[1::2])
    assert 1 <= sum(begun) <= 3, "not each round; once more where somebody was in its way meanwhile"


def _is_over(file, size):
    return file.stat().st_size > size


def checked(client):
    return client.get("/readyz").json()["checks"]["checkpointer"]


@pytest.mark.usefixtures("often")
def test_a_log_that_nobody_writes_on_is_put_into_the_file_once(tmp_path, monkeypatch):
    app = app_of(tmp_path)
    store, checkpoints, rounds = app.state.services.database, [], threading.Semaphore(0)
    plain_checkpoint, plain_done = store.checkpoint, sqlite_writer.Checkpointer._mark_done
    monkeypatch.setattr(store, "checkpoint", lambda: checkpoints.append(plain_checkpoint()) or checkpoints[-1])
    monkeypatch.setattr(sqlite_writer.Checkpointer, "_mark_done", lambda loop: (plain_done(loop), rounds.release()))
    with opened(app) as client:
        for number in range(2):
            assert stored(client, [number]) == {"stored"}
            eventually(partial(_is_over, tmp_path / "gradcanary.db", (number + 1) * KEPT))
            for _ in range(3):  # what others of the collector still write
                rounds.acquire(timeout=30)
            checkpoints.clear()
            for _ in range(10):
                assert rounds.acquire(timeout=30)
            assert len(checkpoints) <= 1
