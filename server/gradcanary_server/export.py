"""The measurements of a run as CSV, every sample, nothing bucketed."""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import numpy as np

from gradcanary_server.database import Record
from gradcanary_server.entries import Entries
from gradcanary_server.log import Piece
from gradcanary_server.timestamps import timestamp

FORMULA = ("=", "+", "-", "@")


def lines(pieces: Iterable[Piece], stats: Sequence[str], layers: Sequence[Record]) -> Iterator[str]:
    """Yield CSV: step, time, then a column per layer; a cell is empty where there is no finite value.

    Of several stats each layer has a column for each, with the stat before its name.
    """
    wanted = [(stat, layer) for layer in layers for stat in stats]
    yield _row(["step", "time", *(_title(*each, is_alone=len(stats) == 1) for each in wanted)])
    for piece in pieces:
        planes = [_plane(piece, stat, layers) for stat in stats]
        if all(plane is None for plane in planes):
            continue
        blank = np.full((len(piece.columns.steps), len(layers)), np.nan, np.float32)
        whole = np.stack([blank if plane is None else plane for plane in planes], axis=2).reshape(len(blank), -1)
        for row, step in enumerate(piece.columns.steps):
            cells = ["" if cell == "nan" else cell for cell in map(str, whole[row])]
            yield ",".join([str(step), timestamp(piece.columns.times[row]), *cells]) + "\n"


def of_metrics(parts: Iterable[Entries], series: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield CSV of points in the order of steps: step, time, then a column per name and tags (JSON).

    A cell is empty where nothing was logged, ``nan`` where that was not finite. A step without any has no row.
    """
    yield _row(["step", "time", *(_written(_named(*each)) for each in series)])
    for part in parts:
        points = zip(part.start.tolist(), part.time.tolist(), part.series.tolist(), part.mean.tolist(), strict=True)
        for step, row in groupby(sorted(points), key=lambda point: point[0]):
            cells, when = [""] * len(series), ""
            for _, time, number, value in row:
                cells[number] = repr(value)
                when = when or (timestamp(time) if np.isfinite(time) else "")
            yield ",".join([str(step), when, *cells]) + "\n"


def _plane(piece: Piece, stat: str, layers: Sequence[Record]) -> np.ndarray | None:
    """Return a stat of these layers [step, layer], NaN of those that the piece does not hold."""
    plane = piece.columns.values.get(stat)
    if plane is None:
        return None
    whole = np.hstack([plane, np.full((len(plane), 1), np.nan, plane.dtype)])  # the last one: of layers not there
    place = {number: column for column, number in enumerate(piece.numbers.tolist())}
    found: np.ndarray = whole[:, np.array([place.get(layer.layer_no, -1) for layer in layers], np.intp)]
    return found


def _title(stat: str, layer: Record, *, is_alone: bool) -> str:
    return _written(layer.name if is_alone else f"{stat} {layer.name}")


def _named(name: str, tags: str) -> str:
    """Return ``clip_score{category=bottles, provider=a}``."""
    told = ", ".join(f"{tag}={value}" for tag, value in sorted(json.loads(tags).items()))
    return f"{name}{{{told}}}" if told else name


def _written(name: str) -> str:
    # A spreadsheet runs a cell that begins like a formula, and names come from strangers.
    return f"'{name}" if name.startswith(FORMULA) else name


def _row(cells: Sequence[str]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue()
