"""What a sum of low precision lost: beside it, the same gradients of a few layers are summed up in float32.

In one window in a hundred a hook on each of these layers sees what comes in before it is added. It is not enough to
look at the sum before and after: what was swallowed shows in neither.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gradcanary.statistics import LOW_PRECISION, readable, scaled_norm
from gradcanary.weights import References

EACH = 100
FIRST = 2
"""The first window looked at after the one in which a watch began: early enough to be told while somebody waits."""

PER_WINDOW = 8
MAX_BYTES = 2**26
"""Of all float32 sums of a window: 64 MiB. A layer whose sum is larger is left out."""


def is_due(step: int, first: int) -> bool:
    """Say whether a window is one to look at: by its number, so that all ranks take the same."""
    return step - first == FIRST or (step > first and step % EACH == 0)


class Shadows:
    """The float32 sums of a window, by position of the layer; none while no window is looked at."""

    def __init__(self, wrap: Callable[[str, Callable[..., None]], Callable[..., None]]) -> None:
        self._wrap = wrap
        self._sums: dict[int, Tensor | None] = {}
        self._counts: dict[int, int] = {}
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []

    def begin(self, references: References, step: int) -> None:
        """Sum up what comes from now on, of layers whose sums are of low precision; the step chooses among them."""
        self.end()
        chosen = [place for place, reference in enumerate(references) if _is_low(reference())]
        first = step // EACH * PER_WINDOW % max(len(chosen), 1)
        room = MAX_BYTES
        for place in (chosen[first:] + chosen[:first])[:PER_WINDOW]:
            parameter = references[place]()
            if parameter is None or 4 * parameter.numel() > room:
                continue
            room -= 4 * parameter.numel()
            self._sums[place], self._counts[place] = None, 0
            add = self._wrap("summing up in float32", lambda gradient, place=place: self._add(place, gradient))
            self._hooks.append(parameter.register_hook(add))  # type: ignore[no-untyped-call]  # untyped in torch

    def end(self) -> None:
        """Let go of the window."""
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._sums, self._counts = [], {}, {}

    def losses(self, counts: Sequence[int], gradient: Callable[[int], Tensor | None]) -> dict[int, Tensor]:
        """Return tensors of six, by position, of sums in which several gradients are: the L2 norms of the difference,
        of the sum, and of the float32 sum, each a product of two. Kernels only, nothing is read."""
        found = {}
        with torch.no_grad():
            for place, sums in self._sums.items():
                stored = gradient(place)
                if sums is None or stored is None or not 1 < counts[place] == self._counts[place]:
                    continue
                if readable(stored) and stored.dtype in LOW_PRECISION and stored.shape == sums.shape:
                    parts = (stored.float() - sums, stored.float(), sums.clone())
                    found[place] = torch.stack([factor for part in parts for factor in scaled_norm(part)])
        return found

    def _add(self, place: int, gradient: Tensor) -> None:
        with torch.no_grad():
            before, self._counts[place] = self._sums[place], self._counts[place] + 1
            self._sums[place] = gradient.to(torch.float32, copy=True) if before is None else before.add_(gradient)


def read(factors: Tensor) -> tuple[float, float] | None:
    """Return accumulation error and norm ratio, None where a sum is zero or not finite; this waits for the device."""
    numbers: list[float] = factors.tolist()
    lost, stored, exact = (numbers[at] * numbers[at + 1] for at in (0, 2, 4))
    return (lost / exact, stored / exact) if exact > 0 and math.isfinite(lost + stored + exact) else None


def _is_low(parameter: Tensor | None) -> bool:
    """Say so of a parameter whose gradients torch itself sums in low precision, and lets a hook see."""
    if parameter is None or type(parameter.data) is not Tensor or not parameter.requires_grad:
        return False
    asked = getattr(parameter, "grad_dtype", None) or parameter.dtype
    return asked in LOW_PRECISION and parameter.layout is torch.strided
