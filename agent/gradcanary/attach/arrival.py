"""What runs first inside a process that is attached to, in its main thread, between any two of its bytecodes.

So it may be anywhere: inside an optimizer's step, where a hook that is added or taken away would raise in the user's
own call, or inside ``threading`` with one of its locks taken. Nothing is done before no thread is in such a
place; until then the same is asked again, each few milliseconds. Nothing here raises, and nothing here is of
gradcanary: this file is handed over as text.
"""

from __future__ import annotations

import _thread
import ctypes
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import util
from types import FrameType
from typing import Any

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
LONG_S = 10.0
"""For which no other thread gets its turn; what is done meanwhile takes some milliseconds."""

_HERE = os.path.abspath(sys._getframe().f_code.co_filename)  # noqa: SLF001, PTH100 -- as frames name it


def hindrance(package: str) -> str | None:
    """Return the place because of which hooks must not be touched now, None if there is none.

    ``package`` is the folder of gradcanary; who calls this from there is no hindrance.
    """
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
    ours = os.path.join(package, "attach")  # noqa: PTH118 -- likewise
    while frame is not None:
        file = frame.f_code.co_filename
        if file not in (_HERE, "<string>", "<gradcanary>") and not file.startswith(ours):
            return frame
        frame = frame.f_back
    return None


def _folder(module: str) -> str:
    file = _file(module)
    return os.path.join(os.path.dirname(file), "") if file else "/nowhere/"  # noqa: PTH118, PTH120 -- likewise


def _file(module: str) -> str:
    return getattr(sys.modules.get(module), "__file__", None) or ""


class Errand:
    """Something to be done in the main thread where nothing is in the way: ``prepare`` what takes time and touches
    nothing, then ``act``, while no other thread runs. ``is_wanted`` is asked before each try, ``report`` hears of what
    is in the way."""

    def __init__(
        self,
        package: str,
        prepare: Callable[[], object],
        act: Callable[[], object],
        *,
        is_wanted: Callable[[], bool],
        report: Callable[[str], object],
        failed: Callable[[Exception], object],
    ) -> None:
        self._package, self._prepare, self._act = package, prepare, act
        self._is_wanted, self._report, self._failed = is_wanted, report, failed
        self._place: str | None = None
        self._is_queued = self.is_over = False

    def begin(self) -> None:
        """In the main thread: do it at once, or go on trying from a thread that has no Python object of its own."""
        self._try()
        if not self.is_over:
            _thread.start_new_thread(self.insist, ())

    def insist(self) -> None:
        """In any other thread: have the main thread try until it is done, or not wanted any more."""
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
        except Exception as error:  # noqa: BLE001 -- it would end the training
            self.is_over = True
            with suppress(Exception):
                self._failed(error)
        except BaseException as error:  # noqa: BLE001 -- Ctrl-C, or what another signal's handler raised
            _thread.start_new_thread(_hand_back, (type(error), _thread.get_ident()))
            if self.is_over:
                with suppress(Exception):
                    self._failed(RuntimeError("a signal came in between, try again"))


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Give no other thread its turn, unless something is waited for."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(LONG_S)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


def _hand_back(kind: type[BaseException], thread: int) -> None:
    """Raise in the main thread, once it has left this file, what was raised in here and is not ours."""
    while _is_here(sys._current_frames().get(thread)):  # noqa: SLF001 -- as above
        time.sleep(0.001)
    if issubclass(kind, KeyboardInterrupt):
        _thread.interrupt_main()
    else:
        ctypes.pythonapi["PyThreadState_SetAsyncExc"](ctypes.c_ulong(thread), ctypes.py_object(kind))


def _is_here(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename in (_HERE, "<gradcanary>"):
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


def enter(request: dict[str, Any]) -> None:
    """Do what is asked for, now or as soon as it can be done."""
    gate, folder, package, pid = request["gate"], request["folder"], request["package"], request["pid"]
    guest: list[Any] = []
    is_loaded = False

    def prepare() -> None:
        nonlocal is_loaded
        began = time.perf_counter()
        is_loaded = load(package) or is_loaded
        if not guest:
            from gradcanary.attach.resident import Guest

            guest.append(Guest(request))
        guest[0].prepare()
        guest[0].held_s += time.perf_counter() - began

    def is_wanted() -> bool:
        # A fork has a copy of what is queued.
        if os.getpid() == pid and os.path.exists(gate):  # noqa: PTH110 -- likewise
            return True
        leave()
        return False

    def leave() -> None:
        if guest:
            guest.pop().leave()
        if is_loaded:
            unload()

    def report(place: str) -> None:
        with open(os.path.join(folder, "place"), "w", encoding="utf-8") as file:  # noqa: PTH118, PTH123 -- likewise
            file.write(place)

    def failed(error: Exception) -> None:
        leave()
        answer(folder, {"error": f"{type(error).__name__}: {error}"})

    Errand(
        package,
        prepare,
        lambda: guest[0].move_in(),
        is_wanted=is_wanted,
        report=report,
        failed=failed,
    ).begin()
