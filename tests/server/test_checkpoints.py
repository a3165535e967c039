"""SQLite's log under a collector that is written to and read all the time: it stays short, and no batch pays for it."""

import contextlib
import errno
import os
import shutil
import sqlite3
import threading
from collections import Counter
from functools import partial

import pytest
import streams
from disks import limited
from fastapi.testclient import TestClient
from test_operations import samples
from waiting import eventually

from gradcanary import wire
from gradcanary_server import checkpointer, compactor, database, wal
from gradcanary_server.app import create_app
from gradcanary_server.engines import CHECKPOINT_PAGES
from gradcanary_server.errors import RequestError
from gradcanary_server.settings import Settings

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
    for loop in (checkpointer, compactor):  # that one, where it gives room back
        monkeypatch.setattr(loop, "WAKE_S", 3600.0)


@pytest.fixture
def often(monkeypatch):
    """Each batch is put into the file, by the checkpointer alone."""
    monkeypatch.setattr(checkpointer, "WAKE_S", 0.02)
    monkeypatch.setattr(checkpointer, "EACH_BYTES", KEPT)
    monkeypatch.setattr(compactor, "WAKE_S", 3600.0)


@pytest.mark.usefixtures("seldom")
def test_what_was_acknowledged_is_there_after_a_kill_with_a_long_log(tmp_path):
    folder, runs = tmp_path / "killed", range(10)
    app = app_of(tmp_path / "data")
    with opened(app) as client:
        assert stored(client, runs) == {"stored"}
        assert app.state.database.log_size() > OF_SQLITE, "no commit put it into the file"
        shutil.copytree(tmp_path / "data", folder)  # as a kill -9 leaves it
    with opened(app_of(folder)) as client:
        assert stored(client, runs) == {"duplicate"}


@pytest.mark.usefixtures("seldom")
def test_a_log_that_is_written_and_read_all_the_time_begins_anew(tmp_path):
    app = app_of(tmp_path)
    with opened(app) as client, contextlib.ExitStack() as stack:
        store, stopping = app.state.database, threading.Event()
        for _ in range(2):
            stack.enter_context(_Reading(store, stopping))
        stack.callback(stopping.set)
        for round_ in range(3):
            assert stored(client, range(2 * round_, 2 * round_ + 2)) == {"stored"}
            assert store.checkpoint()
        log = tmp_path / "gradcanary.db-wal"
        assert log.stat().st_size < OF_SQLITE, "each time it was written from its beginning"


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
def test_who_reads_what_was_for_long_holds_up_nobody_who_writes_and_the_log_ends_after_him(tmp_path, monkeypatch):
    monkeypatch.setattr(database, "_DRAIN_S", 0.05)
    app = app_of(tmp_path)
    with opened(app) as client:
        store = app.state.database
        with store.read() as connection:
            before = connection.exec_driver_sql("SELECT count(*) FROM batch").scalar_one()
            for run in range(3):
                assert stored(client, [run]) == {"stored"}
                assert not store.checkpoint()
            assert connection.exec_driver_sql("SELECT count(*) FROM batch").scalar_one() == before
            size = store.log_size()
        assert size > 3 * len(BODY)
        assert store.checkpoint()
        assert stored(client, [3]) == {"stored"}
        assert store.log_size() < size


@pytest.mark.usefixtures("often")
def test_a_collector_puts_its_log_into_the_file_by_itself_and_says_how_long_it_is(tmp_path):
    app = app_of(tmp_path)
    with opened(app) as client:
        assert stored(client, [0]) == {"stored"}
        file = tmp_path / "gradcanary.db"
        eventually(partial(_is_over, file, KEPT))
        found = samples(client)
        assert 0 < found["gradcanary_store_log_bytes",] < found["gradcanary_store_bytes",]
        assert found["gradcanary_loop_lag_seconds", "checkpointer"] < 60


@pytest.mark.usefixtures("often")
def test_a_checkpoint_that_fails_is_told_tried_again_and_fails_no_batch(tmp_path, caplog):
    with opened(app_of(tmp_path)) as client:
        file = tmp_path / "gradcanary.db"
        for number in range(6):
            assert stored(client, [number]) == {"stored"}
            eventually(partial(_is_over, file, (number + 1) * KEPT))
        with limited(file.stat().st_size):  # the log is shorter
            assert stored(client, [6]) == {"stored"}
            eventually(lambda: "full" in checked(client))
            assert stored(client, [7]) == {"stored"}
        eventually(lambda: checked(client) == "ok")
    told = [each for each in caplog.records if each.name == checkpointer.logger.name]
    assert all("Trying again" in each.message for each in told)
    assert 1 <= len(told) <= 3, "not each round; once more where somebody was in its way meanwhile"


def _is_over(file, size):
    return file.stat().st_size > size


def checked(client):
    return client.get("/readyz").json()["checks"]["checkpointer"]


@pytest.mark.usefixtures("seldom")
def test_a_file_that_the_disk_did_not_keep_is_left_to_a_process_that_begins_anew(tmp_path, monkeypatch):
    app, given_up = app_of(tmp_path), []
    with opened(app) as client:
        store = app.state.database
        store.when_lost = lambda: given_up.append(True)
        assert stored(client, [0]) == {"stored"}
        with monkeypatch.context() as patched:
            patched.setattr(wal, "_flush_file", _fail)
            with pytest.raises(RequestError, match="Input/output error"):
                store.checkpoint()
        assert given_up
        assert stored(client, [1]) == {"stored"}


@pytest.mark.usefixtures("seldom")
def test_what_the_disk_lost_of_the_file_is_in_it_once_somebody_else_ends(tmp_path, monkeypatch):
    """A command that has the store open takes the log away as it ends, whatever became of the collector."""
    app, file, copy = app_of(tmp_path / "data"), tmp_path / "data" / "gradcanary.db", tmp_path / "copy"
    with opened(app) as client:
        store = app.state.database
        assert stored(client, [0]) == {"stored"}
        assert store.checkpoint()
        before = file.read_bytes()
        assert stored(client, [1]) == {"stored"}

        def lose(descriptor):
            file.write_bytes(before)
            _fail(descriptor)

        with monkeypatch.context() as patched:
            patched.setattr(wal, "_flush_file", lose)
            with pytest.raises(RequestError, match="Input/output error"):
                store.checkpoint()
        with contextlib.closing(sqlite3.connect(file)) as beside:
            assert beside.execute("PRAGMA wal_checkpoint").fetchone()[0] == 0
        copy.mkdir()
        shutil.copy(file, copy)
    with opened(app_of(copy)) as client:
        assert stored(client, [0, 1]) == {"duplicate"}


def _fail(_descriptor):
    raise OSError(errno.EIO, "Input/output error")


def _no_descriptor(*_):
    raise OSError(errno.EMFILE, "Too many open files")


@pytest.mark.usefixtures("seldom")
def test_a_file_that_cannot_be_opened_for_now_ends_no_process(tmp_path, monkeypatch):
    app, given_up, plain = app_of(tmp_path), [], os.open

    def none_left(path, *rest):
        if str(path).endswith(".db"):
            raise OSError(errno.EMFILE, "Too many open files")
        return plain(path, *rest)

    with opened(app) as client:
        store = app.state.database
        store.when_lost = lambda: given_up.append(True)
        assert stored(client, [0]) == {"stored"}
        with monkeypatch.context() as patched:
            patched.setattr(wal.os, "open", none_left)
            with pytest.raises(RequestError, match="Too many open files") as refused:
                store.checkpoint()
        assert refused.value.status == 503
        assert store.checkpoint()
    assert not given_up


@pytest.mark.usefixtures("often")
def test_a_log_that_cannot_be_looked_at_for_now_is_told_in_one_line(tmp_path, monkeypatch, caplog):
    app = app_of(tmp_path)
    with opened(app) as client:
        with monkeypatch.context() as patched:
            patched.setattr(wal.WriteAheadLog, "size", _no_descriptor)
            eventually(lambda: "Too many open files" in checked(client))
            assert "gradcanary_database_up 0.0" in client.get("/metrics").text
        eventually(lambda: checked(client) == "ok")
    told = [record for record in caplog.records if record.name == "gradcanary_server.checkpointer"]
    assert [(record.levelname, record.exc_info) for record in told] == [("WARNING", None)]


@pytest.mark.usefixtures("often")
def test_a_log_that_nobody_writes_on_is_put_into_the_file_once(tmp_path, monkeypatch):
    app = app_of(tmp_path)
    store, calls = app.state.database, Counter()
    for name in ("checkpoint", "log_size"):
        monkeypatch.setattr(store, name, partial(_counted, calls, name, getattr(store, name)))
    with opened(app) as client:
        for number in range(2):
            assert stored(client, [number]) == {"stored"}
            eventually(partial(_is_over, tmp_path / "gradcanary.db", (number + 1) * KEPT))
            calls.clear()
            eventually(lambda: calls["log_size"] > 10)
            assert calls["checkpoint"] <= 1, "the last of what the first found"


def _counted(calls, name, call):
    calls[name] += 1
    return call()
