"""Samples and points of metrics as tables of bounded size: a row per step, a column per layer and stat or per metric.

A cell without a value is not valid. A NaN that is valid was measured or logged: an export keeps both apart. Pure.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradcanary import wire
from gradcanary_server.tsdb.log import LoggedBatch
from gradcanary_server.tsdb.rollup import SparseAggregates

CELLS = 2**19
"""Cells of a table, about: 2 MB of float32. The memory of an export depends on its columns, not on its rows."""

MIN_ROWS, MAX_ROWS = 64, 8_192
"""Rows of a full table. Many columns of a few rows each cost a reader more than their values."""

EACH_STEP = ("absmax", "norm", "nonfinite")
"""Stats of each sample: where one is missing, the state of the layer says why. Others are measured in turns, and tables
of them have no row for a step without any value."""

_NONFINITE = wire.STATES.index("nonfinite")
_OF_ELEMENTS = ("absmax", "norm")
"""Stats without a value where no element of the gradient is finite; the state of the layer says so."""


@dataclass(frozen=True)
class Table:
    """Some rows of an export.

    ``steps`` int64[n]; ``times`` float64[n] in unix seconds, NaN = unknown; ``launches`` int32[n] are the numbers of
    the launches, 0 for metrics; ``values`` [n, C], float32 of stats and float64 of metrics; ``is_valid`` bool[n, C].
    """

    steps: NDArray[np.int64]
    times: NDArray[np.float64]
    launches: NDArray[np.int32]
    values: NDArray[np.floating]
    is_valid: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.steps)

    def rows(self, rows: slice | NDArray[np.intp]) -> "Table":
        return Table(*(column[rows] for column in vars(self).values()))

    @classmethod
    def concat(cls, tables: Sequence["Table"]) -> "Table":
        columns = zip(*(vars(table).values() for table in tables), strict=True)
        return tables[0] if len(tables) == 1 else cls(*map(np.concatenate, columns))


def sample_tables(batches: Iterable[LoggedBatch], stats: Sequence[str], layers: NDArray[np.int32]) -> Iterator[Table]:
    """Yield some stats of some layers, int32[L]: column i * S + j is stat j of layer i."""
    has_each_step = not set(stats).isdisjoint(EACH_STEP)
    for batch in batches:
        table = _sample_table(batch, stats, layers)
        yield table if has_each_step else table.rows(np.flatnonzero(table.is_valid.any(axis=1)))


def point_tables(parts: Iterable[SparseAggregates], series: int) -> Iterator[Table]:
    """Yield the points of metrics, numbered from 0 to ``series`` - 1; of two points of a step the later one counts."""
    most = _rows(series)
    for part in parts:
        steps, rows = np.unique(part.start, return_inverse=True)
        for begin in range(0, len(steps), most):
            is_inside = (rows >= begin) & (rows < begin + most)
            inside, numbers = rows[is_inside] - begin, part.series[is_inside]
            shape = (len(steps[begin : begin + most]), series)
            values, is_valid, times = np.full(shape, np.nan), np.zeros(shape, np.bool_), np.full(shape[0], np.nan)
            values[inside, numbers], is_valid[inside, numbers] = part.mean[is_inside], True
            np.fmin.at(times, inside, part.time[is_inside])
            launches = np.zeros(shape[0], np.int32)
            yield Table(steps[begin : begin + most], times, launches, values, is_valid)


def full_tables(tables: Iterable[Table], columns: int) -> Iterator[Table]:
    """Yield the same rows in tables of about :data:`CELLS` cells: a log may have a batch for each step."""
    most = _rows(columns)
    waiting: list[Table] = []
    rows = 0
    for table in tables:
        waiting.append(table)
        rows += len(table)
        while rows >= most:
            whole = Table.concat(waiting)
            yield whole.rows(slice(most))
            waiting, rows = [whole.rows(slice(most, None))], rows - most
    if rows:
        yield Table.concat(waiting)


def _rows(columns: int) -> int:
    return min(MAX_ROWS, max(MIN_ROWS, CELLS // max(1, columns)))


def _sample_table(batch: LoggedBatch, stats: Sequence[str], layers: NDArray[np.int32]) -> Table:
    count = len(batch.columns.steps)
    shape = (count, len(layers), len(stats))
    values, is_valid = np.full(shape, np.nan, np.float32), np.zeros(shape, np.bool_)
    column_of = {number: column for column, number in enumerate(batch.numbers.tolist())}
    stored = [column_of.get(layer, -1) for layer in layers.tolist()]
    targets = np.flatnonzero(np.array(stored, np.intp) >= 0)
    sources = np.array(stored, np.intp)[targets]
    state = batch.columns.state[:, sources]
    for place, stat in enumerate(stats):
        plane = batch.columns.values.get(stat)
        part = np.full(state.shape, np.nan, np.float32) if plane is None else plane[:, sources]
        values[:, targets, place] = part
        is_valid[:, targets, place] = ~np.isnan(part) | ((state == _NONFINITE) & (stat in _OF_ELEMENTS))
    launches = np.full(count, batch.launch_no, np.int32)
    columns = batch.columns
    return Table(columns.steps, columns.times, launches, values.reshape(count, -1), is_valid.reshape(count, -1))
