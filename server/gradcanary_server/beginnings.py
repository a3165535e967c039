"""How large the first gradient of each layer was: what is so from the first step on is no rise. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradcanary_server.per_layer import PerLayer

Mask = NDArray[np.bool_]


@dataclass
class Beginnings(PerLayer):
    """``level`` float32[N] is log10 of the first absmax that was not zero, NaN = none yet."""

    level: NDArray[np.float32]

    @classmethod
    def none(cls, layers: int) -> Beginnings:
        """Return the beginnings of layers that were never seen."""
        return cls(np.full(layers, np.nan, np.float32))


def observe(began: Beginnings, columns: NDArray[np.int64], levels: NDArray[np.float64]) -> None:
    """Take the first number of each layer from n steps, float64[n, L]: log10, -inf = exact zero, NaN = nothing seen."""
    began.level[columns] = first(began.level[columns], levels)


def first(known: NDArray[np.float32], levels: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return what is known of L layers after n steps."""
    unknown = np.isnan(known)
    if not unknown.any():
        return known
    rows = np.argmax(np.isfinite(levels), axis=0)
    found = np.take_along_axis(levels, rows[None], axis=0)[0]
    return np.where(unknown & np.isfinite(found), found, known).astype(np.float32)
