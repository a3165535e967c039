"""Finds parameters that receive gradients and that no optimizer holds: they never change, and nothing else shows it.

1. Once each followed optimizer has made some steps, the trainable parameters of the live modules that no live optimizer
   holds get a hook for some steps.
2. Of those that received a gradient in a pass together with a followed layer, some elements are copied.
3. Some steps later the copies are compared: what moves is updated by the loop itself, or from master weights elsewhere.

Each search takes one pass over the garbage collector's objects. A healthy training has two of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from gradcanary.hooks import backward
from gradcanary.hooks.arrivals import Arrival, to_host
from gradcanary.hooks.graphs import is_backward_traced, is_slow
from gradcanary.hooks.parameter_hook import POST_ACCUMULATE, ParameterHook
from gradcanary.model.layers import Unheld, is_chosen, unheld_parameters
from gradcanary.model.parameters import is_lazy
from gradcanary.stats.kernels import strided_sample
from gradcanary.stats.weights import weight_of

if TYPE_CHECKING:
    from gradcanary.tracking.recorder import Recorder

FEW = 5
"""Steps of each optimizer before a search, and steps that each part of it takes."""

SEARCHES = (10, 100)
"""Steps of all optimizers, since they were found, after which a search begins. Both lie in the first 1,000 steps, whose
time does not count for the interval between samples."""

MOST_HOOKS, MOST_COPIES, ELEMENTS = 2000, 64, 1024
"""Parameters with a hook, copies of them, and elements of a copy, at most."""

LAST_PASSES = 64
"""Backward passes that are kept of a parameter: between two samples there may be thousands."""


@dataclass
class _Candidate:
    """A parameter that no optimizer holds; ``passes`` are the last backward passes in which it received a gradient."""

    unheld: Unheld
    hook: ParameterHook
    passes: deque[int]
    copy: Tensor | None = None


class NotOptimized:
    """``found`` are the parameters that no optimizer holds, in the order of their models."""

    def __init__(self, recorder: Recorder) -> None:
        self.found: list[Unheld] = []
        self._recorder = recorder
        self._searches_left: list[int] = []
        self._candidates: list[_Candidate] = []
        self._next: Callable[[Sequence[torch.optim.Optimizer], nn.Module | None], None] = self._search
        self._due: float = float("inf")
        self._passes: set[int] = set()
        self._arrivals: list[tuple[Tensor, Arrival | None]] = []

    def restart(self) -> None:
        """Begin again: other optimizers are followed, or other layers."""
        self.stop()
        taken = self._recorder.clock.steps_taken
        self._searches_left = [taken + steps for steps in SEARCHES]
        self._plan_search()

    def stop(self) -> None:
        """Remove all hooks."""
        for candidate in self._candidates:
            candidate.hook.remove()
        self._candidates, self._passes, self._arrivals, self._due = [], set(), [], float("inf")

    def is_due(self) -> bool:
        """Return True if :meth:`stepped` has something to do after this step."""
        return bool(self._candidates) or self._recorder.clock.steps_taken >= self._due

    def stepped(
        self, optimizers: Sequence[torch.optim.Optimizer], model: nn.Module | None, steps_of: Iterable[int]
    ) -> bool:
        """After a step, go on with the search; return True if it has found something.

        ``model`` is the one that was given to watch(), ``steps_of`` are the steps of each optimizer.
        """
        clock, before = self._recorder.clock, len(self.found)
        if self._next == self._select:
            self._passes.update(*(tracker.window.graph_tasks for tracker in self._recorder.trackers))
        if clock.steps_taken < self._due or not (clock.has_backward_end and backward.is_outermost()):
            return False
        if self._next == self._search and min(steps_of, default=0) < FEW:
            self._due = clock.steps_taken + FEW
            return False
        try:
            self._next(optimizers, model)
        except Exception:
            self.stop()  # a search that fails would fail at each step
            raise
        return len(self.found) > before

    def _plan(self, then: Callable[[Sequence[torch.optim.Optimizer], nn.Module | None], None], steps: int) -> None:
        self._next, self._due = then, self._recorder.clock.steps_taken + steps

    def _plan_search(self) -> None:
        self._next = self._search
        self._due = self._searches_left.pop(0) if self._searches_left else float("inf")

    def _search(self, optimizers: Sequence[torch.optim.Optimizer], model: nn.Module | None) -> None:
        """Hook the parameters that no optimizer holds. Beside shards others may be unsharded just now."""
        layers = self._recorder.layers
        if layers is None or layers.has_shards:
            self.stop()
            return
        known = {id(reference()) for each in self.found if (reference := each.reference)() is not None}
        unheld = unheld_parameters(optimizers, model)
        chosen = [each for each in unheld if id(each.reference()) not in known and self._is_examined(each)]
        for each in chosen[:MOST_HOOKS]:
            self._hook(each)
        if self._candidates:
            # Until each optimizer has had its step, however seldom it steps.
            self._plan(self._select, FEW * max(len(optimizers), 1))
        else:
            self._plan_search()

    def _is_examined(self, unheld: Unheld) -> bool:
        parameter = unheld.reference()
        if parameter is None or is_lazy(parameter.device) or is_slow(parameter.device):
            return False
        return is_chosen(unheld.name, self._recorder.settings)

    def _hook(self, unheld: Unheld) -> None:
        parameter, passes = unheld.reference(), deque[int](maxlen=LAST_PASSES)
        if parameter is None:
            return
        note = self._recorder.guard.wrap("noting a gradient", partial(_note, passes))
        hook = ParameterHook(unheld.reference, parameter, POST_ACCUMULATE, note)
        self._candidates.append(_Candidate(unheld, hook, passes))

    def _select(self, *_: object) -> None:
        """Copy elements of those that received a gradient in a pass together with a followed layer."""
        shared = self._passes
        candidates = [candidate for candidate in self._candidates if not shared.isdisjoint(candidate.passes)]
        self.stop()
        step = -(-len(candidates) // MOST_COPIES) or 1
        for candidate in candidates[::step]:
            candidate.copy = _elements(candidate.unheld.reference(), is_copy=True)
        self._candidates = candidates
        if candidates:
            self._plan(self._compare, FEW)
        else:
            self._plan_search()

    def _compare(self, *_: object) -> None:
        """Compare the copies with the present elements, and have the result copied to the host."""
        flags: dict[torch.device, list[Tensor]] = {}
        for candidate in self._candidates:
            now = _elements(candidate.unheld.reference(), is_copy=False)
            if candidate.copy is not None and now is not None and now.shape == candidate.copy.shape:
                flags.setdefault(now.device, []).append((now == candidate.copy).all())
        self._arrivals = [to_host(torch.stack(each)) for each in flags.values()]
        self._plan(self._decide, 1)

    def _decide(self, *_: object) -> None:
        """Report the parameters if all that were compared stand still."""
        if not all(arrival is None or arrival.query() for _, arrival in self._arrivals):
            self._plan(self._decide, 1)
            return
        flags = [flag for values, _ in self._arrivals for flag in values.tolist()]
        if flags and all(flags):
            self.found += [candidate.unheld for candidate in self._candidates]
        self.stop()
        self._plan_search()


def _note(passes: deque[int], _parameter: Tensor) -> None:
    if not is_backward_traced():
        passes.append(backward.graph_task_id())


def _elements(parameter: Tensor | None, *, is_copy: bool) -> Tensor | None:
    with torch.no_grad():
        weight = weight_of(parameter)
        part = None if weight is None else strided_sample(weight, ELEMENTS)
        return part.clone() if part is not None and is_copy else part
