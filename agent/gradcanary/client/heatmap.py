"""The heatmap of a run: a row for each parameter or group of parameters, a column for each bucket of steps."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gradcanary.client import frames
from gradcanary.client.buckets import Buckets, decode_buckets
from gradcanary.client.records import fill
from gradcanary.display.colours import NO_DATA, NO_GRADIENT, NONFINITE, NOT_TRAINABLE, ZERO
from gradcanary.export.tables import decode
from gradcanary.wording import count

if TYPE_CHECKING:
    import numpy.typing as npt
    import pandas as pd
    import polars as pl

STATES = {
    NO_DATA: "no_data",
    ZERO: "zero",
    NO_GRADIENT: "no_gradient",
    NOT_TRAINABLE: "not_trainable",
    NONFINITE: "nonfinite",
}
"""The codes of cells without a positive value; any other cell is "measured", and round(1000 * log10(value))."""

MEASURED = "measured"

NAMES = (MEASURED, *STATES.values())


@dataclass(frozen=True)
class HeatmapRow:
    """The numbers of the parameters of a row, its name, and its block."""

    layers: tuple[int, ...]
    name: str
    block: str


@dataclass(frozen=True, repr=False)
class Heatmap:
    """A stat of a run as int16 ``cells``, rows first; ``value`` is what a cell is of the samples in it: min, mean, max.

    ``enter`` is the absmax below which a parameter is low, ``phases`` the moments at which the stat was measured.
    """

    run: str
    stat: str
    value: str
    phases: tuple[str, ...]
    enter: float
    buckets: Buckets
    rows: tuple[HeatmapRow, ...]
    cells: array[int]

    def __repr__(self) -> str:
        return f"Heatmap({self.value} {self.stat} of {self.run}, {count(len(self.rows), 'row')}, {self.buckets.span})"

    @classmethod
    def decode(cls, answer: Mapping[str, Any]) -> Heatmap:
        """Return the heatmap of an answer of the API."""
        rows = tuple(fill(HeatmapRow, row) for row in answer["rows"])
        kind = answer["run"], answer["stat"], answer["value"], tuple(answer["phases"]), answer["threshold"]["enter"]
        return cls(*kind, decode_buckets(answer)[0], rows, decode(answer["cells"]))

    def cell(self, row: int, column: int) -> tuple[str, float]:
        """Return the state of a cell, and its value.

        The states are measured, zero, no_gradient, not_trainable, nonfinite and no_data; the value is 0 of zero, NaN
        of the others that are not measured.
        """
        code = self.cells[row * len(self.buckets.steps) + column]
        state = STATES.get(code, MEASURED)
        return state, 10 ** (code / 1000) if state == MEASURED else 0.0 if state == "zero" else float("nan")

    def to_numpy(self) -> npt.NDArray[Any]:
        """Return the values, float64 [row, column], to 0.12 %: 0 is exactly zero; :meth:`states` says why NaN."""
        numpy = frames.require("numpy")
        cells, states = numpy.array(self.cells).reshape(len(self.rows), len(self.buckets.steps)), self.states()
        values: npt.NDArray[Any] = 10 ** (cells / 1000)
        values[states != MEASURED] = numpy.nan
        values[states == "zero"] = 0
        return values

    def states(self) -> npt.NDArray[Any]:
        """Return the states, texts [row, column], as of :meth:`cell`."""
        names: npt.NDArray[Any] = frames.require("numpy").array(NAMES)
        states: npt.NDArray[Any] = names[self._state_numbers()]
        return states

    def to_pandas(self) -> pd.DataFrame:
        """Return a row for each cell: name, step, bucket_steps, time, value, state."""
        return frames.to_pandas(self._columns())

    def to_polars(self) -> pl.DataFrame:
        """Return the same rows as :meth:`to_pandas`."""
        return frames.to_polars(self._columns())

    def _state_numbers(self) -> npt.NDArray[Any]:
        """Return the place of the state of each cell in NAMES, [row, column]."""
        numpy = frames.require("numpy")
        cells = numpy.array(self.cells).reshape(len(self.rows), len(self.buckets.steps))
        numbers: npt.NDArray[Any] = numpy.zeros(cells.shape, numpy.intp)
        for number, code in enumerate(STATES, 1):
            numbers[cells == code] = number
        return numbers

    def _columns(self) -> dict[str, Any]:
        numpy = frames.require("numpy")
        height, buckets = len(self.rows), self.buckets
        rows = numpy.repeat(numpy.arange(height), len(buckets.steps))
        return {
            "name": frames.Labels(rows, [row.name for row in self.rows]),
            "step": numpy.tile(numpy.array(buckets.steps), height),
            "bucket_steps": numpy.tile(numpy.array(buckets.widths), height),
            "time": frames.to_times(numpy.tile(numpy.array(buckets.times), height)),
            "value": self.to_numpy().ravel(),
            "state": frames.Labels(self._state_numbers().ravel(), NAMES),
        }
