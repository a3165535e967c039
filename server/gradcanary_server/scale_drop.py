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


def vote(shared: float, common_decades: float) -> int:
    """Return +1 for a fall of all layers, -1 for none, 0 between."""
    if shared >= common_decades:
        return 1
    return -1 if shared < min(CALM_DECADES, common_decades) else 0


def severity(shared: float, losses: Floats, loss_level: float | None) -> Severity:
    """Return how bad a common fall is: information when the loss fell too, critical when it did not.

    ``losses`` are the last ones, ``loss_level`` their median when the baselines were set; a loss that is absent, not
    positive or not finite explains nothing.
    """
    loss_now = level(losses[-RECENT:])
    if loss_now is None or loss_level is None:
        return "warning"
    loss_fall = math.log10(loss_level / loss_now)
    if loss_fall >= EXPLAINED * shared:
        return "information"
    return "warning" if loss_fall > 0 else "critical"


def level(losses: Floats) -> float | None:
    """Return the median loss, None where one is not a positive number or there is none."""
    if not len(losses) or not bool((np.isfinite(losses) & (losses > 0)).all()):
        return None
    return float(np.median(losses))


def remember(losses: Floats, more: Floats) -> Floats:
    """Return the losses with some more, as many as are kept."""
    return np.concatenate([losses, more])[-LOSSES:]
