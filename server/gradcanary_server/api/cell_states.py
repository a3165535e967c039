"""Why a layer has no value in a cell of a heatmap: no gradient, not trainable, or nothing was sampled.

Only samples hold states, aggregates do not. So the states of a few samples tell those of all cells: of the samples at
which values begin or end to be missing, at most MOST of them, however long the run is.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection

from gradcanary_server.rules.types import MEASURED, NO_GRADIENT, NOT_TRAINABLE
from gradcanary_server.tsdb.query import BucketedStats, SegmentPart
from gradcanary_server.tsdb.reader import Reader

Mask = NDArray[np.bool_]

MOST = 48
"""Samples whose states are read."""

STATES = (NO_GRADIENT, NOT_TRAINABLE, MEASURED)
"""The states that explain a missing value, the loudest first: of the layers of a row it is the loudest of any."""

UNKNOWN = len(STATES)


def explain(
    connection: Connection,
    measurements: Reader,
    result: BucketedStats,
    missing: Mask,
    rows: Sequence[NDArray[np.int32]],
) -> NDArray[np.uint8]:
    """Return for each cell [row, bucket] the index in STATES of why it is ``missing``, else UNKNOWN.

    ``rows`` are the layers of each row.
    """
    states = np.full(missing.shape, UNKNOWN, np.uint8)
    missing = missing & np.isfinite(result.times)
    if not missing.any():
        return states
    asked = _columns_to_read(missing, result.parts, result)
    columns, known = np.empty(0, np.intp), np.empty((len(rows), 0), np.uint8)
    while len(asked) and len(columns) + len(asked) <= MOST:
        found = [_states_at(connection, measurements, result, column, rows) for column in asked]
        columns, known = np.append(columns, asked), np.column_stack([known, *found])
        order = np.argsort(columns)
        columns, known = columns[order], known[:, order]
        asked = _between(missing, columns, known)
    return np.where(missing, _nearest(missing, columns, known), states)


def _columns_to_read(missing: Mask, parts: Iterable[SegmentPart], result: BucketedStats) -> NDArray[np.intp]:
    """Return the columns in which missing values of a row begin and end, and the first and last one of each part."""
    edges = np.zeros(missing.shape[1], np.bool_)
    changes = np.diff(missing, axis=1).any(axis=0)
    edges[:-1] |= changes
    edges[1:] |= changes
    for part in parts:
        edges[result.buckets.indexes(part.starts[[0, -1]])] = True
    columns = np.flatnonzero(edges & missing.any(axis=0))
    if len(columns) <= MOST:
        return columns
    return columns[np.unique(np.linspace(0, len(columns) - 1, MOST).astype(np.intp))]


def _between(missing: Mask, columns: NDArray[np.intp], known: NDArray[np.uint8]) -> NDArray[np.intp]:
    """Return the columns in the middle of two that were read, where a value is missing in both for another reason."""
    is_other = (known[:, 1:] != known[:, :-1]) & missing[:, columns[1:]] & missing[:, columns[:-1]]
    is_wanted = is_other.any(axis=0) & (np.diff(columns) > 1)
    middles: NDArray[np.intp] = ((columns[1:] + columns[:-1]) // 2)[is_wanted]
    return middles


def _states_at(
    connection: Connection,
    measurements: Reader,
    result: BucketedStats,
    column: int,
    rows: Sequence[NDArray[np.int32]],
) -> NDArray[np.uint8]:
    """Return for each row the index in STATES of its layers at the last sample of a column, else UNKNOWN."""
    size = 1 + max(int(row.max()) for row in rows)
    best = np.full(size, UNKNOWN, np.uint8)
    for part in result.parts:
        place = int(np.searchsorted(result.buckets.indexes(part.starts), column, side="right")) - 1
        if place >= 0 and result.buckets.indexes(part.starts[[place]])[0] == column:
            step = int(part.lasts[place])
            numbers, found = measurements.states(connection, result.run_id, part.segment, step)
            is_asked = numbers < size
            ranks = np.select([found == state for state in STATES], range(UNKNOWN), UNKNOWN).astype(np.uint8)
            best[numbers[is_asked]] = np.minimum(best[numbers[is_asked]], ranks[is_asked])
    return np.array([best[row].min() for row in rows], np.uint8)


def _nearest(missing: Mask, columns: NDArray[np.intp], known: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return for each cell the state of the nearest column that was read, before or after it, in which the value of its
    row is missing, too; without one on either side, of any such column.
    """
    places = np.arange(missing.shape[1])
    after = np.minimum(np.searchsorted(columns, places), len(columns) - 1)
    before = np.maximum(after - 1, 0)
    is_nearer = np.abs(places - columns[before]) < np.abs(columns[after] - places)
    first, second = np.where(is_nearer, before, after), np.where(is_nearer, after, before)
    at = missing[:, columns]
    some = known[np.arange(len(known)), np.argmax(at, axis=1)]
    other = np.where(at.any(axis=1), some, np.uint8(UNKNOWN))[:, None]
    found: NDArray[np.uint8] = np.where(at[:, first], known[:, first], np.where(at[:, second], known[:, second], other))
    return found
