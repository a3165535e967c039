"""Where the count of steps begins."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch

from gradcanary.frameworks import loop_of, unwrapped
from gradcanary.records import Origin

_LOOKED_AT = 8
"""Parameters whose state is asked: they agree, but for those that have no gradient yet."""


def origin_of(
    optimizer: torch.optim.Optimizer | None,
    given: int | None,
    failed: Callable[[str, Exception], None],
    *,
    is_late: bool = False,
) -> Origin:
    """Return the number of the first window; ``failed`` is told of a framework that does not say its step.

    What ``watch(step=)`` said; else the framework; else what the optimizer counted (Adam and its family); else 0, and
    that is relative. Reads the optimizer's counters: once, when the first window begins. ``is_late`` is known where the
    training ran before, whatever its counters say.
    """
    optimizer = None if optimizer is None else unwrapped(optimizer)
    name, loop = "unknown", None
    if optimizer is not None:
        name, loop = type(optimizer).__name__, loop_of(optimizer, failed)
    if given is not None:
        return Origin(given, "given", late=is_late, optimizer=name, loop=loop)
    if loop is not None and loop.step is not None:
        return Origin(loop.step, "framework", late=is_late or loop.step > 0, optimizer=name, loop=loop)
    counted = [] if optimizer is None else [_number(state["step"]) for state in _states(optimizer) if "step" in state]
    if counted:
        step = max(counted)
        return Origin(step, "optimizer", late=is_late or step > 0, optimizer=name, loop=loop)
    source = "optimizer" if _counts(optimizer) else "relative"
    return Origin(0, source, late=is_late, optimizer=name, loop=loop)


def _states(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    return [state for state in itertools.islice(optimizer.state.values(), _LOOKED_AT) if isinstance(state, dict)]


def _number(step: object) -> int:
    return int(step) if isinstance(step, (int, float, torch.Tensor)) else 0


def _counts(optimizer: torch.optim.Optimizer | None) -> bool:
    """Say whether the optimizer is one that counts steps, and so has none behind it while its state is empty."""
    kinds = (torch.optim.Adam, torch.optim.AdamW, torch.optim.Adamax, torch.optim.NAdam, torch.optim.RAdam)
    return isinstance(optimizer, kinds) and not optimizer.state
