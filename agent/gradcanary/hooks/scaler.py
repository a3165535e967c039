"""The state of a GradScaler. Its fields are private to torch, so a missing one means "not known", never an error."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def scaler_class() -> type[Any]:
    """Return the class of all GradScalers: torch.amp's since 2.3, where torch.cuda.amp's is a subclass of it."""
    found: type[Any] = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler
    return found


def scale_of(scaler: object) -> Tensor | None:
    """Return the scaler's own scale tensor, None before its first use."""
    scale = getattr(scaler, "_scale", None)
    return scale if isinstance(scale, Tensor) else None


def is_used(scaler: object) -> bool:
    """Return True if the scaler has scaled a loss."""
    return getattr(scaler, "_scale", None) is not None


def states_of(scaler: object) -> Any:  # noqa: ANN401 -- a dict by id of the optimizer
    """Return the optimizers that the scaler has stepped since its last ``update()``; each update makes a new object."""
    return getattr(scaler, "_per_optimizer_states", None)
