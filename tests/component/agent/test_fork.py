"""A fork finds no lock of the agent's threads held: the child has new ones."""

import multiprocessing
import threading

import pytest

import gradcanary
from gradcanary.hooks import backward
from support.agent.scripted import WAIT_S, Training, collector_that

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")  # that is what is tested


def test_a_child_leaves_backward_while_another_thread_of_the_parent_holds_its_lock():
    """``watch()`` or ``close()`` in that thread: the child has the lock, and nothing there would release it."""
    training = Training()
    with collector_that() as collector, gradcanary.watch(training.model, training.optimizer, url=collector.url):
        training.steps(1)
        held, leave = threading.Event(), threading.Event()

        def hold() -> None:
            with backward._lock:
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
