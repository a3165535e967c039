"""The pyramid of sparse series, in long form: one entry per series and node; pure.

Most metrics have a point at every step, some have ten, and there may be thousands of them: no plane of steps by series
would be small.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from gradcanary_server.nodes import Groups

FLOATS = ("time", "minimum", "mean", "maximum")
COUNTS = ("count", "nonfinite")


@dataclass(frozen=True)
class Entries:
    """n entries, by series and ``start``: ``series`` int64[n] counts in a list that the reader keeps.

    ``first`` and ``last`` int64[n] are the steps of the points, ``time`` float64[n] the smallest agent's time (NaN =
    unknown); minimum, mean and maximum float64[n] of the finite points, NaN where ``count`` int32[n] is 0;
    ``nonfinite`` int32[n].
    """

    series: NDArray[np.int64]
    start: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    time: NDArray[np.float64]
    minimum: NDArray[np.float64]
    mean: NDArray[np.float64]
    maximum: NDArray[np.float64]
    count: NDArray[np.int32]
    nonfinite: NDArray[np.int32]

    def chosen(self, rows: NDArray[np.intp] | NDArray[np.bool_] | slice) -> "Entries":
        """Return some of the entries."""
        return Entries(*(getattr(self, field.name)[rows] for field in fields(self)))


def points(
    series: NDArray[np.int64], steps: NDArray[np.int64], values: NDArray[np.float64], times: NDArray[np.float64]
) -> Entries:
    """Return points as entries of their own."""
    finite = np.isfinite(values)
    known = np.where(finite, values, np.nan)
    counts = finite.astype(np.int32)
    return joined([Entries(series, steps, steps, steps, times, known, known, known, counts, 1 - counts)])


def nothing() -> Entries:
    """Return no entries."""
    none, nowhere, never = np.empty(0, np.int64), np.empty(0), np.empty(0, np.int32)
    return Entries(none, none, none, none, nowhere, nowhere, nowhere, nowhere, never, never)


def joined(parts: Sequence[Entries]) -> Entries:
    """Return the entries of all parts in order; those of one series and start in the order of the parts."""
    if not parts:
        return nothing()
    columns = [np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Entries)]
    order = np.lexsort([columns[1], columns[0]])
    return Entries(*(column[order] for column in columns))


def widened(entries: Entries, width: int) -> Entries:
    """Return entries of ``width`` steps made of narrower ones; the mean as in :func:`nodes.widened`."""
    if not len(entries.series):
        return entries
    index = entries.start // width
    groups = Groups(np.stack([entries.series, index], axis=1))
    starts = groups.starts
    total = np.zeros(len(starts))
    with np.errstate(over="ignore", invalid="ignore"):  # a mean of metrics near 1e308 is inf
        terms = np.where(entries.count > 0, entries.mean * entries.count, 0.0)
        for rows, places in groups.ranks():
            total[places] += terms[rows]
    count = np.add.reduceat(entries.count, starts, dtype=np.int32)
    return Entries(
        entries.series[starts],
        index[starts] * width,
        np.minimum.reduceat(entries.first, starts),
        np.maximum.reduceat(entries.last, starts),
        np.fmin.reduceat(entries.time, starts),
        np.fmin.reduceat(entries.minimum, starts),
        np.divide(total, count, out=np.full(len(starts), np.nan), where=count > 0),
        np.fmax.reduceat(entries.maximum, starts),
        count,
        np.add.reduceat(entries.nonfinite, starts, dtype=np.int32),
    )
