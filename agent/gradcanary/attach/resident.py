"""What stays in a process that is attached to: a watch, and a thread that listens for ``detach``.

Hooks come and go in the main thread only, where :mod:`gradcanary.attach.bootstrap` finds nothing in the way; all that
waits is the thread's.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from gradcanary import process_names, summary, watching
from gradcanary.attach.bootstrap import Errand, answer
from gradcanary.attach.request import PATIENCE_S, read_message, write_message
from gradcanary.frameworks import unwrapped
from gradcanary.groups import elements, parameters
from gradcanary.layers import living
from gradcanary.settings import Settings
from gradcanary.version import __version__

LOOKS_EACH_S = 1.0
END_S = 5.0
"""For what is left to be sent as it leaves."""

SETTLE_S = 0.05
"""For what a GPU has still to bring here, in the training's thread: no other may ask it."""

OTHER = """\
the agent in this process is {mine}, yours {yours}. Attach with that version, from an environment of its own:
python -m venv agent-{mine} and pip install gradcanary=={mine} there"""

_here: Guest | None = None


class LateWatch(watching.Watch):
    """A watch that touches nothing before :meth:`begin`, and that can be left in steps: :meth:`take_off`,
    :meth:`settle`, :meth:`detach`. A ``watch()`` that the script comes to takes over, with its arguments."""

    def __init__(self, settings: Settings, unnamed: str, launch: str | None = None) -> None:
        """The run is called ``unnamed`` where nobody names it; without ``launch`` the environment says the launch."""
        process_names.call_unnamed(unnamed)
        super().__init__(replace(settings, step=None), None, None, None, is_automatic=True, begins=False)
        self._launch = launch

    def begin(self) -> None:
        """Watch from the next step on. Waits for nothing: no other thread gets its turn meanwhile."""
        try:
            self._attach(None, None, is_late=True)
        except BaseException:  # a signal's: half a watch is none
            self._session.take_off()
            raise

    @property
    def is_open(self) -> bool:
        """Whether it was not closed, in this process."""
        return self._is_ours()

    @property
    def launch(self) -> str | None:
        """Its launch, known once it has begun where nobody gave it."""
        return self._launch

    def take_off(self) -> None:
        """Leave no hook and no replaced function behind; the last window, and what is left to be sent, come after."""
        if self._is_ours():
            self._session.take_off()

    def settle(self, timeout_s: float) -> None:
        """Hand over the last window, in the training's thread; ``timeout_s`` is for values that are on their way."""
        if self._is_ours():
            self._session.settle(timeout_s)

    def detach(self, timeout_s: float) -> None:
        """End the watch of a training that goes on, and send the rest for ``timeout_s`` at most."""
        self._close("detached", None, timeout_s)

    @property
    def is_settled(self) -> bool:
        """Whether nothing of the training is needed any more to close it."""
        return not self._is_ours() or self._session.is_settled

    @property
    def unsent(self) -> str | None:
        """What is to be said of that which the collector has not got, once it is closed; None where it has all."""
        sender = self._session.sender
        return None if sender is None else sender.unsent

    def _lives_on(self) -> bool:
        """In a forked child: it does not, only the process that was asked for has it."""
        self._session.forked()
        return False


class Guest:
    """One attach, from its request to its end."""

    def __init__(self, request: dict[str, Any]) -> None:
        """Check the request; raises ValueError on a wrong setting, or where this is not the agent of who asks."""
        if request["agent"] != __version__:
            raise ValueError(OTHER.format(mine=__version__, yours=request["agent"]))
        self._request = request
        given = {name: value for name, value in request["settings"].items() if value is not None}
        self._settings = Settings.resolve(os.environ, spelled="--{}", **given)
        self._for_s: float | None = request["for_s"]
        self._listener: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._moved = threading.Event()
        self._watch: LateWatch | None = None
        self._has_begun = False
        self._optimizers: list[dict[str, Any]] = []
        self._is_leaving = False
        self.held_s = 0.0
        """For how long the main thread was held to let it in, but for gdb."""

    # -- in the main thread --------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Do what takes time: nothing of the training is touched yet."""
        global _here
        if watching.opened():
            (first, *_) = watching.opened()
            raise RuntimeError(f"it is watched already, as run {first.run}: {first.url}")
        if self._watch is None:
            for name in ("session", "spool"):  # all that its first step would import; a Python may have no SQLite
                with contextlib.suppress(ImportError):
                    importlib.import_module(f"gradcanary.{name}")
            self._optimizers = list_optimizers()
            self._watch = LateWatch(self._settings, self._request["unnamed"], self._request["launch"])
        if self._thread is None:
            self._listener = _listen(Path(self._request["socket"]))
            _here = self
            thread = threading.Thread(target=self._stay, name="gradcanary-control", daemon=True)
            thread.start()
            self._thread = thread

    def move_in(self) -> None:
        """Begin to watch; nothing here waits, so that all stacks are as they were when they were looked at."""
        assert self._watch is not None  # noqa: S101 -- it was made before
        self._watch.begin()
        self._has_begun = True
        self._moved.set()

    def leave(self) -> None:
        """Be gone as if never asked in."""
        self._is_leaving = True
        self._moved.set()
        if self._thread is None:
            self._clear()

    def _move_out(self) -> None:
        if self._watch is not None:
            self._watch.take_off()

    def _settle(self) -> None:
        if self._watch is not None:
            self._watch.settle(SETTLE_S)

    # -- in the thread -------------------------------------------------------------------------------------------

    def _stay(self) -> None:
        self._moved.wait()
        watch = self._watch
        if watch is not None and self._has_begun:
            if self._is_leaving:  # a signal came right behind it
                self._detach(watch)
            with contextlib.suppress(OSError):  # who asked may have gone
                answer(self._request["folder"], {"run": watch.run})
            self._serve(watch)
        self._clear()

    def _serve(self, watch: LateWatch) -> None:
        """Listen as long as it is watched, whatever fails: nobody else could end that."""
        end = None if self._for_s is None else time.monotonic() + self._for_s
        while watch.is_open:
            try:
                if end is not None and time.monotonic() >= end:
                    self._detach(watch)
                else:
                    self._hear(watch)
            except Exception:  # noqa: BLE001, PERF203 -- too many open files, for a while
                time.sleep(LOOKS_EACH_S)

    def _hear(self, watch: LateWatch) -> None:
        assert self._listener is not None  # noqa: S101 -- it was made before the thread
        self._listener.settimeout(LOOKS_EACH_S)
        try:
            door, _ = self._listener.accept()
        except TimeoutError:
            return
        with door, contextlib.suppress(OSError, ValueError):
            door.settimeout(PATIENCE_S)
            self._attend(door, watch)

    def _attend(self, door: socket.socket, watch: LateWatch) -> None:
        asked = read_message(door)
        if asked.get("do") == "detach":
            self._detach(watch)
            said = {"detached": watch.run, "unsent": watch.unsent, "thread": threading.get_native_id()}
            write_message(door, said)
            return
        write_message(
            door, {**describe_watch(watch), "alive": self._optimizers, "for_s": self._for_s, "held_s": self.held_s}
        )

    def _detach(self, watch: LateWatch) -> None:
        if not watch.is_settled:
            Errand(self._request["package"], self._move_out, settle=self._settle).insist()
        watch.detach(END_S)

    def _clear(self) -> None:
        global _here
        if self._listener is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._request["socket"])  # noqa: PTH108 -- likewise
            self._listener.close()
        _here = None if _here is self else _here

    def forked(self) -> None:
        """In a forked child: the socket is the parent's."""
        if self._listener is not None:
            self._listener.close()


def _listen(path: Path) -> socket.socket:
    """Return a socket that nobody but this user can connect to; its folder is the user's own."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        _check_free(path)
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(8)
    except BaseException:
        listener.close()
        raise
    return listener


def _check_free(path: Path) -> None:
    """Take away what an earlier guest left; raises RuntimeError where one listens there."""
    with socket.socket(socket.AF_UNIX) as door:
        door.settimeout(0)
        try:
            door.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            path.unlink(missing_ok=True)
            return
        except BlockingIOError:
            pass
    raise RuntimeError("somebody else is attaching to it just now")


def _forked() -> None:
    global _here
    if _here is not None:
        _here.forked()
        _here = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def list_optimizers() -> list[dict[str, Any]]:
    """Return what optimizers live in this process, the largest first; one pass over the garbage collector's objects."""
    found = {id(each): each for each in map(unwrapped, living(torch.optim.Optimizer))}.values()
    said = [
        {"kind": type(each).__name__, "tensors": len(parameters(each)), "elements": elements(each)} for each in found
    ]
    return sorted((each for each in said if each["tensors"]), key=lambda each: -int(each["elements"]))


def describe_watch(watch: LateWatch) -> dict[str, Any]:
    """Return what is known of a watch by now.

    ``layers`` is None until an optimizer has stepped, ``k`` and ``low`` until a whole window was seen, ``is_heard``
    until the collector took, or did not take, what was sent.
    """
    session = watch._session  # noqa: SLF001 -- one package: what it says of itself is nobody else's to read
    observer, sender = session.observer, session.sender
    return {
        "run": watch.run,
        "url": watch.url,
        "agent": __version__,
        "launch": watch.launch,
        "rank": observer.place.rank,
        "world_size": observer.place.world_size,
        "is_silent": observer.place.is_silent,
        "unseen": [fact.text for fact in observer.facts],
        "is_heard": None if sender is None else sender.is_heard,
        "is_barred": sender is not None and sender.is_barred,
        **summary.summarize(observer, sender),
    }
