"""Finds gradients that no part of the loop clears after a step: each step then uses the sum of all gradients so far.

1. After some steps the gradients of the optimizer are marked. At the next call of ``backward()``, before a gradient is
   added to them, and at each later call, their memory and its version must be those after the last step or pass.
2. What stays so for ``WINDOWS`` steps was written by nothing that torch counts. Code that writes past the count, as
   ``p.grad.data.zero_()``, shows in the values: copies of some elements are compared in one window more.

A gradient that is set to None, zeroed or scaled leaves the search at once. So a healthy training has one round of marks
in each search, and no value of it is read. Nothing is found of views and shards, whose versions say nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradcanary.hooks.arrivals import Arrival, to_host
from gradcanary.hooks.graphs import is_capturing, is_slow
from gradcanary.stats.kernels import is_measurable, strided_sample
from gradcanary.stats.sampler import Sampler
from gradcanary.tracking.clear_detection import UNCHANGED, GradientIdentity

SEARCHES = (10, 100)
"""Steps of the optimizer after which a search begins: in the first 1,000 steps, as those of ``not_optimized``."""

WINDOWS = 32
"""Steps in a row without a clear before the values are compared: a loop that steps after each micro-step of a batch,
and clears once per batch, means that."""

MOST_COPIES, ELEMENTS, MOST_PASSES = 64, 256, 8
"""Gradients of which elements are copied, elements of a copy, and passes in which they are compared, at most."""


class NeverCleared:
    """The search in the layers of one optimizer, which go by position; ``found`` are those never cleared, in order."""

    def __init__(self, sampler: Sampler) -> None:
        self.found: Sequence[int] = ()
        self._sampler = sampler
        self._steps = 0
        self.stop()

    def stop(self) -> None:
        """End the search."""
        self._marks: dict[int, GradientIdentity] = {}
        self._windows = self._compared = 0
        self._is_checked = self._has_passed = self._is_stepping = False
        self._copies: dict[int, Tensor] | None = None
        self._flags: list[dict[int, Tensor]] = []
        self._left: list[int] = []
        self._arrivals: list[tuple[list[int], Tensor, Arrival | None]] = []

    @property
    def is_on(self) -> bool:
        """True while the layers' hooks must count each accumulation."""
        return bool(self._marks)

    def before_pass(self) -> None:
        """Before a backward pass, leave out each gradient that something has written to since its mark."""
        if not self._marks:
            return
        gradient = self._sampler.gradient
        self._drop_changed()
        self._is_checked = True
        if self._copies is not None and self._compared < MOST_PASSES:
            self._compared += 1
            self._flags.append(_compare(self._copies, {at: gradient(at) for at in self._copies if at in self._marks}))

    def after_pass(self) -> None:
        """After a backward pass that has reached a layer, mark the gradients again. One that was not seen to begin
        ends the search."""
        if not self._marks:
            return
        if not self._is_checked:
            self.stop()
            return
        self._is_checked, self._has_passed = False, True
        self._mark(list(self._marks))

    def before_step(self) -> None:
        """Before a step without a closure, mark the gradients: an optimizer that writes to them may keep them on
        purpose. A clip comes before the step."""
        self._mark(list(self._marks))
        self._is_stepping = True

    def after_step(self, counts: Sequence[int]) -> None:
        """After a step of the optimizer, go on with the search, or begin one; ``counts`` are the accumulations."""
        self._steps += 1
        self._take_arrivals()
        if self._is_stepping:
            self._drop_changed()
            self._is_stepping = False
        if self._marks:
            self._go_on([at for at in self._marks if counts[at]] if self._has_passed else [])
        elif self._steps in SEARCHES and not self.found and not is_capturing():
            self.stop()
            self._mark([at for at, count in enumerate(counts) if count and self._sampler.is_optimized(at)])

    def _go_on(self, left: list[int]) -> None:
        self._windows += 1
        self._has_passed = False
        if self._copies is not None:
            self._decide(left)
            return
        if self._windows == WINDOWS:
            self._copies = {}
        self._mark(left)
        if not self._marks:
            self.stop()

    def _drop_changed(self) -> None:
        gradient = self._sampler.gradient
        self._marks = {at: mark for at, mark in self._marks.items() if mark.change(gradient(at)) == UNCHANGED}

    def _mark(self, positions: list[int]) -> None:
        known, self._marks = self._marks, {}
        for position in positions:
            gradient = self._sampler.gradient(position)
            if gradient is not None and _is_plain(gradient):
                mark = self._marks[position] = known.get(position) or GradientIdentity()
                mark.mark(position, gradient)
        if self._copies is not None and self._compared < MOST_PASSES:
            stride = -(-len(positions) // MOST_COPIES) or 1
            parts = {at: _elements(self._sampler.gradient(at)) for at in positions[::stride]}
            self._copies = {at: part.clone() for at, part in parts.items() if part is not None}

    def _decide(self, left: list[int]) -> None:
        """Have the results of the comparisons copied to the host: of each gradient, unchanged and not zero."""
        flags, self._flags = self._flags, []
        devices: dict[torch.device, list[int]] = {}
        for position in left:
            if flags and all(position in each for each in flags):
                devices.setdefault(flags[0][position].device, []).append(position)
        arrivals = []
        for positions in devices.values():
            results = torch.stack([torch.stack([each[at] for each in flags]).all(dim=0) for at in positions])
            arrivals.append((positions, *to_host(results)))
        self.stop()
        self._arrivals, self._left = arrivals, left

    def _take_arrivals(self) -> None:
        """Take what has arrived from the devices. If all that were compared are as they were, so are the others."""
        if not self._arrivals or not all(arrival is None or arrival.query() for _, _, arrival in self._arrivals):
            return
        arrivals, self._arrivals = self._arrivals, []
        flags = {at: row for some, rows, _ in arrivals for at, row in zip(some, rows.tolist(), strict=True)}
        kept = [at for at, (is_same, is_nonzero) in flags.items() if is_same and is_nonzero]
        if kept:
            self.found = self._left if all(is_same for is_same, _ in flags.values()) else sorted(kept)


def _is_plain(gradient: Tensor) -> bool:
    """Return True if the version of a gradient counts the writes to it, and to nothing else."""
    if not is_measurable(gradient) or gradient.layout is not torch.strided or is_slow(gradient.device):
        return False
    return not gradient._is_view() and gradient.grad_fn is None  # noqa: SLF001 -- views of a bucket share one version


def _elements(gradient: Tensor | None) -> Tensor | None:
    with torch.no_grad():
        return None if gradient is None else strided_sample(gradient.detach(), ELEMENTS)


def _compare(copies: dict[int, Tensor], gradients: dict[int, Tensor | None]) -> dict[int, Tensor]:
    """Return two flags per gradient: all elements are as in the copy, and any of them is not zero."""
    found = {}
    with torch.no_grad():
        for position, gradient in gradients.items():
            now, before = _elements(gradient), copies[position]
            if now is not None and now.shape == before.shape and now.dtype == before.dtype:
                found[position] = torch.stack([(now == before).all(), now.any()])
    return found
