"""One process of a launch, put together: hooks, recorder, queue and sender, with the guard around them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from gradcanary import facts, identity, summary, wire
from gradcanary.export import spool
from gradcanary.export.device_copy import DRAIN_S, Transfers
from gradcanary.export.hello import SessionHello
from gradcanary.export.sender import Sender
from gradcanary.export.stop_rule import StopRule
from gradcanary.export.transport import Transport
from gradcanary.guard import Guard
from gradcanary.hooks import backward
from gradcanary.hooks.graphs import is_capturing
from gradcanary.integrations.links import Links
from gradcanary.model.distributed import replicated_value
from gradcanary.model.layers import Layers
from gradcanary.model.training_loop import unwrapped
from gradcanary.settings import Settings
from gradcanary.tracking.optimizers import Hooks
from gradcanary.tracking.recorder import Recorder
from gradcanary.tracking.records import LoggedMetric, RecordQueue, StepRecord, capacity_for

MAX_LOGGED = 10_000
"""Numbers of the script that wait for the end of a window. More than any window has; a bound if none ever ends."""

OVER_S = -1.0
"""A timeout that is over already."""


class Session:
    """Begins with :meth:`attach`, or with the first step of an optimizer if it waits; ends with :meth:`close`."""

    def __init__(
        self, settings: Settings, run: str, begin: Callable[[], str], on_alert: Callable[[wire.Brief], None] | None
    ) -> None:
        self.guard = Guard()
        self.sender: Sender | None = None
        self.stop_rule = StopRule(settings.stop_on)
        self._settings, self._run, self._begin, self._on_alert = settings, run, begin, on_alert
        self._pid = os.getpid()
        self._is_on, self.is_flushed = True, False
        self._on_detached: Callable[[], object] = lambda: None
        self._queue: RecordQueue[StepRecord] = RecordQueue(capacity_for(0))
        self._layers: Layers | None = None
        self._transfers = Transfers(self._queue, self.guard.catch)
        self.recorder = Recorder(settings, self.guard, put=self._put)
        poll, prepare = self._transfers.poll, self._transfers.prepare
        self._hooks = Hooks(self.recorder, settings, self.guard, poll=poll, prepare=prepare)
        self._links = Links(f"{settings.url}/runs/{run}", self.guard, links=settings.environment)
        self._look_for_trackers = self.guard.wrap("looking for other trackers", self._links.look)

    def attach(
        self, model: nn.Module | None, optimizer: torch.optim.Optimizer | None, *, waits: bool, is_late: bool = False
    ) -> None:
        """Hook torch. A session that ``waits`` does no more until an optimizer steps, here or in a forked child.

        ``is_late`` is True if the training runs already.
        """
        if is_late:
            self.guard.wrap("joining", self.recorder.join)()
        if waits:
            self._hooks.before_first_step = self._open
        else:
            self._open()
        if waits or self.sender is not None:
            self.guard.wrap("attaching", self._hooks.attach)(model, optimizer)

    def _open(self) -> None:
        """Start the sender. From now on the process reports its end."""
        self._pid = os.getpid()
        self.guard.wrap("looking at the autograd engine", self._look_at_engine)()
        self.guard.wrap("finding the rank", self.recorder.rank.find)()
        self.guard.wrap("beginning to send", self._begin_to_send)()
        if self.sender is not None:
            self.guard.wrap("starting the sender", self.sender.start)()

    def _look_at_engine(self) -> None:
        self.recorder.clock.has_backward_end = backward.has_callbacks()
        if not self.recorder.clock.has_backward_end:
            self.recorder.add_fact(facts.NO_CALLBACKS)

    def _begin_to_send(self) -> None:
        session, url = identity.session_id(), self._settings.url
        hello = SessionHello(self._begin(), self.recorder, self._links.find)
        transport = Transport(url, self._settings.token, self._run, session)
        print_summary = None if self.recorder.is_late else self._print_summary

        def make_spool(hello: bytes, progress: spool.Progress) -> spool.Spool:
            return spool.Spool.create(spool.default_folder(os.environ), self._run, session, url, hello, progress)

        self.sender = Sender(
            self.recorder,
            self._queue,
            hello,
            transport,
            make_spool,
            self.guard,
            self._on_alert,
            print_summary,
            self.stop_rule,
        )

    def _print_summary(self) -> bool:
        """Print a line about the training and its page, on the first rank; return False if it is too early.

        Runs in the sender's thread.
        """
        if self.recorder.rank.rank > 0:
            return True
        found = summary.summarize(self.recorder, self.sender)
        if found["layers"] is None or found["k"] is None:
            return False
        self.guard.print_once(f"watching {summary.describe_in_one_line(found)}: {self._settings.url}/runs/{self._run}")
        return True

    @property
    def has_stepped(self) -> bool:
        """True if an optimizer has stepped in this session."""
        return self.recorder.first_step is not None

    @property
    def steps_taken(self) -> int:
        """The steps of all optimizers in this session."""
        return self.recorder.clock.steps_taken

    @property
    def is_training_here(self) -> bool:
        """True if this thread ran the last pass or step, or made the watch."""
        return self._hooks.is_training_here()

    @property
    def is_recorded(self) -> bool:
        """True while a CUDA graph is recorded: a copy of a tensor would become part of it."""
        return is_capturing()

    def covers(self, model: nn.Module | None, optimizer: torch.optim.Optimizer | None) -> bool:
        """Return True if this model or optimizer is watched already."""
        if optimizer is not None:
            return self._hooks.follows(unwrapped(optimizer))
        return model is not None and self._hooks.watches(model)

    def log(self, name: str, tags: tuple[tuple[str, str], ...], step: int | None, value: float | Tensor) -> None:
        """Keep a number for the open window; where no window ends, the latest ones.

        A tensor is copied. Raises ValueError on a DTensor of which each process has a part.
        """
        if isinstance(value, Tensor):
            if (here := replicated_value(value)) is None:
                raise ValueError(f"log({name}=) is a DTensor of which each process has a part: give its .full_tensor()")
            value = here.detach().clone()
            self.guard.wrap("noting a stream", self._transfers.add_producer_stream)(value)
        logged = self.recorder.logged
        logged.append(LoggedMetric(name, tags, step, value))
        if len(logged) > MAX_LOGGED:
            del logged[0]
            self.guard.print_once(
                f"of more than {MAX_LOGGED:,} numbers that were logged without a step the oldest are lost"
            )

    def pause(self) -> None:
        """Measure nothing until the next step."""
        self.guard.wrap("pausing", self.recorder.pause)()

    def step(self) -> None:
        """Note a step of a loop without an optimizer."""
        if self.sender is not None:
            self._hooks.step_by_hand()

    def observe(self, name: str, buffer: Tensor) -> None:
        """Read a buffer instead of a layer's ``.grad``; raises ValueError on a name or shape of no layer."""
        self.recorder.external_sums.check(name, tuple(buffer.shape))
        self.guard.wrap("looking for what has arrived", self._transfers.poll)()
        self.guard.wrap("leaving the fast path", self.recorder.leave_fast_path)()
        if not self.recorder.clock.is_paused:
            self.guard.wrap("reading a buffer", self.recorder.meter.timed(self.recorder.external_sums.read))(
                name, buffer
            )

    def close(
        self, end: wire.End, timeout_s: float, on_detached: Callable[[], object], *, is_exit: bool = False
    ) -> None:
        """Detach, call ``on_detached``, send the rest, and end.

        If another thread trains, its next pass detaches: at this moment it may iterate over torch's hooks, or record a
        CUDA graph. The open window is not sent then. At the exit of the process the session waits for no pass.
        """
        began = time.monotonic()
        if self._is_on and not is_exit and self._hooks.is_training_elsewhere():
            self._on_detached = on_detached
            self._hooks.before_next_pass = self.detach_if_closed
        else:
            self.remove_hooks()
            self.flush(min(timeout_s, DRAIN_S))
            on_detached()
        if self.sender is not None:
            left_s = max(timeout_s - (time.monotonic() - began), 0.0)
            self.guard.wrap("ending the sender", self.sender.stop)(end, left_s)
            self._print_incidents(end)
            self._links.wait(timeout_s - (time.monotonic() - began))
        self.guard.print_caught()

    def _print_incidents(self, end: wire.End) -> None:
        """Print the incidents that are open as the training ends, on the first rank, as the summary."""
        if self.sender is None or self.recorder.is_late or self.recorder.rank.rank > 0 or end.state == "detached":
            return
        if found := summary.describe_incidents(self.sender.open_at_end):
            self.guard.print_once(f"{found}: {self._settings.url}/runs/{self._run}")

    def detach_late(self) -> None:
        """Detach in the training's thread after another thread has closed the session."""
        if not (self._hooks.is_training_elsewhere() or is_capturing()):
            self.detach_if_closed()

    def detach_if_closed(self) -> None:
        """Detach if another thread has closed the session. Values on their way are dropped: the sender has ended."""
        if self._hooks.before_next_pass is not None:
            self.remove_hooks()
            self.guard.wrap("letting go of values on their way", self._transfers.drain)(OVER_S)
            self._hooks.before_next_pass = None
            self._on_detached()

    def remove_hooks(self) -> None:
        """Detach: from now on the training calls nothing of the session. Waits for nothing."""
        if self._is_on:
            self.guard.wrap("detaching", self._hooks.detach)()
            self._is_on = False

    def flush(self, timeout_s: float) -> None:
        """Submit the last window, and wait at most ``timeout_s`` for values on their way from a GPU.

        In the training's thread: a query from another thread would break a CUDA graph that is being recorded.
        """
        if not self.is_flushed:
            self.guard.wrap("the last window", self.recorder.close)()
            self.guard.wrap("bringing the last values here", self._transfers.drain)(timeout_s)
            self.is_flushed = True

    def on_fork(self) -> None:
        """In a forked child: remove all hooks. The parent goes on."""
        backward.renew_lock()  # the module's own call at a fork comes after this one
        self.guard.wrap("detaching", self._hooks.detach)()

    def _put(self, record: StepRecord) -> None:
        if os.getpid() != self._pid or self.sender is None:
            return  # a forked worker has no sender, nor has a watch that could not begin
        if self._hooks.before_next_pass is not None:
            return  # another thread has closed the session
        if self.recorder.rank.rank == 0:
            self._look_for_trackers()
        if record.layers is not self._layers:
            self._layers = record.layers
            self._queue.capacity = capacity_for(len(record.layers))
        self._transfers.submit(record)
