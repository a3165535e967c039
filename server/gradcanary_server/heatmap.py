"""A window as the picture layer x step: rows in an order, cells as int16 milli-decades; pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gradcanary_server.nodes import COUNT, MAXIMUM, MEAN, MINIMUM, NONFINITE, Groups, Planes, means, sums

Value = Literal["min", "mean", "max"]
Order = Literal["model", "worst", "block"]

NO_DATA = -32768
EXACT_ZERO = -32767
ANY_NONFINITE = 32767
LIMIT = 32766
"""Milli-decades that a cell can hold; beyond are the three words above."""

_BLOCK = re.compile(r"^\D*\d+")

_NEEDED: dict[Value, tuple[str, ...]] = {
    "min": (MINIMUM, NONFINITE),
    "mean": (MEAN, COUNT, NONFINITE),
    "max": (MAXIMUM, NONFINITE),
}
_RANKS = {"firing": 0, "recovering": 1, "suspect": 2}


@dataclass(frozen=True)
class Row:
    """Layers that share a row of the picture: columns of the window."""

    columns: tuple[int, ...]
    name: str
    block: str


def block(name: str) -> str:
    """Return a layer's name up to and including its first number; without a number, its module."""
    found = _BLOCK.match(name)
    return found.group() if found else name.rpartition(".")[0] or name


def needed(value: Value, order: Order) -> set[str]:
    """Return the planes of a window that its picture is made of."""
    return {*_NEEDED[value], *((MINIMUM,) if order == "worst" else ())}


def ordered(order: Order, names: Sequence[str], states: Sequence[str | None], envelope: Planes) -> NDArray[np.intp]:
    """Return the columns of a window in the order of the rows.

    ``model``: as the run first named them; ``block``: blocks together, in the order of their first layer; ``worst``:
    non-finite first, then firing, recovering, suspect (``states``: the worst state of each), then by the last value.
    """
    if order == "model":
        return np.arange(len(names))
    if order == "block":
        firsts: dict[str, int] = {}
        return np.argsort([firsts.setdefault(block(name), len(firsts)) for name in names], kind="stable")
    ranks = [_RANKS.get(state or "", 3) for state in states]
    finite = (envelope[NONFINITE] > 0).sum(axis=0) == 0
    return np.lexsort([_last(envelope).astype(np.float64), np.array(ranks), finite])


def rows(columns: NDArray[np.intp], names: Sequence[str], most: int) -> list[Row]:
    """Return at most ``most`` rows; where there are more layers, neighbours share one."""
    share = max(1, -(-len(columns) // most))
    groups = [columns[begin : begin + share].tolist() for begin in range(0, len(columns), share)]
    return [Row(tuple(group), _title([names[column] for column in group]), block(names[group[0]])) for group in groups]


def cells(envelope: Planes, picture: Sequence[Row], value: Value) -> NDArray[np.int16]:
    """Return int16[rows, buckets]: round(1000 * log10(value)), or one of the three words."""
    if not picture:
        return np.empty((0, len(envelope[NONFINITE])), np.int16)
    order = np.array([column for row in picture for column in row.columns])
    groups = Groups(np.repeat(np.arange(len(picture)), [len(row.columns) for row in picture]))
    shared = sums({name: plane.T[order] for name, plane in envelope.items()}, groups)
    chosen = means(shared) if value == "mean" else shared[MINIMUM if value == "min" else MAXIMUM].astype(np.float64)
    with np.errstate(divide="ignore"):
        milli = np.clip(np.round(1000 * np.log10(chosen)), -LIMIT, LIMIT)
    milli = np.where(np.isnan(chosen), NO_DATA, np.where(chosen == 0, EXACT_ZERO, milli))
    return np.where(shared[NONFINITE] > 0, ANY_NONFINITE, milli).astype(np.int16)


def _last(envelope: Planes) -> NDArray[np.floating]:
    """Return each column's last minimum; a column without data sorts last."""
    filled = ~np.isnan(envelope[MINIMUM])
    at = len(filled) - 1 - np.argmax(filled[::-1], axis=0) if len(filled) else np.zeros(filled.shape[1], np.intp)
    values = envelope[MINIMUM][at, np.arange(filled.shape[1])] if len(filled) else np.full(filled.shape[1], np.nan)
    return np.where(filled.any(axis=0), values, np.inf)


def _title(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} … {names[-1]} ({len(names)} layers)"
