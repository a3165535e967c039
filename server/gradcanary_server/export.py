"""The measurements of a run as CSV, every sample, nothing bucketed."""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from gradcanary_server.arrays import moment
from gradcanary_server.database import Record
from gradcanary_server.log import Piece

FORMULA = ("=", "+", "-", "@")


def lines(pieces: Iterable[Piece], stat: str, layers: Sequence[Record]) -> Iterator[str]:
    """Yield CSV: step, time, then a column per layer; a cell is empty where there is no finite value."""
    yield _line(["step", "time", *(_title(layer.name) for layer in layers)])
    column_of = {layer.layer_no: column for column, layer in enumerate(layers)}
    for piece in pieces:
        plane = piece.columns.values.get(stat)
        if plane is None:
            continue
        pairs = [(column_of[n], i) for i, n in enumerate(piece.numbers.tolist()) if n in column_of]
        for row in range(len(piece.columns.steps)):
            cells = [""] * len(layers)
            for column, index in pairs:
                value = plane[row, index]
                cells[column] = "" if np.isnan(value) else str(value)
            yield _line([str(piece.columns.steps[row]), moment(piece.columns.times[row]), *cells])


def _line(cells: Sequence[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


def _title(name: str) -> str:
    # A spreadsheet runs a cell that begins like a formula, and layer names come from strangers.
    return f"'{name}" if name.startswith(FORMULA) else name
