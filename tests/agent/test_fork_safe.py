"""A fork does not find the agent's thread inside SQLite, unless SQLite hangs; other locks are new in the child."""

import multiprocessing
import threading
from pathlib import Path

import pytest
from scripted import WAIT_S, Training, collector_that

import gradcanary
from gradcanary import fork_safe, tap

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")  # that is what is tested


def test_a_fork_waits_for_a_statement(tmp_path):
    assert found_by_a_fork(tmp_path / "file", seconds=0.2) == "over"


def test_a_fork_does_not_wait_for_a_disk_that_hangs(tmp_path, monkeypatch):
    monkeypatch.setattr(fork_safe, "PATIENCE_S", 0.1)
    assert found_by_a_fork(tmp_path / "file", seconds=5) == "inside"


def test_parent_and_child_use_sqlite_after_it(tmp_path):
    (tmp_path / "file").touch()
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()

    def write() -> None:
        answers.put(fork_safe.connect(f"file:{tmp_path / 'file'}").rows("SELECT 1"))

    child = context.Process(target=write)
    child.start()
    write()
    assert (answers.get(), answers.get()) == ([(1,)], [(1,)])
    child.join()


def test_a_child_leaves_backward_while_another_thread_of_the_parent_holds_its_lock():
    """``watch()`` or ``close()`` in that thread: the child has the lock, and nothing there would release it."""
    training = Training()
    with collector_that() as collector, gradcanary.watch(training.model, training.optimizer, url=collector.url):
        training.steps(1)
        held, leave = threading.Event(), threading.Event()

        def hold() -> None:
            with tap._lock:
                held.set()
                leave.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        child = multiprocessing.get_context("fork").Process(target=training.steps, args=(1,))
        child.start()
        child.join(WAIT_S)
        leave.set()
        thread.join()
        child.kill()
        child.join()
        assert child.exitcode == 0


def found_by_a_fork(path: Path, seconds: float) -> str:
    """Fork while a statement takes its time, and tell how far the child finds it."""
    path.touch()
    far = ["before"]
    inside, leave = threading.Event(), threading.Event()

    def take_time() -> int:
        far[0] = "inside"
        inside.set()
        leave.wait(seconds)
        far[0] = "over"
        return 0

    def use() -> None:
        with fork_safe.connect(f"file:{path}") as connection:
            connection.create_function("take_time", 0, take_time)
            connection.rows("SELECT take_time()")
        connection.close()

    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    thread = threading.Thread(target=use)
    thread.start()
    inside.wait()
    child = context.Process(target=lambda: answers.put(far[0]))
    child.start()
    leave.set()
    found: str = answers.get()
    child.join()
    thread.join()
    return found
