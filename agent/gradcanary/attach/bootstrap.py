"""What runs first inside a process that is attached to: a thread that has the main thread act, between two bytecodes.

So the main thread may be anywhere: inside an optimizer's step, where a hook that is added or taken away would raise in
the user's own call, or inside ``threading`` with one of its locks taken. Nothing is done before no thread is in such a
place; until then the same is asked again, each few milliseconds. Nothing here raises, and nothing here is of
gradcanary before that is loaded: this file is handed over as text.
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
"""Parts of torch that hold no hook: what loads data, wraps whole functions, or starts processes and waits for them."""

SOON_S, LATER_S = 0.001, 0.02
"""Between two tries: at first, and after a while. A try takes about 0.1 ms."""

SAID_EACH_S = 0.3
LONG_S = 0.05
"""For which no other thread gets its turn; what is done meanwhile takes some milliseconds, and waits for nothing."""

_HERE = sys._getframe().f_code.co_filename  # noqa: SLF001 -- as frames name it; a path of the process's may be gone


def hindrance(package: str) -> str | None:
    """Return the place because of which hooks must not be touched now, None if there is none.

    ``package`` is the folder of gradcanary; who calls this from there is no hindrance.
    """
    if _is_recorded():
        return "a CUDA graph that is being recorded"
    torch = _folder("torch")
    mine = _thread.get_ident()
    for thread, innermost in sys._current_frames().items():  # noqa: SLF001 -- documented only by its name
        frame: FrameType | None = innermost
        if thread == mine:
            frame = _interrupted(innermost, package)
            if frame is not None and frame.f_code.co_filename.startswith("<frozen importlib"):
                return "an import"
        while frame is not None:
            file = frame.f_code.co_filename
            if file.startswith(torch) and not file[len(torch) :].startswith(HARMLESS):
                return f"torch/{file[len(torch) :]}:{frame.f_code.co_name}"
            if thread == mine and (file.startswith(package) or file == _file("threading")):
                return f"{os.path.basename(file)}:{frame.f_code.co_name}"  # noqa: PTH119 -- without an import
            frame = frame.f_back
    return None


def _interrupted(frame: FrameType | None, package: str) -> FrameType | None:
    """Return the frame of the process's own that we were called in."""
    attach = os.path.join(package, "attach")  # noqa: PTH118 -- likewise
    while frame is not None:
        file = frame.f_code.co_filename
        if file != _HERE and not file.startswith(attach):
            return frame
        frame = frame.f_back
    return None


def _is_recorded() -> bool:
    cuda = sys.modules.get("torch.cuda")
    with suppress(AttributeError):  # half imported
        return cuda is not None and cuda.is_initialized() and cuda.is_current_stream_capturing()
    return False


def _folder(module: str) -> str:
    file = _file(module)
    return os.path.join(os.path.dirname(file), "") if file else "/nowhere/"  # noqa: PTH118, PTH120 -- likewise


def _file(module: str) -> str:
    return getattr(sys.modules.get(module), "__file__", None) or ""


def _nothing(*_: object) -> None:
    """Do nothing: what an errand does where it was given no more."""


class Errand:
    """Something to be done in the main thread where nothing is in the way: ``prepare`` what takes time and touches
    nothing, then ``act``, while no other thread runs, which waits for nothing, then ``settle`` what is left.
    ``is_wanted`` is asked before each try, ``report`` hears of what is in the way."""

    def __init__(
        self,
        package: str,
        act: Callable[[], object],
        *,
        prepare: Callable[[], object] = _nothing,
        settle: Callable[[], object] = _nothing,
        is_wanted: Callable[[], bool] = lambda: True,
        report: Callable[[str], object] = _nothing,
        failed: Callable[[Exception], object] = _nothing,
    ) -> None:
        self._package, self._prepare, self._act, self._settle = package, prepare, act, settle
        self._is_wanted, self._report, self._failed = is_wanted, report, failed
        self._place: str | None = None
        self._is_queued = self.is_over = False

    def insist(self) -> None:
        """In any other thread: have the main thread try until it is done, or not wanted any more."""
        import ctypes  # here: of a Python that has none it can be told

        call = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._called)
        queue = ctypes.pythonapi["Py_AddPendingCall"]  # by index: by name it would be shared with others
        began = said = time.monotonic()
        while not self.is_over:
            if not self._is_queued:
                self._is_queued = True
                if queue(call, None) != 0:
                    self._is_queued = False
            now = time.monotonic()
            time.sleep(SOON_S if now - began < 2 else LATER_S)
            if now - said > SAID_EACH_S:
                said = now
                with suppress(Exception):
                    self._report(self._place or "")
                with suppress(Exception):
                    self.is_over = self.is_over or not self._is_wanted()
        while self._is_queued:  # the interpreter still has the address of it
            time.sleep(0.1)
        time.sleep(0.1)

    def _called(self, _argument: object) -> int:
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
            self._place = hindrance(self._package)
            if self._place is None:
                self._prepare()
                with _undisturbed():
                    self._place = hindrance(self._package)
                    if self._place is None:
                        self.is_over = True
                        self._act()
            if self.is_over:
                self._settle()
        except BaseException as error:  # noqa: BLE001 -- it would end the training
            self._caught(error)

    def _caught(self, error: BaseException) -> None:
        if isinstance(error, Exception) and not _is_of_a_handler(error):
            self.is_over = True
        else:  # Ctrl-C, or what another signal's handler raised
            _thread.start_new_thread(_hand_back, (error, _thread.get_ident()))
            error = RuntimeError("a signal came in between, try again")
        if self.is_over:
            with suppress(Exception):
                self._failed(error)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Give no other thread its turn, unless something is waited for."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(LONG_S)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


def _is_of_a_handler(error: BaseException) -> bool:
    """Say whether one of the process's own signal handlers raised it: an alarm is no failure of ours."""
    handlers = (signal.getsignal(number) for number in range(1, signal.NSIG))
    codes = [_code(handler) for handler in handlers if callable(handler)]
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code in codes:
            return True
        traceback = traceback.tb_next
    return False


def _code(handler: Any) -> object:  # noqa: ANN401 -- whatever the process took
    called = getattr(handler, "func", handler)  # of a partial
    return getattr(called if hasattr(called, "__code__") else type(called).__call__, "__code__", None)


def _hand_back(error: BaseException, thread: int) -> None:
    """Raise in the main thread, once it has left this file, what was raised in here and is not ours."""
    while is_here(sys._current_frames().get(thread)):  # noqa: SLF001 -- as above
        time.sleep(0.001)
    if isinstance(error, KeyboardInterrupt):
        _thread.interrupt_main()
    else:
        import ctypes

        kind = _kind_of(error.with_traceback(None))
        ctypes.pythonapi["PyThreadState_SetAsyncExc"](ctypes.c_ulong(thread), ctypes.py_object(kind))


def _kind_of(error: BaseException) -> type[BaseException]:
    """Return a class that makes just this error: the interpreter takes none but a class, and calls it with nothing."""
    kind, made = type(error), cast("Any", type(type(error)))
    with suppress(Exception):  # a class may forbid to be inherited from
        kind = made(kind.__name__, (kind,), {"__new__": lambda *_: error, "__module__": kind.__module__})
    return kind


def is_here(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == _HERE:
            return True
        frame = frame.f_back
    return False


def load(package: str) -> bool:
    """Make the gradcanary of the one who attaches importable, and nothing else beside it; the path stays as it is.

    False where there is one already.
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
        unload()
        raise
    return True


def unload() -> None:
    """Forget the modules: nobody has come in."""
    for name in [each for each in sys.modules if each.partition(".")[0] == "gradcanary"]:
        del sys.modules[name]


def answer(folder: str, said: dict[str, Any]) -> None:
    """Leave what came of it for who waits."""
    written = os.path.join(folder, "answer.new")  # noqa: PTH118 -- likewise
    with open(written, "w", encoding="utf-8") as file:  # noqa: PTH123 -- likewise
        json.dump(said, file)
    os.replace(written, os.path.join(folder, "answer"))  # noqa: PTH105, PTH118 -- likewise


class Arrival:
    """A request that has come in, from its first try until a guest has moved in, or it is not wanted any more."""

    def __init__(self, request: dict[str, Any]) -> None:
        self._request = request
        self._guest: Any = None
        self._is_loaded = self._is_let_in = False

    def prepare(self) -> None:
        """Get all ready that takes time; last, take the request out of the gate: whoever is late finds none."""
        began = time.perf_counter()
        self._is_loaded = load(self._request["package"]) or self._is_loaded
        if self._guest is None:
            from gradcanary.attach.resident import Guest

            self._guest = Guest(self._request)
        self._guest.prepare()
        if not self._is_let_in:
            os.unlink(self._request["gate"])  # noqa: PTH108 -- likewise
            self._is_let_in = True
        self._guest.held_s += time.perf_counter() - began

    def move_in(self) -> None:
        self._guest.move_in()

    def is_wanted(self) -> bool:
        # A fork has a copy of what is queued.
        is_asked = self._is_let_in or (os.path.exists(self._request["gate"]) and self._is_waited_for())  # noqa: PTH110 -- likewise
        if os.getpid() == self._request["pid"] and is_asked:
            return True
        self.leave()
        return False

    def _is_waited_for(self) -> bool:
        """Say whether who asks is alive: one that was killed has left the gate open."""
        with suppress(OSError), open(f"/proc/{self._request['asker']}/stat", encoding="utf-8") as file:  # noqa: PTH123 -- likewise
            started: str = self._request["asker_started"]
            return file.read().rpartition(")")[2].split()[19] == started
        return False

    def leave(self) -> None:
        """Be gone as if never asked in."""
        if self._guest is not None:
            self._guest.leave()
            self._guest = None
        if self._is_loaded:
            unload()

    def report(self, place: str) -> None:
        with open(os.path.join(self._request["folder"], "place"), "w", encoding="utf-8") as file:  # noqa: PTH118, PTH123 -- likewise
            file.write(place)

    def failed(self, error: Exception) -> None:
        self.leave()
        answer(self._request["folder"], {"error": f"{type(error).__name__}: {error}"})


def enter(request: dict[str, Any]) -> None:
    """Do what is asked for, as soon as it can be done; in a thread of its own."""
    came = Arrival(request)
    errand = Errand(
        request["package"],
        came.move_in,
        prepare=came.prepare,
        is_wanted=came.is_wanted,
        report=came.report,
        failed=came.failed,
    )
    try:
        errand.insist()
    except Exception as error:  # noqa: BLE001 -- whatever this Python lacks
        came.failed(error)
