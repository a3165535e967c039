"""The code that runs first inside an attached process: a thread that has the main thread install the hooks.

The main thread may be anywhere. Inside an optimizer's step, adding or removing a hook raises in the user's own call.
Inside ``threading`` it may hold a lock. So the task runs at a safe point only, which is a moment in
which no thread is in such a place; until then it tries again every few milliseconds.

Nothing here raises into the process. Nothing here imports gradcanary at the top: the process gets this file as text.
"""

from __future__ import annotations

import _thread
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import util
from types import FrameType
from typing import Any, cast

HARMLESS = (
    "utils/data/",
    "utils/_contextlib.py",
    "amp/autocast_mode.py",
    "multiprocessing/",
    "distributed/run.py",
    "distributed/elastic/",
    "distributed/launcher/",
    "_inductor/compile_worker/",
    "_inductor/async_compile.py",
)
"""Parts of torch that call no hook: they load data, wrap whole functions, or start processes and wait for them."""

RETRY_S, SLOW_RETRY_S = 0.001, 0.02
"""Between two tries, at first and after two seconds. A try takes about 0.1 ms."""

REPORT_INTERVAL_S = 0.3

SWITCH_INTERVAL_S = 0.05
"""Python gives no other thread its turn for so long. The task takes some milliseconds and waits for nothing."""

_HERE = sys._getframe().f_code.co_filename  # noqa: SLF001 -- as frames name it; the process may have no such path


# -- safe points -----------------------------------------------------------------------------------------------------


def blocking_frame(package: str) -> str | None:
    """Return the location that forbids touching hooks now, None at a safe point.

    ``package`` is the folder of gradcanary. Its frames block as well, except those that lead here.
    """
    if _is_capturing_graph():
        return "a CUDA graph that is being recorded"
    torch = _folder_of("torch")
    current = _thread.get_ident()
    for thread, innermost in sys._current_frames().items():  # noqa: SLF001 -- documented only by its name
        frame: FrameType | None = innermost
        if thread == current:
            frame = _interrupted_frame(innermost)
            if frame is not None and frame.f_code.co_filename.startswith("<frozen importlib"):
                return "an import"
        while frame is not None:
            file = frame.f_code.co_filename
            if file.startswith(torch) and not file[len(torch) :].startswith(HARMLESS):
                return f"torch/{file[len(torch) :]}:{frame.f_code.co_name}"
            if thread == current and (file.startswith(package) or file == _file_of("threading")):
                return f"{os.path.basename(file)}:{frame.f_code.co_name}"  # noqa: PTH119 -- pathlib may not be imported
            frame = frame.f_back
    return None


def _interrupted_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame that is not of this file: the process was interrupted there."""
    while frame is not None and frame.f_code.co_filename == _HERE:
        frame = frame.f_back
    return frame


def _is_capturing_graph() -> bool:
    cuda = sys.modules.get("torch.cuda")
    with suppress(AttributeError):  # half imported
        return cuda is not None and cuda.is_initialized() and cuda.is_current_stream_capturing()
    return False


def _folder_of(module: str) -> str:
    file = _file_of(module)
    return os.path.join(os.path.dirname(file), "") if file else "/nowhere/"  # noqa: PTH118, PTH120 -- likewise


def _file_of(module: str) -> str:
    return getattr(sys.modules.get(module), "__file__", None) or ""


def _do_nothing(*_: object) -> None:
    pass


class MainThreadTask:
    """A task for the main thread at a safe point.

    ``prepare`` does the slow part and touches nothing of the training. ``act`` runs while no other thread runs, and
    waits for nothing. ``settle`` finishes. ``is_wanted`` is called before each try, ``report`` with the location that
    blocks, ``on_failure`` with the error that ended the task.
    """

    def __init__(
        self,
        package: str,
        act: Callable[[], object],
        *,
        prepare: Callable[[], object] = _do_nothing,
        settle: Callable[[], object] = _do_nothing,
        is_wanted: Callable[[], bool] = lambda: True,
        report: Callable[[str], object] = _do_nothing,
        on_failure: Callable[[Exception], object] = _do_nothing,
    ) -> None:
        self._package = package
        self._prepare, self._act, self._settle = prepare, act, settle
        self._is_wanted, self._report, self._on_failure = is_wanted, report, on_failure
        self._blocked_by: str | None = None
        self._is_queued = False
        self.is_over = False

    def retry(self) -> None:
        """Have the main thread try until the task is done or no longer wanted. Call it in any other thread."""
        import ctypes  # not at the top: a Python without it can report that

        call = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._on_main_thread)
        queue = ctypes.pythonapi["Py_AddPendingCall"]  # by index: by name the function would be shared with others
        began = reported = time.monotonic()
        while not self.is_over:
            if not self._is_queued:
                self._is_queued = True
                if queue(call, None) != 0:
                    self._is_queued = False
            now = time.monotonic()
            time.sleep(RETRY_S if now - began < 2 else SLOW_RETRY_S)
            if now - reported > REPORT_INTERVAL_S:
                reported = now
                with suppress(Exception):  # a full disk: the command sees an older location
                    self._report(self._blocked_by or "")
                with suppress(Exception):  # the next round looks again
                    self.is_over = self.is_over or not self._is_wanted()
        while self._is_queued:  # the interpreter still has the address of the call
            time.sleep(0.1)
        time.sleep(0.1)

    def _on_main_thread(self, _argument: object) -> int:
        try:
            if not self.is_over:
                self._try()
        finally:
            self._is_queued = False
        return 0

    def _try(self) -> None:
        try:
            if not self._is_wanted():
                self.is_over = True
                return
            self._blocked_by = blocking_frame(self._package)
            if self._blocked_by is None:
                self._prepare()
                with _other_threads_waiting():
                    self._blocked_by = blocking_frame(self._package)
                    if self._blocked_by is None:
                        self.is_over = True
                        self._act()
            if self.is_over:
                self._settle()
        except BaseException as error:  # noqa: BLE001 -- it would end the training
            self._handle(error)

    def _handle(self, error: BaseException) -> None:
        if isinstance(error, Exception) and not _is_from_signal_handler(error):
            self.is_over = True
        else:  # Ctrl-C, or the exception of another signal's handler
            _thread.start_new_thread(_raise_later, (error, _thread.get_ident()))
            error = RuntimeError("a signal came in between, try again")
        if self.is_over:
            with suppress(Exception):  # a full disk: the command waits until its own limit
                self._on_failure(error)


@contextmanager
def _other_threads_waiting() -> Iterator[None]:
    """Give no other thread its turn, unless this one waits for something."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


# -- exceptions of signal handlers, which belong to the training ------------------------------------------------------


def _is_from_signal_handler(error: BaseException) -> bool:
    handlers = (signal.getsignal(number) for number in range(1, signal.NSIG))
    codes = [_code_of(handler) for handler in handlers if callable(handler)]
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code in codes:
            return True
        traceback = traceback.tb_next
    return False


def _code_of(handler: Any) -> object:  # noqa: ANN401 -- signal takes every callable
    function = getattr(handler, "func", handler)  # of a partial
    return getattr(function if hasattr(function, "__code__") else type(function).__call__, "__code__", None)


def _raise_later(error: BaseException, thread: int) -> None:
    """Raise the error in the main thread as soon as that has left this file."""
    while _is_in_this_file(sys._current_frames().get(thread)):  # noqa: SLF001 -- as above
        time.sleep(0.001)
    if isinstance(error, KeyboardInterrupt):
        _thread.interrupt_main()
    else:
        import ctypes

        raising = ctypes.py_object(_class_for(error.with_traceback(None)))
        ctypes.pythonapi["PyThreadState_SetAsyncExc"](ctypes.c_ulong(thread), raising)


def _class_for(error: BaseException) -> type[BaseException]:
    """Return a class whose only instance is this error: the interpreter takes a class, and calls it without arguments.

    So ``SystemExit(143)`` keeps its status.
    """
    kind, metaclass = type(error), cast("Any", type(type(error)))
    with suppress(Exception):  # a class may forbid subclasses
        kind = metaclass(kind.__name__, (kind,), {"__new__": lambda *_: error, "__module__": kind.__module__})
    return kind


def _is_in_this_file(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == _HERE:
            return True
        frame = frame.f_back
    return False


# -- from the request to the agent ------------------------------------------------------------------------------------


def load_agent(package: str) -> bool:
    """Make gradcanary importable from its folder; return False if the process has one already.

    ``sys.path`` stays as it is, so nothing else of that folder's environment becomes importable.
    """
    if "gradcanary" in sys.modules:
        return False
    file = os.path.join(package, "__init__.py")  # noqa: PTH118 -- likewise
    spec = util.spec_from_file_location("gradcanary", file, submodule_search_locations=[package])
    if spec is None or spec.loader is None:
        raise ImportError(f"no agent in {package}")
    sys.modules["gradcanary"] = module = util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        unload_agent()
        raise
    return True


def unload_agent() -> None:
    """Forget the modules of an agent that did not begin."""
    for name in [each for each in sys.modules if each.partition(".")[0] == "gradcanary"]:
        del sys.modules[name]


def write_answer(folder: str, answer: dict[str, Any]) -> None:
    """Leave the outcome for the command that waits for it."""
    written = os.path.join(folder, "answer.new")  # noqa: PTH118 -- likewise
    with open(written, "w", encoding="utf-8") as file:  # noqa: PTH123 -- likewise
        json.dump(answer, file)
    os.replace(written, os.path.join(folder, "answer"))  # noqa: PTH105, PTH118 -- likewise


class Activation:
    """One request inside the process, from its first try until the agent is active or the request is withdrawn."""

    def __init__(self, request: dict[str, Any]) -> None:
        self._request = request
        self._agent: Any = None
        self._has_loaded = self._is_accepted = False

    def prepare(self) -> None:
        """Load and prepare the agent, then accept the request by removing its file: a later withdrawal finds none."""
        began = time.perf_counter()
        self._has_loaded = load_agent(self._request["package"]) or self._has_loaded
        if self._agent is None:
            from gradcanary.attach.resident import AttachedAgent

            self._agent = AttachedAgent(self._request, self._run_at_safe_point, write_answer)
        self._agent.prepare()
        if not self._is_accepted:
            # Before the file is gone: another thread would take a missing file for a withdrawal, and cancel.
            self._is_accepted = True
            try:
                os.unlink(self._request["file"])  # noqa: PTH108 -- likewise
            except OSError:
                self._is_accepted = False
                raise
        self._agent.held_s += time.perf_counter() - began

    def activate(self) -> None:
        self._agent.activate()

    def _run_at_safe_point(self, act: Callable[[], object], settle: Callable[[], object]) -> None:
        MainThreadTask(self._request["package"], act, settle=settle).retry()

    def is_wanted(self) -> bool:
        """Return True while the request stands; clean up when it does not."""
        is_open = self._is_accepted or (os.path.exists(self._request["file"]) and self._is_command_alive())  # noqa: PTH110 -- likewise
        if os.getpid() == self._request["pid"] and is_open:  # a fork inherits queued calls
            return True
        self.cancel()
        return False

    def _is_command_alive(self) -> bool:
        """Return True if the command that attaches still runs: a killed one leaves its request open."""
        with suppress(OSError), open(f"/proc/{self._request['command']}/stat", encoding="utf-8") as file:  # noqa: PTH123 -- likewise
            started: str = self._request["command_started"]
            return file.read().rpartition(")")[2].split()[19] == started
        return False

    def cancel(self) -> None:
        """Undo everything."""
        if self._agent is not None:
            self._agent.cancel()
            self._agent = None
        if self._has_loaded:
            unload_agent()

    def report(self, location: str) -> None:
        with open(os.path.join(self._request["folder"], "blocked_by"), "w", encoding="utf-8") as file:  # noqa: PTH118, PTH123 -- likewise
            file.write(location)

    def fail(self, error: Exception) -> None:
        self.cancel()
        write_answer(self._request["folder"], {"error": f"{type(error).__name__}: {error}"})


def bootstrap(request: dict[str, Any]) -> None:
    """Activate the agent at the next safe point. Runs in the thread that the injected line starts."""
    activation = Activation(request)
    task = MainThreadTask(
        request["package"],
        activation.activate,
        prepare=activation.prepare,
        is_wanted=activation.is_wanted,
        report=activation.report,
        on_failure=activation.fail,
    )
    try:
        task.retry()
    except Exception as error:  # noqa: BLE001 -- whatever this Python lacks
        activation.fail(error)
