"""What is known of loss scaling: the scale that gradients carry, and whether a GradScaler skipped a step.

Everything is a device tensor or an identity; no value is read.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradcanary.hooks.scaler import is_used, scale_of, scaler_class, states_of
from gradcanary.model.parameters import live_objects


class Scalers:
    """The living GradScalers; the optimizers that begin in the same step share one pass over all objects."""

    def __init__(self) -> None:
        self._found: list[weakref.ref[Any]] = []
        self._step: int | None = None

    def at(self, step: int) -> list[weakref.ref[Any]]:
        """Return those that live in a step."""
        if step != self._step:
            self._found, self._step = [], step  # a search that raises is not made again by each optimizer
            self._found = [weakref.ref(scaler) for scaler in live_objects(scaler_class())]
        return self._found


class ScaleMark(NamedTuple):
    """The loss scale at a moment, and a token that another one replaces with each ``GradScaler.update()``."""

    scale: Tensor | None
    token: object


class StepScale(NamedTuple):
    """What a fused optimizer takes from its scaler: the scale that gradients still carry, and ``found_inf``."""

    scale: Tensor | None = None
    found_inf: Tensor | None = None


class ScalerOfOptimizer:
    """The GradScaler of one optimizer, found once among the living objects."""

    def __init__(self) -> None:
        self.found: list[weakref.ref[Any]] | None = None
        """All that there were in the first window: where there was none nothing is scaled, and nobody asks again."""
        self._mine: weakref.ref[Any] | None = None
        self._is_settled = False

    def search(self, scalers: Scalers, step: int) -> None:
        """Look for scalers; the first call may cost a pass over all objects, later ones nothing, even if it raised."""
        if self.found is None:
            self.found = []
            self.found = scalers.at(step)

    def settle(self, optimizer: torch.optim.Optimizer) -> bool:
        """Settle which scaler steps this optimizer right now; return False if none does.

        Until the first step the only living scaler is taken for its own. An earlier training may have left it behind.
        But only a scaler in use knows optimizers between its ``step()`` and its ``update()``.
        """
        used = [scaler for scaler in self._living() if states_of(scaler)]
        # A wrapper may be what the scaler steps, and our optimizer inside it.
        ours = [scaler for scaler in used if id(optimizer) in states_of(scaler)] or used
        self._mine = weakref.ref(ours[0]) if len(ours) == 1 else None
        self._is_settled = True
        return self._mine is not None

    @property
    def is_unknown(self) -> bool:
        """Whether several scalers are in use, and none of them has stepped this optimizer so far."""
        return not self._is_settled and len(self._used()) > 1

    def was_updated(self, token: object) -> bool:
        """Return True if the scaler was updated since it had this token."""
        return token is not None and self.update_token() is not token

    def mark(self) -> ScaleMark:
        """Return a copy of the present scale, that of the last backward pass, and the present token.

        An update comes after the step: until then a scaler has the scale of the backward passes.
        """
        scale = scale_of(self._current())
        return ScaleMark(None if scale is None else scale.detach().clone(), self.update_token())

    def update_token(self) -> object:
        """Return an object that is another one after each ``GradScaler.update()``; None without a scaler."""
        return states_of(self._current())

    def at_step(self, optimizer: torch.optim.Optimizer) -> StepScale:
        """Return what the optimizer takes from its scaler in its step."""
        if self._current() is None:
            return StepScale()
        scale, found = getattr(optimizer, "grad_scale", None), getattr(optimizer, "found_inf", None)
        # A copy: the scaler's update writes to the same tensor before the sender reads it.
        copied = scale.detach().clone() if isinstance(scale, Tensor) else None
        return StepScale(copied, found if isinstance(found, Tensor) else None)

    def _current(self) -> Any:  # noqa: ANN401 -- three classes over the versions of torch
        if self._is_settled:
            return self._mine() if self._mine is not None else None
        used = self._used()
        return used[0] if len(used) == 1 else None

    def _used(self) -> list[Any]:
        return [scaler for scaler in self._living() if is_used(scaler)]

    def _living(self) -> list[Any]:
        return [scaler for reference in self.found or () if (scaler := reference()) is not None]
