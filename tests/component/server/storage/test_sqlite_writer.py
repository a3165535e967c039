"""A commit is on disk when it returns, one flush serves those that wait, and a flush that failed loses nothing."""

import os
import sqlite3
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import event, func, insert, select, text, update

from gradcanary_server.errors import RequestError
from gradcanary_server.storage import sqlite_writer
from gradcanary_server.storage.database import Database
from gradcanary_server.storage.schema import rule_state
from support import blank_stores
from support.server.disks import Disk, installed
from support.waiting import eventually

WAIT_S = 120


class SlowDisk(Disk):
    """Each flush of the log waits for ``go`` while ``waits``."""

    def __init__(self):
        super().__init__()
        self.waits = False
        self.begun, self.go = threading.Semaphore(0), threading.Semaphore(0)

    def flush(self, file):
        if self.waits and file.path.endswith("-wal"):
            self.begun.release()
            assert self.go.acquire(timeout=WAIT_S)
        return super().flush(file)


@pytest.fixture
def disk(monkeypatch):
    monkeypatch.setattr(sqlite_writer, "RETRY_S", 0.0)
    monkeypatch.setattr(sqlite_writer, "COLLECT_S", WAIT_S)
    with installed(SlowDisk()) as slow:
        yield slow


@pytest.fixture
def file(tmp_path):
    return blank_stores.lay(tmp_path)


@pytest.fixture
def store(disk, file):
    store = Database(f"sqlite:///{file}")
    yield store
    disk.fails = disk.loses = False
    store.close()


def put(connection, number):
    connection.execute(insert(rule_state).values(run_id=number, packed=packed(number)))


def packed(number):
    """Return a value that has pages of its own."""
    return number.to_bytes(2, "big") * 10_000


def write(store, number):
    with store.write_shared() as connection:
        put(connection, number)


def numbers(store):
    with store.read() as connection:
        found = {row.run_id: row.packed for row in connection.execute(select(rule_state))}
    assert found == {number: packed(number) for number in found}
    return set(found)


def numbers_in(file: Path):
    opened = Database(f"sqlite:///{file}")
    found = numbers(opened)
    opened.close()
    return found


def give_up():
    raise LookupError


def flushes_of_log(disk):
    return sum(path.endswith("-wal") for path in disk.flushed)


def queue(store, count):
    """Wait until so many writers are in the queue."""
    writer = store._sqlite
    eventually(lambda: len(writer._queue) >= count)


def test_writers_that_wait_for_each_other_share_a_flush_and_none_returns_before_it(store, disk, file, tmp_path):
    write(store, 0)
    before = flushes_of_log(disk)
    with ThreadPoolExecutor(9) as pool:
        with store.write():  # holds the turn
            writing = [pool.submit(write, store, number) for number in range(1, 9)]
            queue(store, 8)
            disk.waits = True
        # The holder wrote nothing, so the first flush is that of the eight.
        assert disk.begun.acquire(timeout=WAIT_S)
        assert not any(each.done() for each in writing)
        assert numbers(store) == {0}, "no reader sees what is not on disk"
        disk.waits = False
        disk.go.release()
        for each in writing:
            each.result(WAIT_S)
    assert flushes_of_log(disk) == before + 1
    assert numbers_in(disk.after_a_cut(file, tmp_path / "cut")) == set(range(9))


def test_a_commit_takes_no_more_than_so_many(store, disk):
    write(store, 0)
    before = flushes_of_log(disk)
    with ThreadPoolExecutor(40) as pool:
        with store.write():
            writing = [pool.submit(write, store, number) for number in range(1, 41)]
            queue(store, 40)
        for each in writing:
            each.result(WAIT_S)
    assert flushes_of_log(disk) == before + 3  # 16, 16 and 8
    assert numbers(store) == set(range(41))


def test_failed_work_is_undone_alone(store):
    write(store, 0)

    def fail(number):
        with store.write_shared() as connection:
            put(connection, number)
            raise LookupError(number)

    with ThreadPoolExecutor(5) as pool:
        with store.write():
            writing = []
            for number in range(1, 6):
                writing.append(pool.submit(write if number % 2 else fail, *([store] if number % 2 else []), number))
                queue(store, number)
        failed = [number for number, each in enumerate(writing, 1) if each.exception(WAIT_S) is not None]
    assert failed == [2, 4]
    assert all(isinstance(writing[number - 1].exception(), LookupError) for number in failed)
    assert numbers(store) == {0, 1, 3, 5}


def test_a_commit_that_fails_fails_for_all_in_it(store, disk):
    write(store, 0)
    with ThreadPoolExecutor(3) as pool:
        with store.write():
            writing = [pool.submit(write, store, number) for number in range(1, 4)]
            queue(store, 3)
            disk.fails = True
        errors = [each.exception(WAIT_S) for each in writing]
    assert [getattr(each, "status", None) for each in errors] == [503] * 3, errors
    assert numbers(store) == {0}


def test_rolled_back_transaction_is_acknowledged_to_none(store):
    write(store, 0)

    def write_and_break(number):
        with store.write_shared() as connection:
            put(connection, number)
            connection.exec_driver_sql("ROLLBACK")  # as SQLite does where it cannot go on
            raise LookupError(number)

    with ThreadPoolExecutor(2) as pool:
        with store.write():
            first = pool.submit(write, store, 1)
            queue(store, 1)
            second = pool.submit(write_and_break, 2)
            queue(store, 2)
        assert first.exception(WAIT_S).status == 503
        assert isinstance(second.exception(WAIT_S), LookupError)
    write(store, 3)
    assert numbers(store) == {0, 3}


@pytest.mark.parametrize("open_transaction", [Database.write, Database.write_shared])
def test_interrupted_statement_releases_the_writer(store, open_transaction):
    """SQLAlchemy closes a connection whose statement did not come to an end."""
    write(store, 0)

    def interrupt(*_):
        raise KeyboardInterrupt

    def work():
        with open_transaction(store) as connection:
            put(connection, 1)
            event.listen(store._engine, "before_cursor_execute", interrupt)
            put(connection, 2)

    with pytest.raises(KeyboardInterrupt):
        work()
    event.remove(store._engine, "before_cursor_execute", interrupt)
    write(store, 3)
    assert numbers(store) == {0, 3}


def test_a_writer_that_waits_too_long_is_asked_to_come_back_and_no_commit_waits_for_it(store, monkeypatch):
    monkeypatch.setattr(sqlite_writer, "BUSY_S", 0.05)
    with ThreadPoolExecutor(1) as pool, store.write():
        refused = pool.submit(write, store, 1).exception(WAIT_S)
    assert refused.status == 503
    write(store, 2)
    assert numbers(store) == {2}


def test_a_disk_that_failed_is_tried_again_and_keeps_all_that_was_acknowledged(store, disk, file, tmp_path, caplog):
    write(store, 1)
    disk.fails = True
    for number in (2, 3):
        with pytest.raises(RequestError, match="disk I/O error") as refused:
            write(store, number)
        assert refused.value.status == 503
    assert "disk I/O error" in store.health()
    assert numbers(store) >= {1}, "readers go on"
    disk.fails = False
    write(store, 4)
    assert store.health() is None
    assert "the disk keeps again" in caplog.text
    assert {1, 4} <= numbers(store)
    assert numbers_in(disk.after_a_cut(file, tmp_path / "cut")) == numbers(store)


def test_lost_writes_were_not_acknowledged_and_the_process_continues(store, disk, file, tmp_path):
    write(store, 1)
    disk.loses = True
    with pytest.raises(RequestError):
        write(store, 2)
    disk.loses = False
    write(store, 3)
    assert numbers(store) == {1, 3}
    assert numbers_in(disk.after_a_cut(file, tmp_path / "cut")) == {1, 3}


@pytest.mark.parametrize("word", ["fails", "loses"])
def test_a_flush_of_the_file_that_failed_loses_nothing(store, disk, file, tmp_path, word):
    """SQLite counts pages as copied into the file before it flushes them, where others write meanwhile."""
    write(store, 1)
    with store.read() as connection:
        connection.execute(select(rule_state.c.run_id)).all()
        write(store, 2)
        assert not store.checkpoint()  # which copies 1, and cannot copy 2
    disk.ill = ".db"
    setattr(disk, word, True)
    with pytest.raises(RequestError, match="disk I/O error"):
        store.checkpoint()
    setattr(disk, word, False)
    write(store, 3)
    assert store.checkpoint()
    assert numbers_in(disk.after_a_cut(file, tmp_path / "cut")) == {1, 2, 3}


def test_the_next_process_makes_sure_of_what_it_finds(store, disk, file, tmp_path):
    """A log whose flush failed is read from memory by the next process, though the disk does not have it."""
    write(store, 1)
    disk.fails = True
    with pytest.raises(RequestError):
        write(store, 2)
    disk.fails = False
    copied = tmp_path / "killed"
    copied.mkdir()
    for suffix in ("", "-wal"):  # as a kill -9 leaves it, read from memory
        source, target = Path(f"{file}{suffix}"), copied / f"{file.name}{suffix}"
        target.write_bytes(source.read_bytes())
        disk.kept[str(target)] = disk.kept.get(str(source), b"")
        disk._lost[str(target)] = set(disk._lost.get(str(source), ()))
    assert any(disk._lost.values()), "the disk does not have it"
    again = Database(f"sqlite:///{copied / file.name}")
    write(again, 3)
    found = numbers(again)
    assert {1, 3} <= found
    assert numbers_in(disk.after_a_cut(copied / file.name, tmp_path / "cut")) == found
    again.close()


def test_a_disk_that_goes_on_failing_is_not_asked_by_each_request(store, disk, monkeypatch):
    write(store, 1)
    monkeypatch.setattr(sqlite_writer, "RETRY_S", 3600.0)
    disk.fails = True
    before = len(disk.flushed)
    for _ in range(5):
        with pytest.raises(RequestError, match="disk I/O error"):
            write(store, 2)
    assert len(disk.flushed) == before + 1


def test_readers_that_stay_hold_up_the_healing_and_writers_are_asked_to_come_back(store, disk, monkeypatch):
    monkeypatch.setattr(sqlite_writer, "DRAIN_S", 0.05)
    write(store, 1)
    disk.fails = True
    with pytest.raises(RequestError):
        write(store, 2)
    disk.fails = False
    with store.read() as connection:
        assert connection.execute(select(func.count()).select_from(rule_state)).scalar_one() >= 1
        with pytest.raises(RequestError, match="disk I/O error"):
            write(store, 3)
    write(store, 4)
    assert {1, 4} <= numbers(store)


def test_a_store_that_is_closed_while_its_disk_fails_is_whole(store, disk, file):
    write(store, 1)
    disk.fails = True
    with pytest.raises(RequestError):
        write(store, 2)
    store.close()
    disk.fails = False
    assert numbers_in(file) >= {1}


def test_the_log_of_a_linked_file_is_measured(disk, tmp_path):
    real = blank_stores.lay(tmp_path / "real")
    link = tmp_path / "link.db"
    link.symlink_to(real)
    with closing(sqlite3.connect(real)) as beside:
        beside.execute("SELECT 1 FROM run")
        store = Database(f"sqlite:///{link}")
        write(store, 1)
        assert store.log_size() > 0
        store.close()


@settings(max_examples=10, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.sampled_from(["keep", "raise", "fail"])), min_size=1, max_size=12))
def test_acknowledged_work_is_kept_and_failed_work_is_not(tmp_path_factory, works):
    """Each work is shared or not, and is kept, raises, or meets a disk that fails."""
    folder = tmp_path_factory.mktemp("store")
    file, disk = blank_stores.lay(folder), Disk()
    with installed(disk), pytest.MonkeyPatch.context() as patched:
        patched.setattr(sqlite_writer, "RETRY_S", 0.0)
        store = Database(f"sqlite:///{file}")
        write(store, 100)
        acknowledged, raised = {100}, set()

        def work(number, is_shared, fate):
            try:
                with (store.write_shared if is_shared else store.write)() as connection:
                    put(connection, number)
                    disk.fails = disk.fails or fate == "fail"
                    if fate == "raise":
                        give_up()
            except LookupError:
                raised.add(number)
            except RequestError:
                disk.fails = False
            else:
                acknowledged.add(number)

        with ThreadPoolExecutor(4) as pool:
            for number, each in enumerate(works):
                pool.submit(work, number, *each)
        disk.fails = False
        write(store, 101)
        found = numbers(store)
        assert acknowledged | {101} <= found
        assert not raised & found
        assert numbers_in(disk.after_a_cut(file, folder / "cut")) == found
        store.close()


def test_a_shared_commit_is_one_of_sqlites(store):
    """Another process sees all of it or nothing."""
    with store.write_shared() as connection:
        put(connection, 1)
        assert connection.execute(text("SELECT count(*) FROM rule_state")).scalar_one() == 1
        assert numbers(store) == set()
    assert numbers(store) == {1}


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_a_large_change_of_a_shared_commit_needs_no_temporary_file(store):
    """A container may have no folder for one; creating and deleting it would take a tenth of a batch."""
    with store.write_shared() as connection:
        for number in range(10):
            put(connection, number)
    with store.write_shared() as connection:
        connection.execute(update(rule_state).values(packed=packed(0)))
        opened = [os.path.realpath(each) for each in Path("/proc/self/fd").iterdir()]
    assert not [path for path in opened if "etilqs" in path]
