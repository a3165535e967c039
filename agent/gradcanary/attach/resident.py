"""The agent inside an attached process: a watch, and a thread that listens for ``detach``.

Hooks come and go in the main thread only, at a safe point (:mod:`gradcanary.attach.bootstrap`). The agent's own thread
does everything that waits.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from gradcanary import __version__, api, summary, wire
from gradcanary.attach.request import PATIENCE_S, read_message, write_message
from gradcanary.model.parameters import count_elements, live_objects, parameters_of
from gradcanary.model.training_loop import unwrapped
from gradcanary.settings import Settings

POLL_S = 1.0

SEND_S = 5.0
"""For the data that is left to send at a detach."""

SETTLE_S = 0.05
"""For values on their way from a GPU, in the training's thread: no other thread may query it."""

OTHER_VERSION = """\
the agent in this process is {running}, yours {yours}. Attach with that version, from an environment of its own:
python -m venv agent-{running} and pip install gradcanary=={running} there"""

_agent: AttachedAgent | None = None


class AttachedWatch(api.Watch):
    """A watch that touches nothing before :meth:`begin`, and ends in steps: :meth:`remove_hooks`, :meth:`flush`,
    :meth:`detach`. A ``watch()`` in the script replaces it."""

    def __init__(self, settings: Settings, default_run: str, launch: str | None = None) -> None:
        """Without ``launch`` the environment names the launch."""
        without_step = replace(settings, step=None)
        super().__init__(without_step, None, None, None, is_automatic=True, begins=False, default_run=default_run)
        self._launch = launch

    def begin(self) -> None:
        """Watch from the next step on. Waits for nothing, so that no other thread gets its turn meanwhile."""
        try:
            self._attach(None, None, is_late=True)
        except BaseException:  # a signal's: leave no half of the hooks
            self._session.remove_hooks()
            raise

    @property
    def is_open(self) -> bool:
        """True while the watch is open in this process."""
        return self._is_ours()

    def remove_hooks(self) -> None:
        """Remove all hooks and patches; the last window and the unsent data are still there."""
        if self._is_ours():
            self._session.remove_hooks()

    def flush(self, timeout_s: float) -> None:
        """End the last window, in the training's thread; wait at most ``timeout_s`` for values from a GPU."""
        if self._is_ours():
            self._session.flush(timeout_s)

    def detach(self, timeout_s: float) -> None:
        """End the watch of a training that goes on; send the rest for at most ``timeout_s``."""
        self._close(wire.End("detached", None, None), timeout_s)

    @property
    def is_flushed(self) -> bool:
        """True if the last window was submitted: the rest of the close needs nothing of the training."""
        return not self._is_ours() or self._session.is_flushed

    @property
    def unsent(self) -> str | None:
        """After the end: a sentence on the data that the collector did not get, None if it has everything."""
        sender = self._session.sender
        return None if sender is None else sender.unsent

    def describe(self) -> dict[str, Any]:
        """Return what is known by now: of the session as :func:`gradcanary.summary.summarize`, and of the collector.

        ``is_reachable`` is None until the collector took the data, or did not.
        """
        recorder, sender = self._session.recorder, self._session.sender
        return {
            "run": self.run,
            "url": self.url,
            "launch": self._launch,
            "rank": recorder.rank.rank,
            "world_size": recorder.rank.world_size,
            "sends_only_nonfinite": recorder.rank.sends_only_nonfinite,
            "facts": [fact.text for fact in recorder.facts],
            "is_reachable": None if sender is None else sender.is_reachable,
            "is_unauthorized": sender is not None and sender.is_unauthorized,
            **summary.summarize(recorder, sender),
        }

    def _survives_fork(self) -> bool:
        """Return False: a forked child is not watched, only the process of the request."""
        self._session.on_fork()
        return False


class AttachedAgent:
    """One attach, from its request to its end."""

    def __init__(
        self,
        request: dict[str, Any],
        run_at_safe_point: Callable[[Callable[[], object], Callable[[], object]], None],
        write_answer: Callable[[str, dict[str, Any]], None],
    ) -> None:
        """The functions are those of the bootstrap, which is no module of the process.

        Raises ValueError on a wrong setting, or if this agent has another version than the command.
        """
        if request["agent"] != __version__:
            raise ValueError(OTHER_VERSION.format(running=__version__, yours=request["agent"]))
        self._request = request
        self._run_at_safe_point, self._write_answer = run_at_safe_point, write_answer
        given = {name: value for name, value in request["settings"].items() if value is not None}
        self._settings = Settings.resolve(os.environ, spelled="--{}", **given)
        self._for_s: float | None = request["for_s"]
        self._listener: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._watch: AttachedWatch | None = None
        self._optimizers: list[dict[str, Any]] = []
        self._is_decided = threading.Event()
        self._is_active = self._is_cancelled = False
        self.held_s = 0.0
        """How long the main thread was held, without the stop by gdb."""

    # -- in the main thread --------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Do the slow part. Touches nothing of the training."""
        global _agent
        if api.open_watches():
            (first, *_) = api.open_watches()
            raise RuntimeError(f"it is watched already, as run {first.run}: {first.url}")
        if self._watch is None:
            self._optimizers = list_optimizers()
            self._watch = AttachedWatch(self._settings, self._request["default_run"], self._request["launch"])
        if self._thread is None:
            self._listener = _listen(Path(self._request["socket"]))
            _agent = self
            thread = threading.Thread(target=self._run, name="gradcanary-control", daemon=True)
            thread.start()
            self._thread = thread

    def activate(self) -> None:
        """Begin to watch. Nothing here waits, so that all stacks are as :func:`blocking_frame` saw them."""
        assert self._watch is not None  # noqa: S101 -- prepare() made it
        self._watch.begin()
        self._is_active = True
        self._is_decided.set()

    def cancel(self) -> None:
        """Undo :meth:`prepare`, and :meth:`activate` if a signal's exception came right after it."""
        self._is_cancelled = True
        self._is_decided.set()
        if self._thread is None:
            self._clean_up()

    # -- in the agent's thread -----------------------------------------------------------------------------------

    def _run(self) -> None:
        self._is_decided.wait()
        watch = self._watch
        if watch is not None and self._is_active:
            if self._is_cancelled:
                self._detach(watch)
            with contextlib.suppress(OSError):  # the command may have ended
                self._write_answer(self._request["folder"], {"run": watch.run})
            self._serve(watch)
        self._clean_up()

    def _serve(self, watch: AttachedWatch) -> None:
        """Listen while the watch is open, whatever fails: nothing else could end it."""
        end = None if self._for_s is None else time.monotonic() + self._for_s
        while watch.is_open:
            try:
                if end is not None and time.monotonic() >= end:
                    self._detach(watch)
                else:
                    self._accept(watch)
            except Exception:  # noqa: BLE001, PERF203 -- too many open files, for a while
                time.sleep(POLL_S)

    def _accept(self, watch: AttachedWatch) -> None:
        assert self._listener is not None  # noqa: S101 -- made before the thread
        self._listener.settimeout(POLL_S)
        try:
            connection, _ = self._listener.accept()
        except TimeoutError:
            return
        with connection, contextlib.suppress(OSError, ValueError):  # a command that gave up, or another program
            connection.settimeout(PATIENCE_S)
            answer: dict[str, Any]
            if read_message(connection).get("do") == "detach":
                self._detach(watch)
                answer = {"detached": watch.run, "unsent": watch.unsent, "thread": threading.get_native_id()}
            else:
                own = {"optimizers": self._optimizers, "for_s": self._for_s, "held_s": self.held_s}
                answer = {**watch.describe(), **own}
            write_message(connection, answer)

    def _detach(self, watch: AttachedWatch) -> None:
        if not watch.is_flushed:
            self._run_at_safe_point(watch.remove_hooks, lambda: watch.flush(SETTLE_S))
        watch.detach(SEND_S)

    def _clean_up(self) -> None:
        global _agent
        if self._listener is not None:
            with contextlib.suppress(OSError):  # removed by hand
                os.unlink(self._request["socket"])  # noqa: PTH108 -- a plain string
            self._listener.close()
        _agent = None if _agent is self else _agent

    def close_in_fork(self) -> None:
        """Close the socket, which is the parent's."""
        if self._listener is not None:
            self._listener.close()


def list_optimizers() -> list[dict[str, Any]]:
    """Return the optimizers of this process, the largest first; one pass over the garbage collector's objects."""
    found = {id(each): each for each in map(unwrapped, live_objects(torch.optim.Optimizer))}.values()
    rows = [
        {"kind": type(each).__name__, "tensors": len(parameters_of(each)), "elements": count_elements(each)}
        for each in found
    ]
    return sorted((each for each in rows if each["tensors"]), key=lambda each: -int(each["elements"]))


def _listen(path: Path) -> socket.socket:
    """Return a socket for this user alone: the folder is private."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        _remove_unused(path)
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(8)
    except BaseException:
        listener.close()
        raise
    return listener


def _remove_unused(path: Path) -> None:
    """Remove the socket of an earlier agent; raise RuntimeError if another one listens there."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(0)
        try:
            connection.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            path.unlink(missing_ok=True)
            return
        except BlockingIOError:
            pass
    raise RuntimeError("another command is attaching to it just now")


def _after_fork() -> None:
    global _agent
    if _agent is not None:
        _agent.close_in_fork()
        _agent = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
