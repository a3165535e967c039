"""A run to try rules on: the steps of its launches and their times, from a recording or a CSV file. Pure."""

import csv
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradcanary import wire
from gradcanary_server import validation
from gradcanary_server.errors import TraceError
from gradcanary_server.ingest import evaluation
from gradcanary_server.rules.types import MEASURED, NONFINITE, PARTIAL, ZERO, Launch, LayerFacts, Samples
from gradcanary_server.storage import runs
from gradcanary_server.tsdb import batch
from gradcanary_server.tsdb.batch import EVERY

PHASE = wire.PHASES.index("accumulated")
UNSEEN = -1.0
"""An empty cell."""

FORMULA = ("=", "+", "-", "@")
"""First characters of a cell that a spreadsheet runs as a formula: the CSV export puts a quote before them."""

CHUNK_ROWS = 256
"""Rows of a CSV file that are evaluated together."""

MAX_LAYERS = validation.LIMITS.max_layers


@dataclass(frozen=True)
class ReplayChunk:
    """Some steps of a launch; ``times`` float64[n] are unix seconds."""

    launch: Launch
    samples: Samples
    times: NDArray[np.float64]


@dataclass(frozen=True)
class ReplaySource:
    """A run to try rules on: its layers by number; ``state`` as the collector has it, "" where it is not known;
    ``raw_start_step`` is the step before which single samples are gone; ``ended`` are the launches that ended.
    """

    name: str
    layers: dict[int, str]
    state: str
    raw_start_step: int | None
    ended: frozenset[int]
    chunks: Iterator[ReplayChunk]


def source_of_recording(lines: Iterable[bytes]) -> ReplaySource:
    """Return the run of a recording; its lines are read with its chunks."""
    remaining = iter(lines)
    head = json.loads(next(remaining))
    layers = {row["number"]: LayerFacts(**{**row, "shape": tuple(row["shape"])}) for row in head["layers"]}
    return ReplaySource(
        name=head["run"],
        layers={number: facts.name for number, facts in layers.items()},
        state=head["state"],
        raw_start_step=head["raw_start_step"],
        ended=frozenset(head["ended"]),
        chunks=_recorded_chunks(head, layers, remaining),
    )


def _recorded_chunks(
    head: dict[str, Any], layers: dict[int, LayerFacts], lines: Iterator[bytes]
) -> Iterator[ReplayChunk]:
    facts = runs.parse_facts(json.dumps(head["facts"]))
    rows = {row["number"]: {**_launch_row(row), "has_older": index > 0} for index, row in enumerate(head["launches"])}
    launches: dict[bytes, Launch] = {}
    for line in lines:
        if line not in launches:
            key = json.loads(line)
            present = tuple(layers[number] for number in key["layers"])
            launches[line] = Launch(**rows[key["launch"]], layers=present, facts=facts)
        launch = launches[line]
        message = batch.parse_batch(next(lines))
        batch.check_batch(message)
        columns = batch.decode_batch(message)
        groups = 1 + max((layer.group for layer in launch.layers if layer.group is not None), default=-1)
        yield ReplayChunk(launch, evaluation.to_samples(columns, groups), columns.times)


def _launch_row(row: dict[str, Any]) -> dict[str, Any]:
    metrics = tuple(wire.MetricBound(**bound) for bound in row["metrics"])
    return {**row, "optimizers": tuple(row["optimizers"]), "metrics": metrics}


def source_of_csv(name: str, lines: Iterable[str]) -> ReplaySource:
    """Return the run of a CSV file like ``export.csv``: step, time, then the absmax of a layer in each column.

    An empty cell is no sample; 0 is exactly zero, nan and inf are not finite. Raises TraceError that names the line.
    """
    rows = csv.reader(lines)
    header = next(rows, [])
    if header[:2] != ["step", "time"] or not 3 <= len(header) <= MAX_LAYERS + 2:
        raise TraceError(f"{name}, line 1: the first line is step,time, and then the names of the parameters.")
    layers = [title[1:] if title[:1] == "'" and title[1:].startswith(FORMULA) else title for title in header[2:]]
    others = {stat for stat in wire.STATS for layer in layers if layer.startswith(f"{stat} ")}
    if others:
        raise TraceError(
            f"{name}, line 1: these are columns of {', '.join(sorted(others))}. "
            "Rules go by absmax alone: export it with stat=absmax."
        )
    if len(set(layers)) < len(layers):
        raise TraceError(f"{name}, line 1: a parameter is there twice.")
    try:
        by_step = {row[0]: row for row in (_parse_row(name, rows.line_num, row, len(layers)) for row in rows)}
    except csv.Error as error:
        raise TraceError(f"{name}, line {rows.line_num}: {error}.") from error
    if not by_step:
        raise TraceError(f"{name} has no steps.")
    facts = tuple(LayerFacts(number, layer, (), "float32", None, None) for number, layer in enumerate(layers))
    in_order = [by_step[step] for step in sorted(by_step)]
    return ReplaySource(name, dict(enumerate(layers)), "", None, frozenset(), _row_chunks(facts, in_order))


Row = tuple[int, float, NDArray[np.float64]]


def _parse_row(name: str, line: int, cells: list[str], layers: int) -> Row:
    try:
        step = int(cells[0])
        time = datetime.fromisoformat(cells[1].replace("Z", "+00:00")).timestamp()
        values = np.array([UNSEEN if cell == "" else float(cell) for cell in cells[2:]])
    except (ValueError, IndexError) as error:
        raise TraceError(f"{name}, line {line}: {error}.") from error
    if len(values) != layers:
        raise TraceError(f"{name}, line {line} has {len(cells)} cells, the first line {layers + 2}.")
    if not 0 <= step <= validation.MAX_STEP or ((values < 0) & (values != UNSEEN)).any():
        raise TraceError(f"{name}, line {line}: a step is 0 to {validation.MAX_STEP}, and no absmax is negative.")
    return step, time, values


def _row_chunks(layers: tuple[LayerFacts, ...], rows: list[Row]) -> Iterator[ReplayChunk]:
    steps, times = np.array([row[0] for row in rows], np.int64), np.array([row[1] for row in rows])
    every = _intervals(steps)
    launch = Launch(1, int(steps[0]), False, None, None, layers)
    bounds = sorted({*range(0, len(rows), CHUNK_ROWS), *(np.flatnonzero(np.diff(every)) + 1).tolist(), len(rows)})
    for begin, end in pairwise(bounds):
        samples = _samples(steps[begin:end], int(every[begin]), np.stack([row[2] for row in rows[begin:end]]))
        yield ReplayChunk(launch, samples, times[begin:end])


def _intervals(steps: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the sampling interval at each step: the widest one that the distances to its neighbours allow."""
    away = np.diff(steps, prepend=steps[0] - max(EVERY), append=steps[-1] + max(EVERY))
    nearest = np.minimum(away[:-1], away[1:])
    intervals = np.ones(len(steps), np.int64)
    for every in EVERY if len(steps) > 1 else ():
        intervals[(nearest >= every) & (steps % every == 0)] = every
    return intervals


def _samples(steps: NDArray[np.int64], every: int, absmax: NDArray[np.float64]) -> Samples:
    state = np.select([absmax == UNSEEN, absmax == 0, ~np.isfinite(absmax)], [PARTIAL, ZERO, NONFINITE], MEASURED)
    measured = np.where((state == MEASURED) | (state == ZERO), absmax, math.nan).astype(np.float32)
    count = len(steps)
    return Samples(
        steps=steps,
        every=every,
        phase=np.full(count, PHASE, np.uint8),
        state=state.astype(np.uint8),
        values={"absmax": measured},
        skipped=np.zeros(count, np.uint8),
        clipped=np.zeros(count, np.bool_),
        micro_steps=np.ones(count, np.int16),
        lr=np.empty((count, 0), np.float32),
    )
