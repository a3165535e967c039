"""The end of a backward pass: a callback of torch's autograd engine, private, and not trusted before it came once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.autograd import Variable


def has_callbacks() -> bool:
    """Return True if torch has the private calls. The first backward pass of the training shows if they work.

    A pass of ours would make torch start the threads of its GPUs, and forbid backward passes to forks after that.
    """
    return hasattr(torch._C, "_current_graph_task_id") and hasattr(Variable._execution_engine, "queue_callback")  # noqa: SLF001 -- private


def current_pass() -> int:
    """Return a number that no other backward pass has, -1 outside of one."""
    number: int = torch._C._current_graph_task_id()  # noqa: SLF001 -- see has_callbacks
    return number


def passes() -> Callable[[], int]:
    """Return :func:`current_pass` for those who ask once per layer: torch's own, without a call around it."""
    number: Callable[[], int] = torch._C._current_graph_task_id  # noqa: SLF001 -- see has_callbacks
    return number


def at_end(callback: Callable[[], None]) -> None:
    """Call the callback when the present backward pass has ended, after callbacks that were queued before."""
    Variable._execution_engine.queue_callback(callback)  # noqa: SLF001 -- see has_callbacks
