"""What stays in a process that is attached to: a watch, and a thread that listens for ``detach``.

Hooks come and go in the main thread only, where :mod:`gradcanary.attach.arrival` finds nothing in the way; all that
waits is the thread's.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

from gradcanary import watching
from gradcanary.attach import control, report
from gradcanary.attach.arrival import Errand, answer
from gradcanary.settings import Settings
from gradcanary.version import __version__

LOOKS_EACH_S = 1.0
END_S = 5.0
"""For what is left to be sent as it leaves."""

_here: Guest | None = None


class Guest:
    """One attach, from its request to its end."""

    def __init__(self, request: dict[str, Any]) -> None:
        """Check the request; raises ValueError on a wrong setting, or where this is not the agent of who asks."""
        if request["agent"] != __version__:
            raise ValueError(f"the agent in this process is {__version__}, yours {request['agent']}")
        self._request = request
        given = {name: value for name, value in request["settings"].items() if value is not None}
        self._settings = Settings.resolve(os.environ, spelled="--{}", **given)
        self._for_s: float | None = request["for_s"]
        self._listener: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._moved = threading.Event()
        self._watch: watching.Watch | None = None
        self._optimizers: list[dict[str, Any]] = []
        self._page = 0
        self._is_leaving = False
        self.held_s = 0.0
        """For how long the main thread was held to let it in, but for gdb."""

    # -- in the main thread --------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Do what takes time: nothing of the training is touched yet."""
        if watching.opened():
            (first, *_) = watching.opened()
            raise RuntimeError(f"it is watched already, as run {first.run}: {first.url}")
        if self._listener is None:
            self._optimizers = report.optimizers()
            self._listener = _listen(Path(self._request["socket"]))
            self._thread = threading.Thread(target=self._stay, name="gradcanary-control", daemon=True)
            self._thread.start()

    def move_in(self) -> None:
        """Take the request out of the gate and begin to watch, or find that it was withdrawn."""
        global _here
        try:
            os.unlink(self._request["gate"])  # noqa: PTH108 -- a name, as it was handed over
        except OSError:
            self.leave()
            return
        self._watch = watching.watch_late(self._settings, self._request["unnamed"])
        _here = self
        self._moved.set()

    def leave(self) -> None:
        """Be gone as if never asked in."""
        self._is_leaving = True
        self._moved.set()

    def _move_out(self) -> None:
        if self._watch is not None:
            watching.take_off(self._watch)

    # -- in the thread -------------------------------------------------------------------------------------------

    def _stay(self) -> None:
        try:
            self._moved.wait()
            if not self._is_leaving and self._watch is not None:
                answer(self._request["folder"], {"run": self._watch.run})
                self._serve(self._watch)
            elif self._watch is not None:  # a signal came right behind it
                self._detach(self._watch)
        finally:
            self._clear()

    def _serve(self, watch: watching.Watch) -> None:
        end = None if self._for_s is None else time.monotonic() + self._for_s
        assert self._listener is not None  # noqa: S101 -- it was made before the thread
        self._listener.settimeout(LOOKS_EACH_S)
        while not self._is_leaving and watching.is_open(watch):
            door = None
            with contextlib.suppress(TimeoutError):
                door, _ = self._listener.accept()
            if door is not None:
                with door, contextlib.suppress(OSError, ValueError):
                    door.settimeout(control.PATIENCE_S)
                    self._attend(door, watch)
            if end is not None and time.monotonic() >= end:
                self._detach(watch)

    def _attend(self, door: socket.socket, watch: watching.Watch) -> None:
        asked = control.read(door)
        if asked.get("do") == "detach":
            self._detach(watch)
            control.write(door, {"detached": watch.run, "thread": threading.get_native_id()})
            return
        if isinstance(asked.get("page"), int):
            self._page = asked["page"]
        control.write(
            door, {**report.of(watch), "alive": self._optimizers, "for_s": self._for_s, "held_s": self.held_s}
        )

    def _detach(self, watch: watching.Watch) -> None:
        self._is_leaving = True
        Errand(
            self._request["package"],
            lambda: None,
            self._move_out,
            is_wanted=lambda: True,
            report=lambda _: None,
            failed=lambda _: None,
        ).insist()
        watch.close(timeout_s=END_S)

    def _clear(self) -> None:
        global _here
        if self._listener is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._request["socket"])  # noqa: PTH108 -- likewise
            self._listener.close()
        if self._page:  # once: the next who asks for memory may get the same address
            _unmap(self._page)
        _here = None if _here is self else _here

    def forked(self) -> None:
        """In a forked child: the socket is the parent's."""
        if self._listener is not None:
            self._listener.close()


def _listen(path: Path) -> socket.socket:
    """Return a socket that nobody but this user can connect to; its folder is the user's own."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(8)
    except OSError:
        listener.close()
        raise
    return listener


def _unmap(page: int) -> None:
    """Give back the memory that gdb asked for; the line in it has been read long ago."""
    with contextlib.suppress(Exception):
        unmap = ctypes.CDLL(None)["munmap"]
        unmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        unmap(page, 4096)


def _forked() -> None:
    global _here
    if _here is not None:
        _here.forked()
        _here = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
