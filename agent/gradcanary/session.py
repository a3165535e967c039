"""One process of a launch, put together: hooks, observer, ring and sender, with a wall around them."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
from torch import Tensor, nn

from gradcanary import engine, naming, wire
from gradcanary.greeting import Greeting
from gradcanary.guard import Guard
from gradcanary.hooks import Hooks
from gradcanary.observer import Observer
from gradcanary.records import Logged, Record
from gradcanary.ring import Ring, capacity_for
from gradcanary.sender import Sender
from gradcanary.settings import Settings
from gradcanary.transport import Transport

NO_CALLBACKS = wire.Fact(
    code="no_engine_callback",
    text="This version of torch has no callback at the end of backward: gradients are read at the optimizer step, "
    "after any clipping, so falls are not looked for.",
    layers=(),
)


class Session:
    """Watches from its making to :meth:`close`."""

    def __init__(
        self,
        settings: Settings,
        run: str,
        launch: str,
        model: nn.Module | None,
        optimizer: torch.optim.Optimizer | None,
        on_alert: Callable[[wire.Brief], None] | None,
    ) -> None:
        self.guard = Guard()
        self._pid = os.getpid()
        self._ring: Ring[Record] = Ring(capacity_for(0))
        has_callbacks = engine.has_callbacks()
        self.observer = Observer(settings, self.guard, has_callbacks=has_callbacks, put=self._put)
        rank, world_size = naming.rank(os.environ)
        facts = () if has_callbacks else (NO_CALLBACKS,)
        greeting = Greeting(launch, rank, world_size, facts, self.observer)
        transport = Transport(settings.url, settings.token, run, naming.session_id())
        # Of a replicated model every rank has the same gradients: the first one sends.
        self.sender = Sender(self.observer, self._ring, transport, greeting, self.guard, on_alert, is_silent=rank > 0)
        self._hooks = Hooks(self.observer, settings, self.guard)
        self.guard.wrap("attaching", self._hooks.attach)(model, optimizer)
        self.guard.wrap("starting the sender", self.sender.start)()

    @property
    def has_stepped(self) -> bool:
        """Whether an optimizer has stepped under this session."""
        return self.observer.origin is not None

    def covers(self, model: nn.Module | None, optimizer: torch.optim.Optimizer | None) -> bool:
        """Tell whether this model or optimizer is watched already."""
        if optimizer is not None:
            return self._hooks.follows(optimizer)
        return model is not None and self._hooks.watches(model)

    def log(self, name: str, tags: tuple[tuple[str, str], ...], step: int | None, value: float | Tensor) -> None:
        """Keep a number for the window that is open."""
        self.observer.logged.append(Logged(name, tags, step, value))

    def close(self, end: wire.End, timeout_s: float) -> None:
        """Detach, send what is left, and end."""
        self.guard.wrap("the last window", self.observer.close)()
        self.guard.wrap("detaching", self._hooks.detach)()
        self.guard.wrap("ending the sender", self.sender.stop)(end, timeout_s)
        if not self.sender.is_done:
            self.guard.say("the collector did not take everything in time; the last steps are lost")

    def forked(self) -> None:
        """In a forked child: leave no hook, and nothing to send with; the parent goes on."""
        self.guard.wrap("detaching", self._hooks.detach)()

    def _put(self, record: Record) -> None:
        if os.getpid() != self._pid:
            return  # a forked worker has no sender thread
        self._ring.capacity = capacity_for(len(record.layers))
        self._ring.put(record)
