"""Whether values are drawn on a log axis, and where what has no logarithm is on it; no I/O."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradcanary_dashboard.axes import Floats
from gradcanary_dashboard.curve import Curve

SPREAD = 10.0
"""Values that reach further apart, largest by smallest, are drawn on a log axis where nobody chose: of a loss that fell
through decades the end can be read, and a first step may take minutes."""

LOG, LOG_ABOVE_0, NOTHING_ABOVE_0 = (
    "log axis",
    "log axis, what is not above 0 on its floor",
    "linear: nothing is above 0",
)


def is_log(found: Sequence[Curve], wanted: str = "auto") -> bool:
    """Return whether curves are drawn on a log axis: as ``wanted`` (``log``, ``linear``), else where they span decades.

    Never where nothing is above 0.
    """
    known = _known(found)
    if wanted == "linear" or not (known > 0).any():
        return False
    return wanted == "log" or bool(known.min() > 0 and known.max() > SPREAD * known.min())


def words(found: Sequence[Curve], wanted: str) -> str:
    """Return what a reader has to know of the axis of values; nothing of a linear one that was not to be another."""
    if not is_log(found, wanted):
        return NOTHING_ABOVE_0 if wanted == "log" and len(_known(found)) else ""
    return LOG if _known(found).min() > 0 else LOG_ABOVE_0


def _known(found: Sequence[Curve]) -> Floats:
    known: Floats = np.concatenate([np.zeros(0), *(each for curve in found for each in (curve.low, curve.high))])
    finite: Floats = known[np.isfinite(known)]
    return finite
