"""The time of samples on a GPU: a pair of events around each, read once both have completed and never waited for.

The host only launches the kernels of a sample, so its clock misses the time of the kernels. The longer one of both
times counts: the time on the device that exceeds the host's time is added to that.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import wraps
from typing import Any, ParamSpec, Protocol

import torch

from gradcanary.hooks.graphs import is_capturing

Given = ParamSpec("Given")

PENDING = 64
"""Samples on their way, at most. Further ones are not timed."""


class Event(Protocol):
    """A point in a stream, as ``torch.cuda.Event(enable_timing=True)``."""

    def query(self) -> bool:
        """Return True if it has completed, without waiting."""

    def elapsed_time(self, end: Any) -> float:  # noqa: ANN401 -- an event of the same class
        """Return the milliseconds until another one that has completed as well."""


class DeviceClock:
    """Times samples on ``devices``, the GPUs that hold layers."""

    def __init__(self, record: Callable[[torch.device], Event] | None = None) -> None:
        self.devices: Collection[torch.device] = ()
        self._record = record or _recorded
        self._pending: deque[tuple[float, Sequence[tuple[Event, Event]]]] = deque()

    def time(self, launch: Callable[[], None]) -> None:
        """Launch kernels between two events of each device."""
        if not self.devices or len(self._pending) >= PENDING or is_capturing():
            launch()
            return
        began, begins = time.perf_counter(), [self._record(device) for device in self.devices]
        launch()
        ends = [self._record(device) for device in self.devices]
        self._pending.append((time.perf_counter() - began, [*zip(begins, ends, strict=True)]))

    def take(self) -> float:
        """Return the seconds that devices took longer than the host, for samples completed since the last call."""
        taken_s = 0.0
        while self._pending and not is_capturing():
            host_s, pairs = self._pending[0]
            if not all(begin.query() and end.query() for begin, end in pairs):
                break
            self._pending.popleft()
            device_s = max(begin.elapsed_time(end) for begin, end in pairs) / 1e3
            taken_s += max(device_s - host_s, 0.0)
        return taken_s


def on_device_clock(launch: Callable[Given, None]) -> Callable[Given, None]:
    """Return a method, timed by the ``_device_clock`` of its object."""

    @wraps(launch)
    def timed(*args: Given.args, **kwargs: Given.kwargs) -> None:
        holder: Any = args[0]
        holder._device_clock.time(lambda: launch(*args, **kwargs))  # noqa: SLF001 -- a method's own

    return timed


def _recorded(device: torch.device) -> Event:
    event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # untyped in torch
    event.record(torch.cuda.current_stream(device))
    found: Event = event
    return found
