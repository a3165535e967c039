"""Calls of a tracker's library: in order, off the caller's thread, and of no harm if one fails or hangs."""

import logging
import threading

import pytest

from gradcanary.integrations.library import MOST_WAITING, Library

BY_TEST = "a call of the test"


def fail() -> None:
    raise ConnectionError("no route")


def test_calls_are_made_in_order_on_one_thread_that_ends() -> None:
    library, made = Library("tests"), []
    for number in range(20):
        library.call(BY_TEST, lambda number=number: made.append((number, threading.current_thread().name)))
    library.wait(10)
    assert made == [(number, "gradcanary-tests") for number in range(20)]
    assert "gradcanary-tests" not in {thread.name for thread in threading.enumerate()}


def test_a_call_that_hangs_holds_up_only_those_after_it() -> None:
    library, hanging, released, made = Library("hangs"), threading.Event(), threading.Event(), []

    def hang() -> None:
        hanging.set()
        released.wait(30)

    library.call(BY_TEST, hang)
    assert hanging.wait(30)
    for number in range(MOST_WAITING + 5):
        library.call(BY_TEST, lambda number=number: made.append(number))
    library.wait(0.01)
    assert made == []
    released.set()
    library.wait(30)
    assert made == list(range(5, MOST_WAITING + 5))


@pytest.mark.parametrize("error", [fail, lambda: exit(3)])
def test_a_call_that_fails_is_a_line_in_the_log(error: object, caplog: pytest.LogCaptureFixture) -> None:
    library, made = Library("fails"), []
    with caplog.at_level(logging.WARNING, "gradcanary"):
        library.call("the address", error)
        library.call(BY_TEST, lambda: made.append(1))
        library.wait(10)
    (line,) = caplog.messages
    assert line.startswith("gradcanary: fails did not get the address: ")
    assert made == [1]


def test_an_alert_without_a_run_is_a_line_in_the_log_of_the_first_rank(caplog: pytest.LogCaptureFixture) -> None:
    library = Library("empty")
    with caplog.at_level(logging.WARNING, "gradcanary"):
        library.call_with_run("the alert of incident #3", fail)
        assert caplog.messages == [], "a later rank, which follows no run"
        library.follow(None)
        library.call_with_run("the alert of incident #3", fail)
    (line,) = caplog.messages
    assert line == (
        "gradcanary: empty did not get the alert of incident #3: no run was active when the latest step was sampled"
    )


def refuse(_thread: threading.Thread) -> None:
    raise RuntimeError("can't create new thread at interpreter shutdown")


def test_a_thread_that_is_kept_makes_the_calls_of_the_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.12 and newer start none there, where the last incident of a training arrives."""
    library, made = Library("kept"), []
    library.keep()
    library.call(BY_TEST, lambda: made.append(1))
    monkeypatch.setattr(threading.Thread, "start", refuse)
    library.call(BY_TEST, lambda: made.append(threading.current_thread().name))
    library.wait(10)
    assert made == [1, "gradcanary-kept"]
    assert "gradcanary-kept" not in {thread.name for thread in threading.enumerate()}


def test_where_no_thread_can_start_the_callers_thread_makes_no_call(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    library, made = Library("late"), []
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        library.keep()
        library.call("the address", lambda: made.append(1))
    library.call("the alert", lambda: made.append(2))
    library.wait(10)
    assert made == [1, 2], "a later thread makes them"
    monkeypatch.setattr(threading.Thread, "start", refuse)
    library.call("the address", lambda: made.append(3))
    library.call("the alert", lambda: made.append(4))
    with caplog.at_level(logging.WARNING, "gradcanary"):
        library.wait(1)
        library.wait(1)
    assert made == [1, 2]
    assert caplog.messages == ["gradcanary: late did not get the address, the alert: no thread could be started"]
