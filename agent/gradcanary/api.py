"""``watch()``: the one call that a training makes, and the handle that it returns."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from gradcanary import crash, identity, notices, wire
from gradcanary.settings import (
    Settings,
    check_buffer,
    check_close,
    check_name,
    check_number,
    check_step,
    check_tags,
    check_watch,
)

if TYPE_CHECKING:
    import torch
    from torch import nn


Alert = wire.Brief

WRONG_LOG = "a call of log() is not stored ({error}); further ones that are wrong are not reported"

_lock = threading.Lock()
_open: list[Watch] = []


def watch(
    model: nn.Module | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    run: str | None = None,
    url: str | None = None,
    token: str | None = None,
    every: int | Literal["auto"] = "auto",
    budget: float = 0.01,
    include: str | None = None,
    exclude: str | None = None,
    absmax_below: float | None = None,
    norm_below: float | None = None,
    collapse_below: float | None = None,
    step: int | None = None,
    crash_message: bool = True,
    environment: bool = True,
    metrics: Mapping[str, Mapping[str, object]] | None = None,
    stop_on: Literal["warning", "critical"] | None = None,
    on_alert: Callable[[Alert], None] | None = None,
) -> Watch:
    """Watch the gradients of a training from now on, and return the handle of it.

    Without a model and an optimizer every optimizer that steps in this process is followed; ``watch()`` may come
    before they exist. Settings from ``run`` to ``stop_on`` can also be given as ``GRADCANARY_<NAME>``; arguments
    come first. ``every`` is the sampling interval in steps: 1, 10, 100, 1000, or "auto". That is 1 for the first 1,000
    steps of a launch, then as wide as the ``budget`` requires, a share of the step time. ``include`` and ``exclude``
    are regular expressions over layer names. A layer below ``absmax_below`` or ``norm_below`` alerts at once;
    ``collapse_below`` is the level under which rule ``collapse`` looks for a fall, in the place of the collector's, and
    alerts by the rule's evidence only. ``step`` is the number of the next step of a resumed job. ``crash_message`` is
    False if the message of an exception that ends the training must not be sent; its type and its last frames are.
    ``environment=False`` records no command, git commit, host, GPUs, versions and scheduler's job, and links no run of
    W&B or MLflow. ``metrics`` are bounds of what :meth:`Watch.log` stores, for each set of tags by itself:
    ``{"clip_score": {"below": 0.25, "falls_by": 0.2}}``. ``stop_on`` is the severity from which on an incident sets
    :attr:`Watch.should_stop`; by itself nothing stops the loop.

    A second call for the same optimizer returns the first watch, unless it names another run; of its settings only
    ``stop_on`` counts. Raises TypeError or
    ValueError on wrong arguments, and nothing else, now or later.
    """
    check_watch(model, optimizer, on_alert)
    settings = Settings.resolve(
        os.environ,
        url=url,
        run=run,
        token=token,
        every=every,
        include=include,
        exclude=exclude,
        absmax_below=absmax_below,
        norm_below=norm_below,
        collapse_below=collapse_below,
        step=step,
        budget=budget,
        crash_message=crash_message,
        environment=environment,
        metrics=metrics,
        stop_on=stop_on,
    )
    with _lock:
        same = _same_watch(settings, model, optimizer, on_alert)
        if same is None:
            return Watch(settings, model, optimizer, on_alert)
        same._stop_on(settings.stop_on)  # noqa: SLF001 -- the same module
        return same


def step() -> None:
    """Note, for each open watch, that a step of a loop without an optimizer is over; see :meth:`Watch.step`.

    Without a watch it does nothing.
    """
    for each in open_watches():
        each.step()


def open_watches() -> tuple[Watch, ...]:
    """Return the watches that are open."""
    return tuple(_open)


def watch_when_training() -> None:
    """Watch this process from the first step of an optimizer on: until then there is no session and no thread.

    ``gradcanary run`` calls it once torch is imported. A ``watch()`` in the script replaces it. Raises ValueError on
    wrong settings in the environment.
    """
    settings = Settings.resolve(os.environ)
    with _lock:
        if not _open:
            atexit.register(Watch(settings, None, None, None, is_automatic=True)._end_unstepped)  # noqa: SLF001 -- the same module


class Watch:
    """A watched training. Only wrong arguments raise; after the close no trace is left in the process."""

    run: str
    url: str
    _has_logged = False
    _launch: str | None = None
    _notice: notices.Notice | None = None
    _thread_end: tuple[int, wire.End] | None = None

    def __init__(
        self,
        settings: Settings,
        model: nn.Module | None,
        optimizer: torch.optim.Optimizer | None,
        on_alert: Callable[[Alert], None] | None,
        *,
        is_automatic: bool = False,
        begins: bool = True,
        default_run: str | None = None,
    ) -> None:
        from gradcanary.model import training_loop
        from gradcanary.session import Session

        suggested = training_loop.run_name() if settings.run is None else None
        self.run = identity.choose_run(settings, suggested, default_run)
        self.url = f"{settings.url}/runs/{self.run}"
        self._settings = settings
        self._is_automatic = is_automatic
        self.follows_all = model is None and optimizer is None and not is_automatic
        self._is_closed = False
        self._pid = os.getpid()
        self._unregister_exit: Callable[[], object] = lambda: atexit.unregister(self._at_exit)
        self._thread_errors = crash.ThreadErrors(self._note_thread_error)
        self._session = Session(settings, self.run, self._begin, on_alert)
        if begins:
            self._attach(model, optimizer)
            self._post_notice()
        if settings.run not in (None, self.run):
            self._session.guard.print_once(
                f"the run is called {self.run!r}: a name has up to {identity.MAX_RUN} letters, digits, '.', '_' and '-'"
            )

    @property
    def incidents(self) -> tuple[Alert, ...]:
        """The open incidents of the run, as of the collector's last answer."""
        sender = self._session.sender
        return () if sender is None else sender.incidents

    @property
    def should_stop(self) -> bool:
        """True while an incident of severity ``stop_on`` or worse is open that began in this launch.

        Incidents that are acknowledged or silenced do not count. It reads a variable, so each step may look at it. It
        is False without ``stop_on``, and until the collector has answered; it stays as it is while the collector is
        down. Ranks see it at different steps: with several, that of rank 0 has to be passed to all before one of them
        stops.
        """
        return self._session.stop_rule.is_on

    @property
    def stop_on(self) -> str | None:
        """The least severity of an incident that sets :attr:`should_stop`."""
        return self._session.stop_rule.stop_on

    @property
    def stop_reason(self) -> str | None:
        """The incident that sets :attr:`should_stop`, or was the last to set it, and what to do first."""
        return self._session.stop_rule.reason

    def log(
        self,
        *,
        loss: object = None,
        lr: object = None,
        step: int | None = None,
        tags: Mapping[str, str] | None = None,
        **metrics: object,
    ) -> None:
        """Store numbers of your own beside the gradients, for the present step or a given one.

        Values are numbers or tensors of one element, which another thread reads later. ``tags`` distinguish series of
        one name. A loss given here replaces the captured one. Raises TypeError or ValueError on wrong arguments until a
        call was right. A wrong call after that is reported once on stderr and stores nothing: it ends no training.
        """
        if not self._is_ours() or self._session.is_recorded:
            return
        try:
            self._log({"loss": loss, "lr0": lr, **metrics}, tags, step)
        except Exception as error:
            if not self._has_logged:
                raise
            self._session.guard.print_once(WRONG_LOG, error=error)
        self._has_logged = True

    def observe_accumulator(self, name: str, tensor: torch.Tensor) -> None:
        """Read a tensor in which you sum a layer's gradients yourself, instead of the layer's ``.grad``.

        The first call, before the first backward pass, only announces the tensor. After it, call once in each window
        when the sum is complete, before it is clipped, handed over or cleared. Without an optimizer :meth:`step` ends
        the window. Raises TypeError or ValueError on a tensor that is no gradient, and on an unknown layer.
        """
        check_buffer(name, tensor)
        if self._is_ours():
            self._session.observe(name, tensor)

    def step(self) -> None:
        """Note that a step of a loop without an optimizer is over.

        Call it once in each step, after the update and before gradients are cleared, also if the update is left out.
        If an optimizer is followed, its own steps are counted and this call does nothing.
        """
        if self._is_ours():
            self._session.step()

    def pause(self) -> None:
        """Measure nothing until the next step, as for an evaluation with ``backward()``: its K is 0, it has no loss."""
        self._session.pause()

    def show(self, height: int = 720) -> None:
        """Show the live page of the run in a notebook, ``height`` pixels high; in a terminal print its address.

        The browser has to reach the collector at ``url``, and the collector to allow the frame: docs/how-to/access.md,
        Access. Never raises.
        """
        from gradcanary.display import live_page

        try:
            live_page.show(self.url, height)
        except Exception as error:  # noqa: BLE001 -- a closed stdout is no reason to stop a training
            self._session.guard.print_once("show() failed ({error}); the page is {url}", error=error, url=self.url)

    def close(self, state: str = "finished", timeout_s: float = 5.0) -> None:
        """End the watch: send the rest, for ``timeout_s`` at most, and leave no hook and no thread.

        While another thread trains, its next ``backward()`` or ``close()`` removes the hooks, and the last window is
        not sent.
        """
        check_close(state, timeout_s)
        self._close(self._end(state, sys.exc_info()[1] if state == "crashed" else None), timeout_s)

    def __enter__(self) -> Watch:  # noqa: PYI034 -- typing.Self came with Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _stack: TracebackType | None
    ) -> None:
        self._end_with(error)

    def matches(self, model: nn.Module | None, optimizer: torch.optim.Optimizer | None) -> bool:
        """Return True if a ``watch()`` with these arguments means this watch."""
        if optimizer is not None or model is not None:
            return self._session.covers(model, optimizer)
        # A cell of a notebook that runs again begins a new launch; elsewhere a second watch() is the first.
        return not (is_notebook() and self._session.has_stepped)

    def close_for_next(self) -> None:
        """Close because another model or optimizer is watched from now on."""
        self._session.guard.print_once(
            "a new watch() for another model or optimizer ends the earlier one; "
            "watch() without arguments follows all optimizers of a process"
        )
        self.close()

    def _stop_on(self, severity: str | None) -> None:
        """Take over the ``stop_on`` of another ``watch()`` that means this one."""
        if severity is not None:
            self._session.stop_rule.stop_on = severity

    def _end_unstepped(self) -> None:
        """At the exit of the process: report that no step came, unless one did or an error ended the script."""
        if self._session.sender is None and error_of_process() is None:
            self._close(wire.End("finished", None, None), 0.0, is_exit=True)

    def _begin(self) -> str:
        """Return the launch. Called when the session begins: a watch that waits may begin in a fork."""
        from multiprocessing import parent_process, util

        self._pid = os.getpid()
        self._thread_errors.install()
        if parent_process() is None:
            atexit.register(self._at_exit)
        else:  # a child of multiprocessing that was forked ends without atexit
            self._unregister_exit = util.Finalize(None, self._at_exit, exitpriority=0).cancel
        self._launch = self._launch or identity.next_launch(self.run)
        return self._launch

    def _attach(
        self, model: nn.Module | None, optimizer: torch.optim.Optimizer | None, *, is_late: bool = False
    ) -> None:
        self._session.attach(model, optimizer, waits=self._is_automatic, is_late=is_late)
        _open.append(self)

    def _post_notice(self) -> None:
        """Let ``gradcanary ps`` find the watch, if the system gives a file for it."""
        with suppress(AttributeError, OSError):
            by = "gradcanary run" if self._is_automatic else "watch()"
            self._notice = notices.Notice(run=self.run, url=self.url, by=by)

    def _withdraw_notice(self) -> None:
        if self._notice is not None:
            self._notice.withdraw()

    def _is_replaced_by(self, settings: Settings, *others: object) -> bool:
        """Return True if the watch is automatic and a ``watch()`` with these arguments differs from it."""
        differs = settings != self._settings or any(other is not None for other in others)
        return self._is_automatic and (differs or self._session.sender is None)

    def _survives_fork(self) -> bool:
        """In a forked child: return True if the watch belongs to the child too, as one that waits does."""
        is_waiting = self._session.sender is None
        if is_waiting:
            self._pid = os.getpid()
        else:
            self._session.on_fork()
            self._thread_errors.remove()
            self._withdraw_notice()
        return is_waiting

    def _log(self, values: Mapping[str, object], tags: Mapping[str, str] | None, step: int | None) -> None:
        labels, number = check_tags(tags), check_step(step)
        given = {name: value for name, value in values.items() if value is not None}
        for name in given:
            check_name(name, is_own=name in ("loss", "lr0"))
        checked = [(name, check_number(name, value)) for name, value in given.items()]
        for name, value in checked:
            self._session.log(name, labels, number, value)

    def _is_ours(self) -> bool:
        return not self._is_closed and os.getpid() == self._pid

    def _at_exit(self) -> None:
        self._end_with(error_of_process(), is_exit=True)
        if os.getpid() == self._pid:
            self._session.detach_if_closed()

    def _end_with(self, error: BaseException | None, *, is_exit: bool = False) -> None:
        """Close as crashed if an error ended the training, and as finished if a person or a scheduler did."""
        error = crash.root_error(error)
        if error is None and self._thread_end is not None and self._thread_end[0] == self._session.steps_taken:
            end = self._thread_end[1]
        else:
            end = self._end("finished" if error is None or crash.is_stop(error) else "crashed", error)
        self._close(end, 5.0, is_exit=is_exit)

    def _close(self, end: wire.End, timeout_s: float, *, is_exit: bool = False) -> None:
        if self._is_closed and os.getpid() == self._pid:
            self._session.detach_late()
        if not self._is_ours():
            return
        self._is_closed = True
        if self in _open:
            _open.remove(self)
        self._withdraw_notice()
        self._thread_errors.remove()
        self._session.close(end, timeout_s, self._unregister_exit, is_exit=is_exit)

    def _note_thread_error(self, error: BaseException) -> None:
        """Keep the words for an exception of the thread that trains: it ended the training if no step follows."""
        if self._is_ours() and self._session.is_training_here and not crash.is_stop(error):
            self._thread_end = self._session.steps_taken, self._end("crashed", error)

    def _end(self, state: str, error: BaseException | None) -> wire.End:
        """Return the end of the session, with the words for an error."""
        if error is None or (isinstance(error, SystemExit) and state == "finished"):
            return wire.End(state, None, None)
        try:
            found = crash.describe(error, has_message=self._settings.crash_message)
            is_crash = state == "crashed" and not crash.is_stop(error)
            return wire.End(state, None, crash.one_line(found), found if is_crash else None)
        except Exception as fault:  # noqa: BLE001 -- memory may be full; the script's own error must go on
            self._session.guard.catch("describing the error", fault)
            return wire.End(state, None, type(error).__name__)


def _same_watch(
    settings: Settings,
    model: nn.Module | None,
    optimizer: torch.optim.Optimizer | None,
    on_alert: Callable[[Alert], None] | None,
) -> Watch | None:
    """Return the open watch that a ``watch()`` with these arguments means, and close the others."""
    for earlier in tuple(_open):
        if earlier._is_replaced_by(settings, model, optimizer, on_alert):  # noqa: SLF001 -- the same module
            earlier.close()
            continue
        is_same_run = settings.run is None or identity.allowed_name(settings.run) == earlier.run
        if is_same_run and earlier.matches(model, optimizer):
            return earlier
        if not is_same_run or (model is None and optimizer is None):
            earlier.close()
        else:
            earlier.close_for_next()
    return None


def _forked() -> None:
    """In a forked child: drop the parent's watches, except those that still wait for an optimizer."""
    global _lock
    _lock = threading.Lock()
    _open[:] = [watch for watch in _open if watch._survives_fork()]  # noqa: SLF001 -- the same module


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def error_of_process() -> BaseException | None:
    """Return the error that ends this process, None if it ends well."""
    if hasattr(sys, "ps1") or is_notebook():
        return None  # the last error of an interactive session did not end it
    return getattr(sys, "last_exc", None) or getattr(sys, "last_value", None) or _error_of_child()


def is_notebook() -> bool:
    """Return True in a notebook, whose cells may run again."""
    return hasattr(sys.modules.get("__main__"), "get_ipython") or "ipykernel" in sys.modules


def _error_of_child() -> BaseException | None:
    """Return the error that ends a child of multiprocessing; torch exits with 1 while it handles the error."""
    error = sys.exc_info()[1]
    return error.__context__ if isinstance(error, SystemExit) else error
