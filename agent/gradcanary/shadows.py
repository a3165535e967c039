"""What a sum of low precision lost: beside it, the same gradients of a few layers are summed up in float32.

In one window in a hundred a hook on each of these layers sees what comes in before it is added. It is not enough to
look at the sum before and after: what was swallowed shows in neither.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from gradcanary.attached import AFTER, BEFORE, Hook
from gradcanary.references import References
from gradcanary.sampling import is_capturing
from gradcanary.statistics import LOW_PRECISION, Failed, readable, scaled_norm, told
from gradcanary.turns import some
from gradcanary.weights import weight_of

EACH = 100
FIRST = 2
"""The first window looked at after the one in which a watch began: early enough to be told while somebody waits."""

PER_WINDOW = 8
MAX_BYTES = 2**26
"""Of all float32 sums of a window: 64 MiB. A layer whose sum is larger is left out."""


def is_due(step: int, first: int) -> bool:
    """Say whether a window is one to look at: by its number, so that all ranks take the same."""
    return step - first == FIRST or (step > first and step % EACH == 0)


@dataclass
class _Sum:
    """A float32 sum, of how many gradients, and the state that the last addition left the real one in."""

    total: Tensor
    count: int = 1
    left: tuple[int, int] = (0, 0)


class Shadows:
    """The float32 sums of a window, by position of the layer; none while no window is looked at."""

    def __init__(self, wrap: Callable[[str, Callable[..., None]], Callable[..., None]], failed: Failed) -> None:
        self._wrap, self._failed = wrap, failed
        self._references: References = ()
        self._sums: dict[int, _Sum | None] = {}
        self._hooks: list[Hook] = []

    def begin(self, references: References, step: int, interval: int) -> None:
        """Sum up what comes from now on, of layers whose sums are of low precision; the step chooses among them.

        ``interval`` lies between two samples.
        """
        self.end()
        self._references = references
        low = [place for place, reference in enumerate(references) if _is_low(reference())]
        room = MAX_BYTES
        for place in some(low, step // max(EACH, interval), PER_WINDOW):
            parameter = references[place]()
            if parameter is not None and 4 * parameter.numel() <= room:
                room -= 4 * parameter.numel()
                self._follow(place, parameter)

    @property
    def are_on(self) -> bool:
        """Whether a window is looked at."""
        return bool(self._references)

    def end(self) -> None:
        """Let go of the window."""
        for hook in self._hooks:
            hook.remove()
        self._references, self._hooks, self._sums = (), [], {}

    def losses(self, counts: Sequence[int]) -> dict[int, Tensor]:
        """Return tensors of six, by position, of sums in which several gradients are and nothing else: the L2 norms of
        the difference, of the sum, and of the float32 sum, each a product of two. Kernels only, nothing is read."""
        found = {}
        for place, known in self._sums.items():
            stored = self._stored(place)
            if known is None or stored is None or not 1 < counts[place] == known.count:
                continue
            if known.left == _state(stored) and readable(stored) and stored.dtype in LOW_PRECISION:
                with torch.no_grad(), told(self._failed, "measuring what a sum lost", stored):
                    found[place] = _norms(stored, known.total)
        return found

    def _follow(self, place: int, parameter: Tensor) -> None:
        self._sums[place] = None
        come, added = (self._wrap("summing up in float32", partial(each, place)) for each in (self._come, self._added))
        reference = self._references[place]
        self._hooks += [Hook(reference, parameter, BEFORE, come), Hook(reference, parameter, AFTER, added)]

    def _come(self, place: int, gradient: Tensor) -> None:
        """Add a gradient, unless somebody else wrote to the real sum: what was clipped meanwhile is not lost."""
        if place not in self._sums or is_capturing():
            return  # what is added here would become part of the CUDA graph; a sum without it is not told
        known, stored = self._sums[place], self._stored(place)
        if gradient.layout is not torch.strided or (known is not None and known.left != _state(stored)):
            del self._sums[place]
            return
        with torch.no_grad():
            if known is None:
                total = gradient.to(torch.float32, copy=True)
                self._sums[place] = _Sum(total if stored is None else total.add_(stored))
            else:
                known.total.add_(gradient)
                known.count += 1

    def _added(self, place: int, parameter: Tensor) -> None:
        known = self._sums.get(place)
        if known is not None:
            known.left = _state(parameter.grad)

    def _stored(self, place: int) -> Tensor | None:
        parameter = self._references[place]()
        return None if parameter is None else parameter.grad


def loss_of(factors: Sequence[float]) -> tuple[float, float] | None:
    """Return accumulation error and norm ratio, None where a sum is zero or not finite."""
    lost, stored, exact = (factors[at] * factors[at + 1] for at in (0, 2, 4))
    return (lost / exact, stored / exact) if exact > 0 and math.isfinite(lost + stored + exact) else None


def _norms(stored: Tensor, exact: Tensor) -> Tensor:
    """Return the factors of three norms; one temporary tensor at a time."""
    lost = scaled_norm(stored.float().sub_(exact))
    return torch.stack([*lost, *scaled_norm(stored.float()), *scaled_norm(exact.clone())])


def _state(gradient: Tensor | None) -> tuple[int, int]:
    """Return what changes when a gradient is replaced or written to, without reading it."""
    return (0, -1) if gradient is None else (gradient.data_ptr(), gradient._version)  # noqa: SLF001 -- documented only by its name


def _is_low(parameter: Tensor | None) -> bool:
    """Say so of a parameter whose gradients torch itself sums in low precision, in ``.grad``, and lets a hook see."""
    if parameter is None or not parameter.requires_grad or hasattr(parameter, "main_grad"):
        return False
    weight = weight_of(parameter)
    is_plain = weight is not None and type(parameter.data) is Tensor
    return is_plain and getattr(parameter, "grad_dtype", parameter.dtype) in LOW_PRECISION
