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
    head = io.StringIO()
    csv.writer(head, lineterminator="\n").writerow(["step", "time", *(_title(layer.name) for layer in layers)])
    yield head.getvalue()
    for piece in pieces:
        plane = piece.columns.values.get(stat)
        if plane is None:
            continue
        whole = np.hstack([plane, np.full((len(plane), 1), np.nan, plane.dtype)])  # the last one: of layers not there
        place = {number: column for column, number in enumerate(piece.numbers.tolist())}
        columns = np.array([place.get(layer.layer_no, -1) for layer in layers], np.intp)
        for row in range(len(piece.columns.steps)):
            cells = ["" if cell == "nan" else cell for cell in map(str, whole[row, columns])]
            yield ",".join([str(piece.columns.steps[row]), moment(piece.columns.times[row]), *cells]) + "\n"


def _title(name: str) -> str:
    # A spreadsheet runs a cell that begins like a formula, and layer names come from strangers.
    return f"'{name}" if name.startswith(FORMULA) else name
