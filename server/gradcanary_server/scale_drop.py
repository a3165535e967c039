"""All gradients fell together: is it the loss that was rescaled, a job that converged, or a job that died? Pure."""

from __future__ import annotations

import math

import numpy as np

from gradcanary_server.fold_state import LOSSES
from gradcanary_server.moment import Floats
from gradcanary_server.observations import Severity

CALM_DECADES = 1.0
"""A common fall under this is none."""

RECENT = 20
"""The median of so many last losses is the loss of now."""

EXPLAINED = 0.5
"""A loss that fell by this share of the gradients' decades explains them."""

TO_ZERO, LATELY = 2.0, 0.5
"""Decades that a loss fell before gradients of exactly zero are explained: in all, or in the last losses alone. A job
that reaches a margin came there; a loss that is multiplied by zero did not."""


ROUNDING = 1e-6
"""A loss so far under what it was is what rounding left of terms that cancel, be it negative."""


def vote(shared: float, common_decades: float) -> int:
    """Return +1 for a fall of all layers, -1 for none, 0 between."""
    if shared >= common_decades:
        return 1
    return -1 if shared < min(CALM_DECADES, common_decades) else 0


def severity(shared: float, losses: Floats, loss_level: float | None) -> Severity:
    """Return how bad a common fall is: information when the loss fell too, critical when it did not.

    ``losses`` are the last ones, ``loss_level`` their median when the baselines were set; a loss that is absent,
    negative or not finite explains nothing.
    """
    loss_now = _now(losses[-RECENT:], loss_level)
    if loss_now is None or loss_level is None:
        return "warning"
    loss_fall = math.log10(loss_level / loss_now)
    if loss_fall >= EXPLAINED * shared:
        return "information"
    if math.isinf(shared) and (loss_fall >= TO_ZERO or _fell_lately(losses, loss_now)):
        return "information"
    return "warning" if loss_fall > 0 else "critical"


def _now(losses: Floats, loss_level: float | None) -> float | None:
    least = ROUNDING * (loss_level or 0.0)
    return least if len(losses) and least and bool((np.abs(losses) <= least).all()) else level(losses)


def _fell_lately(losses: Floats, loss_now: float) -> bool:
    before = level(losses[:RECENT])
    return before is not None and math.log10(before / loss_now) >= LATELY


def level(losses: Floats) -> float | None:
    """Return the median loss, None where one is not a positive number or there is none."""
    if not len(losses) or not bool((np.isfinite(losses) & (losses > 0)).all()):
        return None
    return float(np.median(losses))


def remember(losses: Floats, more: Floats) -> Floats:
    """Return the losses with some more, as many as are kept.

    One of exactly zero is left out: whether a job came there by learning or by a mistake is told by the ones before it.
    """
    return np.concatenate([losses, more[more != 0]])[-LOSSES:]
