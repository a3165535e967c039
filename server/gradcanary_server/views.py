"""Windows as the read API sends them: series, heatmap and metrics of a run."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError
from sqlalchemy import Connection, select

from gradcanary_server import fold_states, heatmap, incidents, layer_table, runs
from gradcanary_server.archive import Archive, Stretch
from gradcanary_server.arrays import array
from gradcanary_server.batches import canonical
from gradcanary_server.database import Database, Record
from gradcanary_server.entries import Entries, joined
from gradcanary_server.errors import RequestError, invalid
from gradcanary_server.expressions import Expression, ExpressionError
from gradcanary_server.fold import FoldState
from gradcanary_server.log import Piece
from gradcanary_server.nodes import FACTOR, MAXIMUM, MINIMUM, PLANES, Planes
from gradcanary_server.rules import Rules
from gradcanary_server.samples import in_order
from gradcanary_server.schema import metric
from gradcanary_server.window import Range, metric_window, window

Json = dict[str, object]

MAX_SERIES = 100
"""Layers or metrics of one answer."""

MAX_CELLS = 4_000_000

LEVEL = 4
STRETCH = FACTOR**LEVEL
"""Steps of metrics that are read at a time, those of a node of this level."""

_OF_TAGS = TypeAdapter(dict[str, str])

_SHORT = {MINIMUM: "min", MAXIMUM: "max"}


@dataclass(frozen=True)
class Picture:
    """How a heatmap is drawn."""

    value: heatmap.Value
    order: heatmap.Order
    match: str | None
    rows: int


@dataclass(frozen=True)
class Chosen:
    """Which metrics are asked for: of these names and these tags, in the form of the store; all where it is empty."""

    names: Sequence[str]
    tags: Sequence[str]

    @classmethod
    def of(cls, names: Sequence[str], tags: Sequence[str]) -> "Chosen":
        """Return the choice with tags given as JSON objects; raises RequestError 422."""
        try:
            return cls(names, [canonical(_OF_TAGS.validate_json(each)) for each in tags])
        except ValidationError as error:
            raise invalid('Tags are a JSON object of texts: {"split": "val"}.', "tags") from error


def series(
    connection: Connection, archive: Archive, rules: Rules, run: Record, stat: str, wanted: Sequence[str], span: Range
) -> Json:
    """Return the envelope of a stat for some layers, given by number or name."""
    chosen = named(layer_table.described(connection, run.run_id), wanted)
    found = window(archive, connection, run.run_id, stat, _numbers(chosen), span)
    return {
        "run": run.name,
        "stat": stat,
        "phases": found.phases,
        "revision": run.revision,
        "bucket_steps": found.buckets.width,
        "steps": array(found.buckets.steps()),
        "times": array(found.times),
        "series": [
            {"layer": row.layer_no, "name": row.name, **_lines(found.envelope, column)}
            for column, row in enumerate(chosen)
        ],
        "threshold": {"enter": rules.collapse.enter, "exit": rules.collapse.exit},
        "marks": [vars(mark) for mark in incidents.marks(connection, run.run_id)],
    }


def picture(
    connection: Connection, archive: Archive, rules: Rules, run: Record, stat: str, wanted: Picture, span: Range
) -> Json:
    """Return the heatmap of a stat."""
    if wanted.rows * span.points > MAX_CELLS:
        raise invalid(f"rows x columns is at most {MAX_CELLS}.", "rows")
    chosen = matching(layer_table.described(connection, run.run_id), wanted.match)
    names = [row.name for row in chosen]
    planes = heatmap.needed(wanted.value, wanted.order)
    found = window(archive, connection, run.run_id, stat, _numbers(chosen), span, planes)
    states = _states(fold_states.stored(connection, run.run_id).state, chosen) if wanted.order == "worst" else []
    columns = heatmap.ordered(wanted.order, names, states, found.envelope)
    rows = heatmap.rows(columns, names, wanted.rows)
    return {
        "run": run.name,
        "stat": stat,
        "value": wanted.value,
        "phases": found.phases,
        "revision": run.revision,
        "bucket_steps": found.buckets.width,
        "steps": array(found.buckets.steps()),
        "times": array(found.times),
        "rows": [
            {"layers": [chosen[column].layer_no for column in row.columns], "name": row.name, "block": row.block}
            for row in rows
        ],
        "cells": array(heatmap.cells(found.envelope, rows, wanted.value)),
        "threshold": {"enter": rules.collapse.enter},
        "gaps": runs.gaps(connection, run.run_id),
        "marks": [vars(mark) for mark in incidents.marks(connection, run.run_id)],
    }


def metrics(connection: Connection, archive: Archive, run: Record, chosen: Chosen, span: Range) -> Json:
    """Return the envelopes of the metrics that are chosen."""
    keys = logged(connection, run.run_id, chosen)
    if len(keys) > MAX_SERIES:
        raise invalid(f"At most {MAX_SERIES} metrics in one answer: give name= and tags=.", "name")
    drawn = metric_window(archive, connection, run.run_id, keys, span)
    return {
        "run": run.name,
        "revision": run.revision,
        "bucket_steps": drawn.buckets.width,
        "steps": array(drawn.buckets.steps()),
        "times": array(drawn.times),
        "metrics": [
            {"name": name, "tags": json.loads(tags), **_lines(drawn.envelope, row)}
            for row, (name, tags) in enumerate(keys)
        ],
    }


def logged(connection: Connection, run_id: int, chosen: Chosen) -> list[tuple[str, str]]:
    """Return name and tags of the metrics that are chosen, in order."""
    query = select(metric.c.name, metric.c.tags).where(metric.c.run_id == run_id)
    query = query.where(metric.c.name.in_(chosen.names)) if chosen.names else query
    known = connection.execute(query.where(metric.c.tags.in_(chosen.tags)) if chosen.tags else query).all()
    return sorted((row.name, row.tags) for row in known)


def samples(
    database: Database, archive: Archive, run_id: int, begin: int | None = None, end: int | None = None
) -> Iterator[Piece]:
    """Yield every sample of a run that is still there, in the order of steps, between two of them, both included."""
    with database.read() as connection:
        stretches = archive.stretches(connection, run_id, begin, end)
    bounded = [replace(of, begin=max(of.begin, of.first), end=min(of.end, of.last + 1)) for of in stretches]
    return in_order((of.begin, archive.samples(database, run_id, of)) for of in bounded)


def points(
    database: Database,
    archive: Archive,
    run_id: int,
    series: Sequence[tuple[str, str]],
    begin: int | None = None,
    end: int | None = None,
) -> Iterator[Entries]:
    """Yield every point of some metrics that is still there, in the order of steps, some thousand steps at a time.

    Each time in a transaction of its own: whoever takes them may take his time.
    """
    numbered = {key: number for number, key in enumerate(series)}
    with database.read() as connection:
        found = archive.of_metrics(connection, run_id, begin, end)
        # One point may lie a billion steps behind the others: nobody looks at what is in between.
        nodes = [archive.entries(connection, run_id, of, numbered, LEVEL) for of in found]
    for at in np.unique(joined(nodes).start // STRETCH * STRETCH).tolist():
        cut = [_cut(of, at, at + STRETCH) for of in found]
        with database.read() as connection:
            yield joined([archive.entries(connection, run_id, of, numbered, 0) for of in cut if of.begin < of.end])


def _cut(of: Stretch, begin: int, end: int) -> Stretch:
    """Return the part of a stretch between two steps of which the points are still there."""
    return replace(of, begin=max(of.begin, begin, of.chain.raw_from), end=min(of.end, end))


def matching(rows: Sequence[Record], expression: str | None) -> Sequence[Record]:
    """Return the layers whose name an expression matches somewhere; raises RequestError 422."""
    if not expression:
        return rows
    try:
        compiled = Expression(expression)
        return [row for row in rows if compiled.found_in(row.name)]
    except ExpressionError as error:
        raise invalid(f"This expression does not work: {error}.", "match") from error


def named(rows: Sequence[Record], wanted: Sequence[str]) -> list[Record]:
    """Return the layers of these numbers or names; raises RequestError 404 for one that there is not."""
    if not 1 <= len(wanted) <= MAX_SERIES:
        raise invalid(f"Give 1 to {MAX_SERIES} layers, by number or name.", "layer")
    known = {row.name: row for row in rows} | {str(row.layer_no): row for row in rows}
    unknown = [each for each in wanted if each not in known]
    if unknown:
        raise RequestError(404, "unknown_layer", f"This run has no layer {unknown[0]!r}.", "layer")
    return [known[each] for each in dict.fromkeys(wanted)]


def _numbers(rows: Sequence[Record]) -> NDArray[np.int32]:
    return np.array([row.layer_no for row in rows], np.int32)


def _states(folded: FoldState, rows: Sequence[Record]) -> list[str | None]:
    """Return the worst rule state of each layer."""
    worst = ("firing", "recovering", "suspect")
    found = [set(verdict.rules.values()) for verdict in folded.verdicts([row.layer_no for row in rows])]
    return [next((state for state in worst if state in states), None) for states in found]


def _lines(envelope: Planes, column: int) -> Json:
    return {_SHORT.get(name, name): array(envelope[name][:, column]) for name in PLANES}
