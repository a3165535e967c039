"""The layers that differ between runs, from one heatmap of each run. Pure.

The common steps are cut into stretches. The level of a layer in a stretch is the median of the means of its buckets.
The difference of a layer is that of the stretch where it is largest: earlier steps do not hide a late collapse, and
one step does not make a level.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gradcanary_dashboard.analysis.arrays import NO_DATA, NONFINITE, ZERO, decode
from gradcanary_dashboard.analysis.buckets import Buckets, widths
from gradcanary_dashboard.analysis.launches import Steps

Floats = npt.NDArray[np.float64]

STRETCHES = 12
FEWEST_BUCKETS = 5
"""Least buckets of a stretch: in fewer, one step would be the median."""

COLUMNS = STRETCHES * 10
ROWS = 20_000
"""Rows of the requested heatmap: one for each layer that a run can have."""


@dataclass(frozen=True)
class Difference:
    """The difference of a layer in the stretch ``first`` to ``last``, in steps of the axis.

    ``values`` are the levels of each run there: NaN = not measured, inf = not finite. ``gap`` is the distance of run
    number ``of`` from the first run: decades, or the plain difference of a stat with a linear axis; infinite if one
    of them is exactly 0 or not finite.
    """

    name: str
    values: tuple[float, ...]
    gap: float
    of: int
    first: int
    last: int


@dataclass(frozen=True)
class Differences:
    """Layers that all runs have, the largest difference first.

    ``unmeasured`` of them have no stretch with a value in all runs; ``partly`` are layers that only some runs have,
    with these runs.
    """

    rows: Sequence[Difference] = ()
    unmeasured: int = 0
    partly: Mapping[str, tuple[int, ...]] | None = None
    stretches: int = 0


def differences(
    answers: Sequence[Mapping[str, Any]], origins: Sequence[int], common: Steps, *, is_log: bool
) -> Differences:
    """Return the differences of runs, given a heatmap of means of each over the common steps.

    ``origins`` are the steps of each run at 0 of the axis.
    """
    places = [{row["name"]: place for place, row in enumerate(answer["rows"])} for answer in answers]
    names = [name for name in places[0] if all(name in known for known in places[1:])]
    count = _stretches(answers, common)
    levels = np.full((len(answers), len(names), count), np.nan)
    for run, (answer, known, origin) in enumerate(zip(answers, places, origins, strict=True)):
        rows = np.array([known[name] for name in names], np.intp)
        levels[run] = _levels(answer, rows, origin, common, count)
    gaps = _gaps(levels, is_log=is_log)
    return Differences(
        rows=_ranked(names, levels, gaps, common),
        unmeasured=int(np.isnan(gaps).all(axis=(0, 2)).sum()),
        partly=_partly(places),
        stretches=count,
    )


def stretch(place: int, count: int, common: Steps) -> Steps:
    """Return the first and the last step of a stretch."""
    first, last = common
    width = last - first + 1
    return first + -(-place * width // count), first + -(-(place + 1) * width // count) - 1


def _stretches(answers: Sequence[Mapping[str, Any]], common: Steps) -> int:
    bucket = max(width for answer in answers for width in widths(answer))
    return max(1, min(STRETCHES, (common[1] - common[0] + 1) // (FEWEST_BUCKETS * bucket)))


def _levels(
    answer: Mapping[str, Any], rows: npt.NDArray[np.intp], origin: int, common: Steps, count: int
) -> npt.NDArray[np.float64]:
    """Return log10 of the level [layer, stretch]: NaN = none, -inf = exactly 0, inf = not finite."""
    cells = decode(answer["cells"])[rows].astype(np.float64) / 1000
    raw = decode(answer["cells"])[rows]
    cells[raw == NO_DATA] = np.nan
    cells[raw == ZERO] = -np.inf
    cells[raw == NONFINITE] = np.inf
    first, last = common
    middle = Buckets.of(answer).middle - origin
    where = np.clip(np.floor((middle - first) * count / (last - first + 1)), 0, count - 1).astype(np.intp)
    levels = np.full((len(rows), count), np.nan)
    for place in range(count):
        levels[:, place] = _medians(cells[:, where == place])
    return levels


def _medians(values: Floats) -> Floats:
    """Return the lower median of each row without NaN: two infinities have no middle."""
    if not values.shape[1]:
        return np.full(len(values), np.nan)
    ranked = np.sort(values, axis=1)  # NaN last
    known = values.shape[1] - np.isnan(values).sum(axis=1)
    found: Floats = ranked[np.arange(len(values)), np.maximum(known - 1, 0) // 2]
    return found


def _gaps(levels: Floats, *, is_log: bool) -> Floats:
    """Return the distance of each other run from the first, [run - 1, layer, stretch]; NaN without a level."""
    values = levels if is_log else 10**levels
    with np.errstate(invalid="ignore"):
        gaps: Floats = np.where(values[1:] == values[:1], 0.0, values[1:] - values[:1])
    return gaps


def _ranked(names: Sequence[str], levels: Floats, gaps: Floats, common: Steps) -> list[Difference]:
    if not names:
        return []
    runs, _, count = gaps.shape
    size = np.where(np.isnan(gaps), -1.0, np.abs(gaps)).transpose(1, 0, 2).reshape(len(names), runs * count)
    widest = size.argmax(axis=1)
    most = size[np.arange(len(names)), widest]
    order = np.argsort(-most, kind="stable")
    return [
        _difference(names[layer], levels[:, layer], gaps[:, layer], divmod(int(widest[layer]), count), common)
        for layer in map(int, order)
        if most[layer] >= 0
    ]


def _difference(name: str, levels: Floats, gaps: Floats, where: tuple[int, int], common: Steps) -> Difference:
    run, place = where
    first, last = stretch(place, gaps.shape[1], common)
    values = tuple((10 ** levels[:, place]).tolist())
    return Difference(name, values, float(gaps[run, place]), run + 1, first, last)


def _partly(places: Sequence[Mapping[str, int]]) -> dict[str, tuple[int, ...]]:
    every = dict.fromkeys(name for known in places for name in known)
    having = {name: tuple(run for run, known in enumerate(places) if name in known) for name in every}
    return {name: runs for name, runs in having.items() if len(runs) < len(places)}
