"""A commit is on disk before anybody is told of it, and one flush serves all that wait."""

import errno
import os
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import blank_stores
import pytest
from disks import FailingDisk
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import func, insert, select

from gradcanary_server import frames, wal
from gradcanary_server.database import Database
from gradcanary_server.errors import RequestError
from gradcanary_server.schema import fold_state
from gradcanary_server.wal import WriteAheadLog


class Disk:
    """A disk that takes its time: flushes wait for ``go``; ``kept`` is what the log was when each of them began."""

    def __init__(self):
        self.kept, self.begun, self.go = [], threading.Semaphore(0), threading.Semaphore(0)
        self.error = None

    def flush(self, descriptor):
        size = os.fstat(descriptor).st_size
        self.begun.release()
        assert self.go.acquire(timeout=60)
        if self.error is not None:
            raise self.error
        self.kept.append(os.pread(descriptor, size, 0))


@pytest.fixture
def disk(monkeypatch):
    slow = Disk()
    monkeypatch.setattr(wal, "_flush", slow.flush)
    return slow


@pytest.fixture
def log(tmp_path):
    return WriteAheadLog(str(tmp_path / "x.db")), tmp_path / "x.db-wal"


def commit(file, what):
    with file.open("ab") as appended:
        appended.write(what)


def test_one_flush_serves_all_that_were_committed_before_it_began(log, disk):
    written, file = log
    commit(file, b"0")
    with ThreadPoolExecutor(9) as pool:
        first = pool.submit(written.flush)
        assert disk.begun.acquire(timeout=30)  # and what is committed from here on may not be in it
        commit(file, b"12345678")
        others = [pool.submit(written.flush) for _ in range(8)]
        disk.go.release(3)
        for each in (first, *others):
            each.result(30)
    assert b"12345678" in disk.kept[1]
    assert len(disk.kept) <= 3  # one that came late may have missed the second


def test_nobody_is_served_by_a_flush_that_began_before_his_commit(log, disk):
    written, file = log
    commit(file, b"0")
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(written.flush)
        assert disk.begun.acquire(timeout=30)
        commit(file, b"1")
        second = pool.submit(written.flush)
        disk.go.release()
        first.result(30)
        assert disk.begun.acquire(timeout=30)
        assert not second.done()
        disk.go.release()
        second.result(30)
    assert disk.kept == [b"0", b"01"]


@pytest.fixture
def store(tmp_path):
    opened = Database(f"sqlite:///{blank_stores.lay(tmp_path)}")
    yield opened
    opened.close()


def write(store, run_id):
    with store.write() as connection:
        connection.execute(insert(fold_state).values(run_id=run_id, packed=b"told %d" % run_id))


def test_who_writes_waits_for_the_disk_with_the_whole_commit_in_it(store, disk):
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(write, store, 1)
        assert disk.begun.acquire(timeout=30)
        second = pool.submit(write, store, 2)  # the disk holds up nobody who computes
        until = time.monotonic() + 30
        while read(store) < 2:
            assert time.monotonic() < until
        assert not first.done()
        assert not second.done()
        disk.go.release(2)
        first.result(30)
        second.result(30)
    assert b"told 1" in disk.kept[0]
    assert b"told 2" in disk.kept[1]


def test_who_asks_how_long_the_log_is_waits_for_no_disk(store, disk):
    with ThreadPoolExecutor(2) as pool:
        writing = pool.submit(write, store, 1)
        assert disk.begun.acquire(timeout=30)
        try:
            assert pool.submit(store.log_size).result(30) > 0
            assert not writing.done()
        finally:
            disk.go.release()
        writing.result(30)


def read(store):
    with store.read() as connection:
        return connection.execute(select(func.count()).select_from(fold_state)).scalar_one()


EIO = OSError(errno.EIO, "Input/output error")


@pytest.fixture
def failing(tmp_path, store, monkeypatch):
    monkeypatch.setattr(wal, "RENEW_EACH_S", 0.0)
    return FailingDisk(monkeypatch, tmp_path / "gradcanary.db")


def found(file):
    opened = Database(f"sqlite:///{file}")
    with opened.read() as connection:
        rows = set(connection.scalars(select(fold_state.c.run_id)))
    opened.close()
    return rows


def test_a_disk_that_failed_is_tried_again_and_keeps_all_before_anything_is_told(store, failing, tmp_path, caplog):
    write(store, 1)
    failing.fails = EIO
    for number in (2, 3):
        with pytest.raises(RequestError, match="Input/output error") as refused:
            write(store, number)
        assert refused.value.status == 503
    assert "Input/output error" in store.trouble()
    failing.fails = None  # as a kernel does, which has forgotten what it could not write
    write(store, 4)
    assert store.trouble() is None
    assert "The disk keeps again" in caplog.text
    told = {1, 4}
    assert told <= found(failing.after_a_cut(tmp_path / "cut"))
    assert found(failing.file) == {1, 2, 4}, "3 was not begun on a disk that fails"


def test_what_the_disk_lost_is_not_built_upon(store, failing, tmp_path):
    given_up = []
    store.when_lost = lambda: given_up.append(True)
    write(store, 1)
    failing.fails = EIO
    with pytest.raises(RequestError, match="Input/output error"):
        write(store, 2)
    failing.fails = None
    failing.forget()
    with pytest.raises(RequestError, match="start the collector anew"):
        write(store, 3)
    assert given_up
    assert store.trouble()
    store.close()  # which SQLite would take for the time to write its log into the file
    again = Database(f"sqlite:///{failing.file}")
    write(again, 4)
    again.close()
    assert found(failing.file) == {1, 4}


def test_what_the_disk_lost_is_not_put_into_the_file_by_whoever_ends_last(store, failing, tmp_path):
    """A command that has the store open does that as it ends, and asks only SQLite's index how long the log is."""
    write(store, 1)
    failing.fails = EIO
    with pytest.raises(RequestError, match="Input/output error"):
        write(store, 2)
    with closing(sqlite3.connect(failing.file)) as beside:
        assert beside.execute("SELECT count(*) FROM fold_state").fetchone() == (2,)
        failing.fails = None
        failing.forget()
        with pytest.raises(RequestError, match="start the collector anew"):
            write(store, 3)
        assert beside.execute("PRAGMA wal_checkpoint").fetchone()[0] == 0
    copy = tmp_path / "copy.db"
    copy.write_bytes(failing.file.read_bytes())
    assert found(copy) == {1}


@pytest.mark.parametrize("make_room", [Database.reclaim, Database.checkpoint])
def test_what_a_flush_did_not_keep_is_not_put_into_the_file_to_make_room(store, failing, make_room):
    write(store, 1)
    before = failing.file.read_bytes()
    failing.fails = EIO  # after the last look at what is in doubt
    with pytest.raises(RequestError, match="Input/output error"):
        make_room(store)
    assert failing.file.read_bytes() == before
    failing.fails = None
    with store.write():
        pass  # which makes sure of the log
    make_room(store)
    assert failing.file.read_bytes() != before


def test_who_begins_makes_sure_that_what_is_there_is_on_disk(store, failing, tmp_path):
    write(store, 1)
    failing.fails = EIO
    with pytest.raises(RequestError):
        write(store, 2)
    failing.fails = None
    again = Database(f"sqlite:///{failing.file}")  # another process, which heard of no failure
    write(again, 3)
    assert found(failing.after_a_cut(tmp_path / "cut")) == {1, 2, 3}
    again.close()


def test_a_disk_that_goes_on_failing_is_not_asked_at_each_request(store, failing, monkeypatch):
    write(store, 1)
    failing.fails = EIO
    monkeypatch.setattr(wal, "RENEW_EACH_S", 3600.0)
    for _ in range(5):
        with pytest.raises(RequestError, match="Input/output error"):
            write(store, 2)
    assert failing.flushes == 1 + 1 + 1, "one that went well, one that failed, one try"


def test_who_committed_before_the_disk_failed_is_not_told_otherwise_by_the_next_flush(log, disk):
    written, file = log
    commit(file, b"0")
    disk.error = EIO
    disk.go.release()
    with pytest.raises(OSError, match="Input/output"):
        written.flush()
    disk.error = None
    disk.go.release()
    with pytest.raises(OSError, match="Input/output"):
        written.flush()
    assert disk.kept == []


@pytest.fixture(scope="module")
def grown(tmp_path_factory):
    """A log of 40 frames, and how long SQLite says that it is."""
    file = tmp_path_factory.mktemp("grown") / "x.db"
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        for said in ("PRAGMA page_size = 512", "PRAGMA journal_mode = WAL", "CREATE TABLE t (x)"):
            connection.execute(said)
        for number in range(19):
            connection.execute("INSERT INTO t VALUES (?)", (bytes([number]) * 400,))
        shared = file.with_name("x.db-shm").read_bytes()
        return file.with_name("x.db-wal").read_bytes(), frames.extent(shared)


@given(data=st.data())
def test_frames_are_whole_up_to_the_first_byte_that_is_another_one(grown, data):
    raw, _ = grown
    size = frames.Chain(raw[: frames.HEADER]).size
    place = data.draw(st.integers(frames.HEADER, len(raw) - 1))
    chain = frames.Chain(raw[: frames.HEADER])
    changed = bytearray(raw[frames.HEADER :])
    changed[place - frames.HEADER] ^= data.draw(st.integers(1, 255))
    at, in_doubt = 0, (place - frames.HEADER) // size
    while whole := chain.follow(bytes(changed[at:]), data.draw(st.integers(1, 20))):
        at += whole
    assert chain.count == in_doubt
    assert at == in_doubt * size


def test_frames_that_nobody_touched_are_those_that_sqlite_knows(grown):
    raw, known = grown
    chain = frames.Chain(raw[: frames.HEADER])
    assert chain.follow(raw[frames.HEADER :], 10**6) == len(raw) - frames.HEADER
    assert (chain.count, chain.sums) == (known.count, known.sums)
    assert known.count > 30
    for header in (b"", b"no log" * 8, raw[:20] + b"x" + raw[21 : frames.HEADER]):
        with pytest.raises(ValueError, match="log"):
            frames.Chain(header)


def test_a_log_that_cannot_be_opened_is_tried_again_and_one_that_is_gone_has_nothing_to_flush(log, monkeypatch):
    written, file = log
    written.flush()
    commit(file, b"0")
    with monkeypatch.context() as patched:
        patched.setattr(wal.os, "open", _no_descriptor)
        with pytest.raises(OSError, match="Too many open files"):
            written.flush()
    written.flush()
    written.close()


def _no_descriptor(*_):
    raise OSError(errno.EMFILE, "Too many open files")


def test_the_log_of_a_linked_file_is_flushed_and_a_new_one_after_the_old(tmp_path, monkeypatch):
    flushed = []
    monkeypatch.setattr(wal, "_flush", lambda descriptor: flushed.append(os.fstat(descriptor).st_ino))
    (tmp_path / "there").mkdir()
    (tmp_path / "link.db").symlink_to(blank_stores.lay(tmp_path / "there"))
    opened = Database(f"sqlite:///{tmp_path / 'link.db'}")
    write(opened, 1)
    assert flushed
    opened.close()
    again = Database(f"sqlite:///{tmp_path / 'link.db'}")
    write(again, 2)
    logs = [each.stat().st_ino for each in (tmp_path / "there").glob("*-wal")]
    assert flushed[-1:] == logs
    again.close()


def test_a_new_log_is_in_its_folder_before_anybody_is_told(log, monkeypatch):
    flushed = []
    with monkeypatch.context() as patched:
        patched.setattr(wal, "_flush", lambda descriptor: flushed.append("log"))
        patched.setattr(
            wal.os, "fsync", lambda descriptor: flushed.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        )
        written, file = log
        for what in (b"0", b"1"):
            commit(file, what)
            written.flush()
    assert flushed == [str(file.parent), "log", "log"]
    written.close()


def test_one_descriptor_is_kept_until_there_is_another_log(log, monkeypatch):
    opened, flushed = [], []
    monkeypatch.setattr(wal, "_flush", lambda descriptor: flushed.append(os.fstat(descriptor).st_ino))
    plain = os.open
    with monkeypatch.context() as patched:
        patched.setattr(wal.os, "open", lambda path, *rest: opened.append(path) or plain(path, *rest))
        written, file = log
        commit(file, b"0")
        written.flush()
        written.flush()
        assert len([each for each in opened if str(each).endswith("-wal")]) == 1
        old = file.stat().st_ino
        file.rename(file.with_name("old"))
        commit(file, b"1")
        written.flush()
    assert flushed == [old, old, old, file.stat().st_ino], "the old one once more, for what it may say of the disk"
    written.close()


def test_to_close_a_store_gives_back_no_lock_that_others_of_this_process_have(store, tmp_path):
    """Linux takes all of a process on a file with the first descriptor of it that is closed."""
    write(store, 1)
    store.checkpoint()
    file = tmp_path / "gradcanary.db"
    with closing(sqlite3.connect(file)) as other:
        assert other.execute("SELECT run_id FROM fold_state").fetchall() == [(1,)]
        store.close()
        assert "locked" in with_the_log_taken_away(file), "by another process, from under one that has it open"
    assert with_the_log_taken_away(file) == "delete"


def with_the_log_taken_away(file):
    """Return what SQLite says to somebody who wants no log beside a file any more."""
    program = "import sqlite3, sys; print(*sqlite3.connect(sys.argv[1], 0).execute('PRAGMA journal_mode=DELETE'))"
    said = subprocess.run([sys.executable, "-ISc", program, file], capture_output=True, text=True, check=False)
    return (said.stdout or said.stderr).strip(" (),'\n")


@pytest.mark.parametrize("said", [0, 1])
def test_a_file_is_another_one_by_what_its_path_leads_to_and_not_by_its_links(store, monkeypatch, said):
    """Some file systems say that one which is there has no link, or that one which is gone has."""
    real, closed = os.fstat, []
    close = os.close
    monkeypatch.setattr(os, "fstat", lambda descriptor: _with_links(real(descriptor), said))
    monkeypatch.setattr(os, "close", lambda descriptor: (closed.append(descriptor), close(descriptor)))
    known = None
    for number in range(3):
        assert (store._wal._index, known in closed) == (known, False), "SQLite's locks would be given back with it"
        write(store, number)
        store._wal._is_sure = False
        write(store, 10 + number)
        known = known or store._wal._index
    store.close()
    assert known in closed, "nobody has it open any more"


def _with_links(found, count):
    return os.stat_result([*found[:3], count, *found[4:]])
