"""What is known of loss scaling: the scale that gradients carry, and whether a GradScaler skipped a step.

Everything is a device tensor or an identity; no value is read. GradScaler's fields are private to torch, so a missing
one means "not known", never an error.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gradcanary.model.parameters import live_objects

if TYPE_CHECKING:
    from gradcanary.tracking.window import Window


class Scalers:
    """The living GradScalers; the optimizers that begin in the same step share one pass over all objects."""

    def __init__(self) -> None:
        self._found: list[weakref.ref[Any]] = []
        self._step: int | None = None

    def at(self, step: int) -> list[weakref.ref[Any]]:
        """Return those that live in a step."""
        if step != self._step:
            self._found, self._step = [], step  # a search that raises is not made again by each optimizer
            self._found = [weakref.ref(scaler) for scaler in live_objects(_kind())]
        return self._found


class Scaling:
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

    def learn(self, optimizer: torch.optim.Optimizer) -> bool:
        """Settle which scaler steps this optimizer right now; False where none does.

        Until the first step the only living scaler is taken for ours. It may be one that an earlier training left
        behind; but only a scaler in use knows optimizers between its ``step()`` and its ``update()``.
        """
        used = [scaler for scaler in self._living() if getattr(scaler, "_per_optimizer_states", None)]
        # A wrapper may be what the scaler steps, and our optimizer inside it.
        ours = [scaler for scaler in used if id(optimizer) in scaler._per_optimizer_states] or used  # noqa: SLF001 -- as said above
        self._mine = weakref.ref(ours[0]) if len(ours) == 1 else None
        self._is_settled = True
        return self._mine is not None

    @property
    def is_unknown(self) -> bool:
        """Whether several scalers are in use, and none of them has stepped this optimizer so far."""
        return not self._is_settled and len(self._used()) > 1

    def was_updated(self, window: Window) -> bool:
        """Say whether it was updated since the window began."""
        return window.scaler_round is not None and self.round() is not window.scaler_round

    def step_begins(self, window: Window, optimizer: torch.optim.Optimizer) -> Tensor | None:
        """Put into the window what the moment before the step shows; return the scale that gradients still carry."""
        if self.learn(optimizer) != (window.loss_scale is not None):
            # It was a guess, or one of several. Until its update, which comes after the step, a scaler has the scale of
            # the backward passes.
            _set(window, self.scale(), self.round())
        scale, window.found_inf = self.at_step(optimizer)
        return scale

    def begin(self) -> tuple[Tensor | None, object]:
        """Return the scale and the round in which a window begins."""
        return self.scale(), self.round()

    def scale(self) -> Tensor | None:
        """Return a copy of the present scale: the one that the last backward pass was scaled with."""
        scale = getattr(self._current(), "_scale", None)
        return scale.detach().clone() if isinstance(scale, Tensor) else None

    def round(self) -> object:
        """Return an object that is another one after each ``GradScaler.update()``; None without a scaler."""
        return getattr(self._current(), "_per_optimizer_states", None)

    def at_step(self, optimizer: torch.optim.Optimizer) -> tuple[Tensor | None, Tensor | None]:
        """Return the scale that gradients still carry in the step of a fused optimizer, and its ``found_inf``."""
        if self._current() is None:
            return None, None
        scale, found = getattr(optimizer, "grad_scale", None), getattr(optimizer, "found_inf", None)
        # A copy: the scaler's update, which comes before anybody reads it, writes to the same tensor.
        copied = scale.detach().clone() if isinstance(scale, Tensor) else None
        return copied, found if isinstance(found, Tensor) else None

    def _current(self) -> Any:  # noqa: ANN401 -- three classes over the versions of torch
        if self._is_settled:
            return self._mine() if self._mine is not None else None
        used = self._used()
        return used[0] if len(used) == 1 else None

    def _used(self) -> list[Any]:
        return [scaler for scaler in self._living() if getattr(scaler, "_scale", None) is not None]

    def _living(self) -> list[Any]:
        return [scaler for reference in self.found or () if (scaler := reference()) is not None]


def _set(window: Window, scale: Tensor | None, scaler_round: object) -> None:
    window.loss_scale, window.scaler_round = scale, scaler_round
    if window.sample is not None:
        window.sample.set_scale(scale)


def _kind() -> type[Any]:
    """Return the class of all GradScalers: torch.amp's since 2.3, where torch.cuda.amp's is a subclass of it."""
    kind: type[Any] = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler
    return kind
