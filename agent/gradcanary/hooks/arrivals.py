"""Copies of values to the host, which nothing waits for."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from gradcanary.hooks.graphs import HOST_DEVICES


class Arrival(Protocol):
    """An event after a copy, as ``torch.cuda.Event``."""

    def query(self) -> bool:
        """Return True if it has happened, without waiting."""


def to_host(values: Tensor) -> tuple[Tensor, Arrival | None]:
    """Return a copy on the host, and the event of its arrival; nothing waits for it."""
    if values.device.type in HOST_DEVICES:
        return values, None
    copy = values.to("cpu", non_blocking=True)
    return copy, torch.cuda.current_stream(values.device).record_event()
