"""The words for the exception that ended a training."""

import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradcanary import crash


def raised(call: Callable[[], object]) -> BaseException:
    """Return the exception of a call, with its traceback."""
    try:
        call()
    except BaseException as error:  # noqa: BLE001 -- of any kind
        return error
    raise AssertionError("it raised nothing")


def fail_of(error: BaseException) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


def test_frames_are_user_code_first_the_innermost_first() -> None:
    error = raised(lambda: torch.nn.functional.linear(torch.ones(2, 3), torch.nn.Linear(4, 4).weight))
    (lambda_frame, caller), rest = error_frames(error)[:2], error_frames(error)[2:]
    assert "in " in lambda_frame
    assert "test_crash.py:" in lambda_frame
    assert "raised" in caller
    assert rest == []
    inside = raised(lambda: torch.nn.Linear(4, 4)(torch.ones(2, 3)))
    assert "test_crash.py" in error_frames(inside)[0]
    assert error_frames(inside)[2].startswith("torch/nn/modules/linear.py:")
    assert len(error_frames(inside)) <= crash.MOST_FRAMES


def error_frames(error: BaseException) -> list[str]:
    return list(crash.last_frames(error))


def test_frames_of_code_without_a_file_and_of_the_library_alone() -> None:
    error = raised(lambda: exec(compile("1 / 0", "<string>", "exec")))
    assert error_frames(error)[0] == "<string>:1 in <module>"
    assert crash.last_frames(ValueError("never raised")) == ()


def test_deep_recursion_has_few_frames() -> None:
    def again() -> None:
        again()

    found = crash.describe(raised(again))
    assert found.type == "RecursionError"
    assert len(found.frames) == crash.MOST_USER_FRAMES


@pytest.mark.parametrize(
    ("error", "memory"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ..."), "cuda"),
        (torch.OutOfMemoryError("HIP out of memory."), "hip"),
        (torch.OutOfMemoryError("no words"), "cuda"),
        (RuntimeError("CUDA error: out of memory"), "cuda"),
        (RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)"), "mps"),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:1] . DefaultCPUAllocator: can't allocate memory"), "cpu"),
        (MemoryError(), "cpu"),
        (OSError(12, "Cannot allocate memory"), "cpu"),
        (ValueError("CUDA out of memory"), None),
        (RuntimeError("out of memory of the reader"), None),
        (OSError(2, "No such file"), None),
    ],
)
def test_memory_that_ran_out_is_known_by_its_exception(error: Exception, memory: str | None) -> None:
    found = crash.describe(error)
    assert found.memory == memory
    assert (found.peak_bytes is not None) == (memory == "cpu")


def test_host_that_refuses_memory_is_out_of_memory() -> None:
    for call in (lambda: torch.empty(2**50), lambda: np.empty(2**50)):
        found = crash.describe(raised(call))
        assert (found.memory, (found.peak_bytes or 0) > 2**20) == ("cpu", True)


def test_peak_of_a_gpu_needs_no_cuda() -> None:
    assert crash.peak_bytes("cuda", "GPU 0 has a total capacity") is None
    assert not torch.cuda.is_initialized()


@pytest.mark.parametrize(
    "error",
    [
        KeyboardInterrupt(),
        SystemExit(),
        SystemExit(0),
        SystemExit(128 + signal.SIGTERM),
        type("BdbQuit", (Exception,), {})(),
    ],
)
def test_what_a_person_or_a_scheduler_did_is_a_stop(error: BaseException) -> None:
    assert crash.is_stop(error)


@pytest.mark.parametrize("error", [ValueError(), SystemExit(1), SystemExit("no data"), SystemExit(torch.ones(2))])
def test_what_failed_is_no_stop(error: BaseException) -> None:
    assert not crash.is_stop(error)


def test_an_error_after_ctrl_c_is_a_stop() -> None:
    def stop() -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("a worker is gone")

    assert crash.is_stop(raised(stop))


def test_what_a_handler_of_a_signal_raises_is_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    def preempted(_number: int, _frame: object) -> None:
        raise RuntimeError("preempted")

    before = signal.signal(signal.SIGUSR1, preempted)
    try:
        assert crash.is_stop(raised(lambda: signal.raise_signal(signal.SIGUSR1)))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not crash.is_stop(raised(lambda: preempted(0, None))), "it is no handler any more"


def test_an_exit_after_a_caught_error_names_that_error() -> None:
    def leave() -> None:
        try:
            int("bad batch")
        except ValueError:
            sys.exit(1)

    found = crash.root_error(raised(leave))
    assert isinstance(found, ValueError)
    assert crash.describe(SystemExit(3)).message == "exit status 3"


def test_message_may_stay_at_home() -> None:
    found = crash.describe(raised(fail_of(ValueError("a name"))), has_message=False)
    assert (found.type, found.message, crash.one_line(found)) == ("ValueError", "", "ValueError")
    assert found.frames


def test_an_error_without_a_text_has_a_type() -> None:
    class UntellableError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert crash.one_line(crash.describe(UntellableError())) == "UntellableError"


def test_long_message_loses_its_middle() -> None:
    found = crash.describe(ValueError(f"Caught in a worker.\n{'x ' * 500}\nValueError: bad batch"))
    assert found.message.startswith("Caught in a worker. x")
    assert found.message.endswith("ValueError: bad batch")
    assert len(found.message) == crash.MAX_MESSAGE


@given(st.text(max_size=2000))
def test_any_message_is_one_short_line(text: str) -> None:
    found = crash.describe(ValueError(f"{text} {Path.home()}/data hf_{'a1' * 10}"))
    assert len(found.message) <= crash.MAX_MESSAGE
    assert found.message.isprintable() or "\n" not in found.message
    assert str(Path.home()) not in found.message
    assert "a1a1" not in found.message


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0)])
def test_no_hook_of_threads_is_left_in_whatever_order_watches_end(order: tuple[int, ...]) -> None:
    before = threading.excepthook
    hooks = [crash.ThreadErrors(lambda _: None) for _ in order]
    for each in hooks:
        each.install()
    for number in order:
        assert threading.excepthook is not before
        hooks[number].remove()
    assert threading.excepthook is before
