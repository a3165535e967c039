"""Where a loss can be seen without code in the loop: what ``backward()`` is called on.

``torch.autograd.backward`` is the one function that ``Tensor.backward`` and direct calls go through. While somebody
listens it is replaced by a function that tells the listeners first; when the last one leaves, the original is put back.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from gradcanary.shards import whole

Listener = Callable[[object], None]
"""Takes what ``backward()`` was called on, whatever that is, and never raises."""

_listeners: list[Listener] = []
"""Changed in place: a finalizer may change it while the same thread does."""

_original: Callable[..., Any] | None = None
_installed: Callable[..., Any] | None = None
_lock = threading.RLock()


def listen(listener: Listener) -> None:
    """Call the listener with what each outermost backward pass starts from, before it runs."""
    global _original, _installed
    with _lock:
        _listeners.append(listener)
        if _installed is None:
            _original = torch.autograd.backward
            _installed = _tapped(_original)
            torch.autograd.backward = _installed


def leave(listener: Listener) -> None:
    """Stop calling the listener; the last one to leave restores ``torch.autograd.backward``."""
    global _original, _installed
    with _lock:
        if listener in _listeners:
            _listeners.remove(listener)
        # Where somebody else wrapped our function meanwhile, theirs stays, and ours in it only passes calls on.
        if not _listeners and _installed is not None and torch.autograd.backward is _installed:
            torch.autograd.backward = _original  # type: ignore[assignment]  # what it was before
            _original = _installed = None


def renew_lock() -> None:
    """Make a new lock: a forked child has the old one, maybe held by a thread that only the parent has."""
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
    task = getattr(torch._C, "_current_graph_task_id", None)  # noqa: SLF001 -- asked for politely: it may be absent
    return task is None or bool(task() == -1)


def single_elements(tensors: object) -> list[Tensor]:
    """Return the roots of one element, without those that are spread over processes: a collective would have to tell
    their value."""
    if type(tensors) is Tensor:  # by far the most usual, and never spread
        return [tensors] if tensors.numel() == 1 and tensors.is_floating_point() else []
    if isinstance(tensors, Tensor):
        tensors = (tensors,)
    if not isinstance(tensors, (tuple, list)):
        return []  # an iterator must reach torch unread
    single = (each for each in tensors if isinstance(each, Tensor) and each.numel() == 1 and each.is_floating_point())
    return [root for each in single if (root := whole(each)) is not None]
