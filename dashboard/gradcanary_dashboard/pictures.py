"""Heatmaps without the columns that a page has already: only the last ones are new, and all are most of a refresh.

What a page has is told by the digest of what it was sent last. Its cells are compared, whatever they were made from.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gradcanary_dashboard.columns import encode, read

KEPT = 32
"""Pictures that are remembered, of half a megabyte at most: of so many tabs that show something else each."""

WORTH = 0.5
"""From this part of its columns on a picture is sent as what is new."""


class Pictures:
    """The cells that were sent last, by the digest of their figure; safe to share between threads."""

    def __init__(self) -> None:
        self._cells: OrderedDict[str, npt.NDArray[Any]] = OrderedDict()
        self._lock = threading.Lock()

    def shortened(self, figure: Mapping[str, Any], before: str | None, now: str) -> Mapping[str, Any] | None:
        """Return a heatmap for who has the one of the digest ``before``, None where it has to be sent as a whole.

        Its ``z`` says how many columns are ``kept``, and holds the others. It is remembered as ``now``.
        """
        trace = figure["data"][0]
        cells = read(trace["z"])
        known = self._swap(before, now, cells)
        if known is None or known.shape[0] != cells.shape[0]:
            return None
        most = min(known.shape[1], cells.shape[1])
        same = (known[:, :most] == cells[:, :most]).all(axis=0)
        kept = most if same.all() else int(np.argmin(same))
        if kept < WORTH * cells.shape[1]:
            return None
        shape = ", ".join(map(str, cells.shape))
        z = {**encode(cells[:, kept:]), "shape": shape, "kept": kept}
        return {**figure, "data": [{**trace, "z": z}, *figure["data"][1:]]}

    def _swap(self, before: str | None, now: str, cells: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
        with self._lock:
            known = None if before is None else self._cells.get(before)
            self._cells[now] = cells
            self._cells.move_to_end(now)
            while len(self._cells) > KEPT:
                self._cells.popitem(last=False)
            return known


def is_heatmap(value: object) -> bool:
    """Tell whether a slot holds a heatmap with cells."""
    if not isinstance(value, Mapping) or not value.get("data"):
        return False
    trace = value["data"][0]
    return bool(trace.get("type") == "heatmap" and isinstance(trace.get("z"), Mapping))
