"""The exception that ended a training, in words: type, message, last frames, and the peak of memory if that ran out.

Only texts and numbers leave this module. The exception has all frames of the training, and with them its tensors.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import CodeType
from typing import NamedTuple

from gradcanary import settings, wire
from gradcanary.redaction import redact

MAX_TYPE = 100
MAX_MESSAGE = 300
MAX_FRAME = 200
MOST_FRAMES = 6
MOST_USER_FRAMES = 4
MOST_CHAINED = 20

STOPS = ("KeyboardInterrupt", "BdbQuit", "SignalException")
"""Exceptions by which a person or a scheduler ends a training: Ctrl-C, ``q`` in pdb, torch's elastic agent."""

STOP_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
"""Signals of a person or a scheduler; the last two are those that Slurm sends before its time limit."""

_DEVICE_MEMORY = re.compile(r"\b(CUDA|HIP|XPU|MPS)\b.{0,20}\bout of memory", re.IGNORECASE)
_HOST_MEMORY = re.compile(r"can't allocate memory|not enough memory: you tried to allocate", re.IGNORECASE)

_OWN_FOLDER = str(Path(__file__).parent)
_PACKAGES = re.compile(r".*[/\\](?:site|dist)-packages[/\\]")


class ThreadErrors:
    """Notes the exception that ended the thread that trains; the hook that was there before is called as ever.

    The main thread may go on without it, and end well. What is kept is the words, not the exception.
    """

    def __init__(self, note: Callable[[BaseException], object]) -> None:
        self._note = note
        self._before: Callable[[threading.ExceptHookArgs], object] | None = None

    def install(self) -> None:
        """Put the hook in front of the present one."""
        self._before = threading.excepthook
        threading.excepthook = self._on_error

    def remove(self) -> None:
        """Put the earlier hook back, unless a later one is in front of this one and calls it.

        Watches may end in any order: the last one takes those before it along.
        """
        self._note = _ignore
        hook = threading.excepthook
        while isinstance(owner := getattr(hook, "__self__", None), ThreadErrors) and owner.replacement is not None:
            hook = owner.replacement
        threading.excepthook = hook

    @property
    def replacement(self) -> Callable[[threading.ExceptHookArgs], object] | None:
        """The earlier hook if the watch of this one has ended, else None."""
        return self._before if self._note is _ignore else None

    def _on_error(self, arguments: threading.ExceptHookArgs) -> None:
        with suppress(Exception):
            if arguments.exc_value is not None and not isinstance(arguments.exc_value, SystemExit):
                self._note(arguments.exc_value)
        if self._before is not None:
            self._before(arguments)


def _ignore(_error: BaseException) -> None:
    """Note nothing: the watch has ended."""


class Frame(NamedTuple):
    """A frame of a traceback: "file:line in function", and whether it is code of the user."""

    text: str
    is_user: bool


def is_stop(error: BaseException) -> bool:
    """Return True if a person or a scheduler ended the training, or its script did with a status of success."""
    if isinstance(error, SystemExit):
        statuses = (0, *(128 + number for number in _signal_numbers()))
        return error.code is None or (isinstance(error.code, int) and error.code in statuses)
    return any(_is_kind(each, *STOPS) for each in _chain(error)) or _was_raised_by_signal(error)


def root_error(error: BaseException | None) -> BaseException | None:
    """Return the error that ended the training: of an exit with a failure, the exception that the script caught."""
    if isinstance(error, SystemExit) and not is_stop(error) and error.__context__ is not None:
        return error.__context__
    return error


def describe(error: BaseException, *, has_message: bool = True) -> wire.Crash:
    """Return the words for an exception; without its message if that must stay on this machine."""
    memory = out_of_memory(error)
    return wire.Crash(
        type=_plain(type(error).__name__)[:MAX_TYPE],
        message=_message(error) if has_message else "",
        frames=last_frames(error),
        memory=memory,
        peak_bytes=None if memory is None else peak_bytes(memory, _text(error)),
    )


def one_line(crash: wire.Crash) -> str:
    """Return type and message in one line."""
    return f"{crash.type}: {crash.message}" if crash.message else crash.type


def out_of_memory(error: BaseException) -> str | None:
    """Return the memory that ran out: cpu, cuda, hip, xpu, mps; None for any other exception."""
    text = _text(error)
    device = _DEVICE_MEMORY.search(text) if isinstance(error, RuntimeError) else None
    if device is not None:
        return device[1].lower()
    if _is_kind(error, "OutOfMemoryError"):
        return "cuda"
    is_full = isinstance(error, OSError) and error.errno == errno.ENOMEM
    is_refused = isinstance(error, RuntimeError) and _HOST_MEMORY.search(text) is not None
    return "cpu" if is_full or is_refused or isinstance(error, MemoryError) else None


def peak_bytes(memory: str, text: str) -> int | None:
    """Return the peak of memory: of the process, or of torch's allocator on the GPU that the text names.

    CUDA is not initialized by this.
    """
    with suppress(Exception):  # a device that is lost tells nothing
        return _host_peak() if memory == "cpu" else _device_peak(text)
    return None


def last_frames(error: BaseException) -> tuple[str, ...]:
    """Return the last frames, the innermost first: those of user code, then the library's that they called."""
    with suppress(Exception):  # a module may have replaced what a frame is made of
        frames = [_frame(code, line) for code, line in _walk(error)]
        innermost_first = frames[::-1]
        user = [frame for frame in innermost_first if frame.is_user][:MOST_USER_FRAMES]
        called = innermost_first[: innermost_first.index(user[0])] if user else innermost_first
        return tuple(frame.text for frame in (*user, *called[: MOST_FRAMES - len(user)]))
    return ()


def _is_kind(error: BaseException, *names: str) -> bool:
    """Return True if a class of the error has one of these names: its module may not be imported here."""
    return any(kind.__name__ in names for kind in type(error).__mro__)


def _chain(error: BaseException) -> list[BaseException]:
    """Return the error and those that were being handled as it was raised."""
    found, following = [error], error.__context__
    while following is not None and len(found) < MOST_CHAINED:
        found.append(following)
        following = following.__context__
    return found


def _walk(error: BaseException) -> Iterable[tuple[CodeType, int]]:
    return [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]


def _frame(code: CodeType, line: int) -> Frame:
    path, is_user = _file_label(code.co_filename)
    text = redact(f"{path}:{line} in {getattr(code, 'co_qualname', code.co_name)}", _home())
    return Frame(_plain(text)[-MAX_FRAME:], is_user)


def _file_label(file: str) -> tuple[str, bool]:
    """Return a file as a person names it, and True if it is code of the user."""
    package = _PACKAGES.match(file)
    if package is not None:
        return file[package.end() :], False
    if file.startswith("<"):
        return file, not file.startswith("<frozen")
    for folder in (_OWN_FOLDER, *_library_folders()):
        if file.startswith(folder + os.sep):
            return file[len(str(Path(folder).parent)) + 1 :], False
    with suppress(OSError):
        here = str(Path.cwd()) + os.sep
        if file.startswith(here):
            return file[len(here) :], True
    return file, True


def _library_folders() -> list[str]:
    paths = sysconfig.get_paths()
    return [paths[key] for key in ("stdlib", "platstdlib") if key in paths]


def _home() -> str | None:
    try:
        return str(Path.home())
    except RuntimeError:  # a user without a home, as often in a container
        return None


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 -- an error without a text must not raise another one
        return ""


def _message(error: BaseException) -> str:
    """Return the message of an exception in one line, redacted, and without its middle if it is long."""
    if isinstance(error, SystemExit) and isinstance(error.code, int):
        return f"exit status {error.code}"
    text = " ".join(_plain(redact(_text(error), _home())).split())
    if len(text) <= MAX_MESSAGE:
        return text
    head = MAX_MESSAGE * 2 // 3
    return f"{text[:head]} … {text[head + 3 - MAX_MESSAGE :]}"


def _plain(text: str) -> str:
    return settings.UNPRINTABLE.sub(" ", text)


def _signal_numbers() -> list[int]:
    return [int(getattr(signal, name)) for name in STOP_SIGNALS if hasattr(signal, name)]


def _was_raised_by_signal(error: BaseException) -> bool:
    """Return True if the script's own handler of a signal that stops it raised the error."""
    handlers = [signal.getsignal(number) for number in _signal_numbers()]
    codes = {code for handler in handlers if (code := getattr(handler, "__code__", None)) is not None}
    return any(code in codes for code, _ in _walk(error))


def _host_peak() -> int | None:
    """Return the largest resident set of the process."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text("ascii", "replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * unit


def _device_peak(text: str) -> int | None:
    """Return the peak of torch's allocator on the GPU that a message names, else on the fullest one."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    named = re.search(r"\bGPU (\d+)", text)
    devices = [int(named[1])] if named else range(torch.cuda.device_count())
    return max((int(torch.cuda.max_memory_allocated(device)) for device in devices), default=0) or None
