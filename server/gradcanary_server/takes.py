"""What rules are tried on: steps of a launch and when they were, from a recording or a CSV file. Pure."""

from __future__ import annotations

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
from gradcanary_server import batches, fold_input, requests
from gradcanary_server.batches import EVERY, MEASURED, NONFINITE, ZERO
from gradcanary_server.errors import TraceError
from gradcanary_server.export import FORMULA
from gradcanary_server.observations import Launch, LayerFacts, Samples

PARTIAL = wire.STATES.index("partial")
PHASE = wire.PHASES.index("accumulated")
UNSEEN = -1.0
"""An empty cell."""

AT_ONCE = 256
"""Rows of a CSV file that are folded together."""

MAX_LAYERS = requests.LIMITS.max_layers


@dataclass(frozen=True)
class Take:
    """Some steps of a launch; ``times`` float64[n] are unix seconds."""

    launch: Launch
    samples: Samples
    times: NDArray[np.float64]


@dataclass(frozen=True)
class Source:
    """A run to try rules on: its layers by number; ``state`` as the collector has it, "" where it is not known;
    ``gone_before`` is the step before which single samples are gone; ``ended`` holds the launches that said so.
    """

    name: str
    layers: dict[int, str]
    state: str
    gone_before: int | None
    ended: frozenset[int]
    takes: Iterator[Take]


def of_recording(lines: Iterable[bytes]) -> Source:
    """Return the run of a recording, whose lines are read as its takes are."""
    rest = iter(lines)
    head = json.loads(next(rest))
    layers = {each["number"]: _facts(each) for each in head["layers"]}
    return Source(
        name=head["run"],
        layers={number: facts.name for number, facts in layers.items()},
        state=head["state"],
        gone_before=head["gone_before"],
        ended=frozenset(each["launch"] for each in head["launches"] if each["ended"]),
        takes=_recorded(head, layers, rest),
    )


def _facts(each: dict[str, Any]) -> LayerFacts:
    return LayerFacts(**{**each, "shape": tuple(each["shape"])})


def _recorded(head: dict[str, Any], layers: dict[int, LayerFacts], rest: Iterator[bytes]) -> Iterator[Take]:
    said = tuple(wire.Fact(fact["code"], fact["text"], tuple(fact["layers"])) for fact in head["facts"])
    told = {each["launch"]: each for each in head["launches"]}
    known: dict[bytes, Launch] = {}
    for place in rest:
        if place not in known:
            whose = json.loads(place)
            about = told[whose["launch"]]
            known[place] = Launch(
                number=about["launch"],
                first_step=about["first_step"],
                late=about["late"],
                absmax_below=about["absmax_below"],
                norm_below=about["norm_below"],
                layers=tuple(layers[number] for number in whose["layers"]),
                facts=said,
            )
        launch = known[place]
        columns = batches.decode(requests.batch(next(rest)))
        groups = 1 + max((layer.group for layer in launch.layers if layer.group is not None), default=-1)
        yield Take(launch, fold_input.samples(columns, groups), columns.times)


def of_csv(name: str, lines: Iterable[str]) -> Source:
    """Return the run of a CSV file as ``export.csv`` has it: step, time, then the absmax of a layer in each column.

    An empty cell was not seen; 0 is exactly zero, nan and inf are not finite. Raises TraceError that names the line.
    """
    rows = csv.reader(lines)
    header = next(rows, [])
    if header[:2] != ["step", "time"] or not 3 <= len(header) <= MAX_LAYERS + 2:
        raise TraceError(f"{name}, line 1: the first line is step,time, and then the names of the layers.")
    layers = [title[1:] if title[:1] == "'" and title[1:].startswith(FORMULA) else title for title in header[2:]]
    if len(set(layers)) < len(layers):
        raise TraceError(f"{name}, line 1: a layer is there twice.")
    try:
        read = {row[0]: row for row in (_row(name, rows.line_num, row, len(layers)) for row in rows)}
    except csv.Error as error:
        raise TraceError(f"{name}, line {rows.line_num}: {error}.") from error
    if not read:
        raise TraceError(f"{name} has no steps.")
    facts = tuple(LayerFacts(number, layer, (), "float32", None, None) for number, layer in enumerate(layers))
    found = [read[step] for step in sorted(read)]
    return Source(name, dict(enumerate(layers)), "", None, frozenset(), _of_rows(facts, found))


Row = tuple[int, float, NDArray[np.float64]]


def _row(name: str, line: int, cells: list[str], layers: int) -> Row:
    try:
        step = int(cells[0])
        time = datetime.fromisoformat(cells[1].replace("Z", "+00:00")).timestamp()
        values = np.array([UNSEEN if cell == "" else float(cell) for cell in cells[2:]])
    except (ValueError, IndexError) as error:
        raise TraceError(f"{name}, line {line}: {error}.") from error
    if len(values) != layers:
        raise TraceError(f"{name}, line {line} has {len(cells)} cells, the first line {layers + 2}.")
    if not 0 <= step <= requests.MAX_STEP or ((values < 0) & (values != UNSEEN)).any():
        raise TraceError(f"{name}, line {line}: a step is 0 to {requests.MAX_STEP}, and no absmax is negative.")
    return step, time, values


def _of_rows(layers: tuple[LayerFacts, ...], rows: list[Row]) -> Iterator[Take]:
    steps, times = np.array([row[0] for row in rows], np.int64), np.array([row[1] for row in rows])
    every = _intervals(steps)
    launch = Launch(1, int(steps[0]), False, None, None, layers)
    borders = sorted({*range(0, len(rows), AT_ONCE), *(np.flatnonzero(np.diff(every)) + 1).tolist(), len(rows)})
    for begin, end in pairwise(borders):
        absmax = np.stack([row[2] for row in rows[begin:end]])
        samples = _samples(steps[begin:end], int(every[begin]), absmax)
        yield Take(launch, samples, times[begin:end])


def _intervals(steps: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the interval at which each step was sampled: the widest one that its neighbours leave possible."""
    away = np.diff(steps, prepend=steps[0] - max(EVERY), append=steps[-1] + max(EVERY))
    nearest = np.minimum(away[:-1], away[1:])
    found = np.ones(len(steps), np.int64)
    for every in EVERY if len(steps) > 1 else ():
        found[(nearest >= every) & (steps % every == 0)] = every
    return found


def _samples(steps: NDArray[np.int64], every: int, absmax: NDArray[np.float64]) -> Samples:
    state = np.select([absmax == UNSEEN, absmax == 0, ~np.isfinite(absmax)], [PARTIAL, ZERO, NONFINITE], MEASURED)
    known = np.where((state == MEASURED) | (state == ZERO), absmax, math.nan).astype(np.float32)
    number = len(steps)
    return Samples(
        steps=steps,
        every=every,
        phase=np.full(number, PHASE, np.uint8),
        state=state.astype(np.uint8),
        values={"absmax": known},
        skipped=np.zeros(number, np.uint8),
        clipped=np.zeros(number, np.bool_),
        micro_steps=np.ones(number, np.int16),
        lr=np.empty((number, 0), np.float32),
    )
