"""The GradScaler of an optimizer: the scale of its gradients, and the steps that it skipped.

Everything is a device tensor or an identity: no value is read. The fields of a GradScaler are private to torch, so a
missing one means "unknown" and never an error.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradcanary.model.parameters import live_objects


class Scalers:
    """The living GradScalers. Optimizers whose first windows have the same step share one search."""

    def __init__(self) -> None:
        self._found: list[weakref.ref[Any]] = []
        self._step: int | None = None

    def at(self, step: int) -> list[weakref.ref[Any]]:
        """Return the GradScalers that live in a step."""
        if step != self._step:
            self._found, self._step = [], step  # first: a search that raises is not repeated by each optimizer
            self._found = [weakref.ref(scaler) for scaler in live_objects(_scaler_class())]
        return self._found


class ScaleMark(NamedTuple):
    """The loss scale at a moment, and a token that each ``GradScaler.update()`` replaces."""

    scale: Tensor | None
    token: object


class StepScale(NamedTuple):
    """Inputs of a fused optimizer from its scaler: the scale that gradients still carry, and ``found_inf``."""

    scale: Tensor | None = None
    found_inf: Tensor | None = None


class ScalerOfOptimizer:
    """The GradScaler of one optimizer, found once among the living objects."""

    def __init__(self) -> None:
        self.found: list[weakref.ref[Any]] | None = None
        """All GradScalers of the first window. If there are none, no gradient is scaled, and the search is over."""
        self._own: weakref.ref[Any] | None = None
        self._is_settled = False

    def search(self, scalers: Scalers, step: int) -> None:
        """Look for scalers, once, also if the search raises."""
        if self.found is None:
            self.found = []
            self.found = scalers.at(step)

    def settle(self, optimizer: torch.optim.Optimizer) -> bool:
        """Settle which scaler makes the present step of the optimizer; return False if none does.

        Until the first step the only living scaler is taken, though an earlier training may have left it. A scaler
        has states of optimizers only between its ``step()`` and its ``update()``.
        """
        used = [scaler for scaler in self._living() if _states_of(scaler)]
        # The scaler may step a wrapper, with this optimizer inside.
        own = [scaler for scaler in used if id(optimizer) in _states_of(scaler)] or used
        self._own = weakref.ref(own[0]) if len(own) == 1 else None
        self._is_settled = True
        return self._own is not None

    @property
    def is_unknown(self) -> bool:
        """True if several scalers are in use, and none of them has stepped this optimizer so far."""
        return not self._is_settled and len(self._used()) > 1

    def was_updated(self, token: object) -> bool:
        """Return True if the scaler was updated since it had this token."""
        return token is not None and self.update_token() is not token

    def mark(self) -> ScaleMark:
        """Return a copy of the present scale, and the present token.

        It is the scale of the last backward pass: the update comes after the step.
        """
        scale = getattr(self._current(), "_scale", None)
        return ScaleMark(scale.detach().clone() if isinstance(scale, Tensor) else None, self.update_token())

    def update_token(self) -> object:
        """Return an object that each ``GradScaler.update()`` replaces; None without a scaler."""
        return _states_of(self._current())

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
            return self._own() if self._own is not None else None
        used = self._used()
        return used[0] if len(used) == 1 else None

    def _used(self) -> list[Any]:
        """Return the living scalers that have scaled a loss."""
        return [scaler for scaler in self._living() if getattr(scaler, "_scale", None) is not None]

    def _living(self) -> list[Any]:
        return [scaler for reference in self.found or () if (scaler := reference()) is not None]


def _scaler_class() -> type[Any]:
    """Return the class of all GradScalers: torch.amp's since 2.3, where torch.cuda.amp's is a subclass of it."""
    found: type[Any] = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler
    return found


def _states_of(scaler: object) -> Any:  # noqa: ANN401 -- a dict by id of the optimizer
    """Return the optimizers that the scaler has stepped since its last ``update()``, which makes a new object."""
    return getattr(scaler, "_per_optimizer_states", None)
