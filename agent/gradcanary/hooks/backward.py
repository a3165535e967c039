"""The calls of ``backward()``: their number, their losses, and the end of a pass.

The end is a private callback of torch's autograd engine; it is trusted once the first one has come.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Variable

from gradcanary.model.distributed import replicated_value

Listener = Callable[[object], None]
"""Gets the first argument of ``backward()``, of any type, and never raises."""

_listeners: list[Listener] = []
"""Changed in place: a finalizer may change it while the same thread does."""

_original: Callable[..., Any] | None = None
_installed: Callable[..., Any] | None = None
_lock = threading.RLock()

_KEPT = 64
"""Losses kept for an optimizer that has not stepped yet. A window with more has no loss: a sum of some is wrong."""


def subscribe(listener: Listener) -> None:
    """Call the listener with the roots of each outermost backward pass, before it runs."""
    global _original, _installed
    with _lock:
        _listeners.append(listener)
        if _installed is None:
            _original = torch.autograd.backward
            _installed = _tapped(_original)
            torch.autograd.backward = _installed


def unsubscribe(listener: Listener) -> None:
    """Stop calling the listener; after the last one ``torch.autograd.backward`` is restored."""
    global _original, _installed
    with _lock:
        if listener in _listeners:
            _listeners.remove(listener)
        # If other code has wrapped this function meanwhile, its wrapper stays, and ours inside only passes calls on.
        if not _listeners and _installed is not None and torch.autograd.backward is _installed:
            torch.autograd.backward = _original  # type: ignore[assignment]  # what it was before
            _original = _installed = None


def renew_lock() -> None:
    """Make a new lock: in a forked child a thread of the parent may hold the old one for ever."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=renew_lock)


def _tapped(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 -- torch's own signature, passed on as it is
        if _listeners and is_outermost():
            tensors = args[0] if args else kwargs.get("tensors")
            for listener in tuple(_listeners):
                listener(tensors)
        return original(*args, **kwargs)

    return backward


def is_outermost() -> bool:
    """Return False inside a backward pass: the roots of reentrant checkpointing are no losses."""
    task = getattr(torch._C, "_current_graph_task_id", None)  # noqa: SLF001 -- may be absent
    return task is None or bool(task() == -1)


def scalar_roots(tensors: object) -> list[Tensor]:
    """Return the roots of one element, without sharded ones: reading them would need a collective."""
    if type(tensors) is Tensor:  # the usual case, never sharded
        return [tensors] if tensors.numel() == 1 and tensors.is_floating_point() else []
    if isinstance(tensors, Tensor):
        tensors = (tensors,)
    if not isinstance(tensors, (tuple, list)):
        return []  # an iterator must reach torch unread
    single = (each for each in tensors if isinstance(each, Tensor) and each.numel() == 1 and each.is_floating_point())
    return [root for each in single if (root := replicated_value(each)) is not None]


class BackwardCalls:
    """Counts calls of ``backward()`` and keeps their losses until a window takes them.

    Before layers have hooks, these calls are the only count of passes.
    """

    def __init__(self) -> None:
        self.count = 0
        self._present: list[Tensor] = []
        self._kept: list[Tensor] = []
        self._all: list[Tensor] = []
        self._is_cut = False
        self._passes_without_grad_sync = 0
        self.is_claimed = True

    def add(self, roots: list[Tensor]) -> None:
        """Count a call, and copy its losses."""
        copies = [root.data.clone() for root in roots]  # detach() would be dispatched, for three times as long
        self.count += 1
        self._present = copies
        self.is_claimed = False
        self._is_cut = self._is_cut or len(self._all) + len(copies) > _KEPT
        self._all = [] if self._is_cut else self._all + copies

    def skip(self) -> None:
        """Ignore a call."""
        self._present = []
        self.is_claimed = True

    def defer(self) -> None:
        """Note that the present pass has reached a layer, perhaps without a reduction and so without a hook."""
        if not self.is_claimed:
            self._kept, self._present = [*self._kept, *self._present], []
            self._passes_without_grad_sync += 1
            self.is_claimed = True

    def pop(self) -> tuple[list[Tensor], int]:
        """Return the losses of the present and the deferred passes, once, and the number of deferred ones."""
        is_present_deferred = self.is_claimed and self._passes_without_grad_sync > 0
        unsynced = self._passes_without_grad_sync - 1 if is_present_deferred else self._passes_without_grad_sync
        taken = self._kept + self._present
        self._kept, self._present, self._passes_without_grad_sync, self.is_claimed = [], [], 0, True
        return taken, unsynced

    def pop_all(self) -> list[Tensor]:
        """Return the losses of all passes since the last step, none if there were too many to keep."""
        self._present, self._kept = [], []
        return self._all

    def reset(self) -> int:
        """Return the number of calls, and start from zero."""
        count, self.count, self._all, self._is_cut = self.count, 0, [], False
        self._kept, self._passes_without_grad_sync = [], 0
        return count


def has_callbacks() -> bool:
    """Return True if torch has the private calls. The first backward pass of the training shows if they work.

    A test pass would start the GPU threads of torch, and no later fork could run a backward pass.
    """
    return hasattr(torch._C, "_current_graph_task_id") and hasattr(Variable._execution_engine, "queue_callback")  # noqa: SLF001 -- private


def graph_task_id() -> int:
    """Return a number that no other backward pass has, -1 outside of one."""
    number: int = torch._C._current_graph_task_id()  # noqa: SLF001 -- see has_callbacks
    return number


def graph_task_id_function() -> Callable[[], int]:
    """Return torch's own function behind :func:`graph_task_id`, for hooks that run once per layer."""
    number: Callable[[], int] = torch._C._current_graph_task_id  # noqa: SLF001 -- see has_callbacks
    return number


def queue_end_of_backward(callback: Callable[[], None]) -> None:
    """Call the callback when the present backward pass has ended, after callbacks that were queued before."""
    Variable._execution_engine.queue_callback(callback)  # noqa: SLF001 -- see has_callbacks
