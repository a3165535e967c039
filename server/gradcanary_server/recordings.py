"""A run as a recording: what its agents sent, in order, as far as it is still there. Rules are tried on it elsewhere.

The first line is a JSON object about the run. Then come pairs of lines: whose the next batch is, and the batch, as the
wire has it, with the loss and the learning rates of its steps. What only the layer table knows, how gradients are
summed now, is said with the first batch of each launch and choice of layers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, select

from gradcanary import wire
from gradcanary_server import launches, layer_table
from gradcanary_server.archive import Archive, Stretch
from gradcanary_server.batches import Columns, MetricColumn
from gradcanary_server.database import Database, Record
from gradcanary_server.encoding import encode
from gradcanary_server.log import Piece
from gradcanary_server.requests import LIMITS
from gradcanary_server.samples import FOR_EVER, OF_STEPS, in_order
from gradcanary_server.schema import metric, session
from gradcanary_server.tiles import ABSENT

NO_TAGS = "{}"
_READ = re.compile(r"loss|lr\d+")
"""Names of the metrics that rules read."""


@dataclass(frozen=True)
class _Points:
    """The points of a metric of a launch by step, float64[m]."""

    name: str
    steps: NDArray[np.int64]
    values: NDArray[np.float64]

    def until(self, begin: int, end: int) -> MetricColumn:
        """Return those from a step to before another."""
        rows = slice(*np.searchsorted(self.steps, [begin, end]).tolist())
        return MetricColumn(self.name, NO_TAGS, self.steps[rows], self.values[rows])


def lines(database: Database, archive: Archive, run: Record, state: str) -> Iterator[bytes]:
    """Yield the lines of a run's recording, each part in a transaction of its own: whoever reads may take his time."""
    with database.read() as connection:
        known = launches.in_order(connection, run.run_id)
        described = layer_table.described(connection, run.run_id)
        stretches = archive.stretches(connection, run.run_id, None, None, overlapping=True)
        yield _line(_head(connection, run, state, known, described, stretches))
    for row in known:
        mine = [of for of in stretches if of.chain.launch_no == row.launch_no]
        with database.read() as connection:
            points = _metrics(connection, archive, run.run_id, row.launch_no)
        bounded = [replace(of, begin=of.first, end=of.last + 1) for of in mine]
        parts = [(of.begin, archive.samples(database, run.run_id, of)) for of in bounded]
        yield from _launch(in_order(parts), points, described)


def present(piece: Piece) -> Iterator[Piece]:
    """Yield a piece in parts that have one choice of layers each, and few enough points for a batch."""
    there = piece.columns.state != ABSENT
    borders = np.flatnonzero((there[1:] != there[:-1]).any(axis=1)) + 1
    most = max(1, LIMITS.max_points // (there.shape[1] * max(1, len(piece.columns.values))))
    for begin, end in zip([0, *borders.tolist()], [*borders.tolist(), len(there)], strict=True):
        layers = np.flatnonzero(there[begin])
        for low in range(begin, end, most):
            yield _part(piece, slice(low, min(low + most, end)), layers)


def _part(piece: Piece, rows: slice, layers: NDArray[np.intp]) -> Piece:
    columns = piece.columns
    cut = {name: getattr(columns, name)[rows] for name in OF_STEPS}
    planes = {stat: plane[rows][:, layers] for stat, plane in columns.values.items()}
    phases = {stat: seen[rows] for stat, seen in columns.phases.items()}
    kept = replace(
        columns, **cut, state=columns.state[rows][:, layers], values=planes, phases=phases, accumulators=(), metrics=()
    )
    return replace(piece, numbers=piece.numbers[layers], columns=kept)


def _launch(pieces: Iterator[Piece], points: Sequence[_Points], described: Sequence[Record]) -> Iterator[bytes]:
    """Yield the lines of a launch; points behind its last sample come with a batch that has none."""
    numbers, until, last = b"", 0, None
    for whole in pieces:
        for piece in present(whole):
            is_new = piece.numbers.tobytes() != numbers
            numbers, begin, until = piece.numbers.tobytes(), until, int(piece.columns.steps[-1]) + 1
            told = _accumulators(described, piece.numbers) if is_new else ()
            given = tuple(each.until(begin, until) for each in points)
            last = replace(piece, columns=replace(piece.columns, accumulators=told, metrics=given))
            yield from _pair(last)
    if last is not None:
        rest = tuple(each.until(until, FOR_EVER) for each in points)
        yield from _pair(replace(last, columns=replace(_without_steps(last.columns), metrics=rest)))


def _without_steps(columns: Columns) -> Columns:
    cut = {name: getattr(columns, name)[:0] for name in (*OF_STEPS, "state")}
    return replace(columns, **cut, values={}, phases={}, accumulators=())


def _pair(piece: Piece) -> Iterator[bytes]:
    yield _line({"launch": piece.launch_no, "layers": piece.numbers.tolist()})
    yield wire.dump(encode(piece.columns)) + b"\n"


def _line(content: dict[str, object]) -> bytes:
    return json.dumps(content).encode() + b"\n"


def _head(
    connection: Connection,
    run: Record,
    state: str,
    known: Sequence[Record],
    described: Sequence[Record],
    stretches: Sequence[Stretch],
) -> dict[str, object]:
    gone = [of.chain.raw_from for of in stretches if of.first < of.chain.raw_from]
    ended = _ended(connection, run.run_id)
    return {
        "run": run.name,
        "state": state,
        "facts": json.loads(run.facts),
        "gone_before": max(gone, default=None),
        "launches": [_about_launch(row, is_over=row.launch_no in ended) for row in known],
        "layers": [_about_layer(row) for row in described],
    }


def _ended(connection: Connection, run_id: int) -> set[int]:
    """Return the launches of which every session said that it ended."""
    query = select(session.c.launch_no, session.c.ended).where(session.c.run_id == run_id, session.c.rank >= 0)
    said: dict[int, set[str | None]] = {}
    for row in connection.execute(query):
        said.setdefault(row.launch_no, set()).add(row.ended)
    return {launch_no for launch_no, states in said.items() if states <= {"finished", "crashed"}}


def _about_launch(row: Record, *, is_over: bool) -> dict[str, object]:
    return {
        "launch": row.launch_no,
        "first_step": row.first_step,
        "late": row.late,
        "absmax_below": row.absmax_below,
        "norm_below": row.norm_below,
        "ended": is_over,
    }


def _about_layer(row: Record) -> dict[str, object]:
    return {
        "number": row.layer_no,
        "name": row.name,
        "shape": json.loads(row.shape),
        "param_dtype": row.param_dtype,
        "module_class": row.module_class,
        "group": row.group_no,
    }


def _metrics(connection: Connection, archive: Archive, run_id: int, launch_no: int) -> list[_Points]:
    """Return the points of a launch that rules read; a value that is not finite is NaN."""
    named = connection.execute(select(metric.c.name).where(metric.c.run_id == run_id, metric.c.tags == NO_TAGS))
    names = sorted(row.name for row in named if _READ.fullmatch(row.name))
    numbered = {(name, NO_TAGS): number for number, name in enumerate(names)}
    found = []
    for of in archive.of_metrics(connection, run_id, None, None, overlapping=True):
        if of.chain.launch_no == launch_no:
            raw = replace(of, begin=max(of.begin, of.chain.raw_from))
            found.append(archive.entries(connection, run_id, raw, numbered, 0))
    return [
        _Points(name, each.start[mine], np.where(each.nonfinite[mine] > 0, np.nan, each.mean[mine]))
        for each in found
        for number, name in enumerate(names)
        if (mine := each.series == number).any()
    ]


def _accumulators(described: Sequence[Record], numbers: NDArray[np.int32]) -> tuple[wire.Accumulator, ...]:
    """Return how the gradients of these layers are summed, as far as it was said."""
    known = {row.layer_no: (row.declared, row.stored, row.effective) for row in described}
    kinds: dict[tuple[str | None, ...], list[int]] = {}
    for place, number in enumerate(numbers.tolist()):
        kinds.setdefault(known.get(number, (None, None, None)), []).append(place)
    return tuple(wire.Accumulator(tuple(places), *kind) for kind, places in kinds.items() if any(kind))
