"""The series that a run logs: name, tags and last value."""

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, bindparam, func, insert, select, update

from gradcanary_server.errors import invalid
from gradcanary_server.storage.prepared import Prepared
from gradcanary_server.storage.schema import metric, run
from gradcanary_server.tsdb.batch import MetricColumn

MAX_SERIES = 10_000
"""Of a run: name and tags."""

LOSS = hashlib.sha256(b"loss\0{}").digest()
"""The key of the metric ``loss`` without tags."""

_SERIES = select(metric.c.name, metric.c.tags, metric.c.launch_no).where(metric.c.run_id == bindparam("run_id"))
_LAST_VALUES = select(metric.c.name, metric.c.tags, metric.c.last).where(metric.c.run_id == bindparam("run_id"))
_LOSSES = select(metric.c.run_id, metric.c.name, metric.c.last).where(
    metric.c.run_id.in_(bindparam("run_ids", expanding=True)), metric.c.series == LOSS
)
_CHANGE = Prepared(
    update(metric).where(metric.c.run_id == bindparam("at_run_id"), metric.c.series == bindparam("at_series"))
)


@dataclass(frozen=True)
class Series:
    """A metric of a run; ``last`` is None where the value is not finite."""

    name: str
    tags: dict[str, str]
    last: float | None


def update_series(
    connection: Connection,
    run_id: int,
    launch_no: int,
    newer: frozenset[int],
    columns: Iterable[MetricColumn],
    *,
    is_refused: bool = True,
) -> None:
    """Store the last value of each series, except of series that a newer launch has logged.

    Raises RequestError 422 if a run has too many series; without ``is_refused`` the new ones are dropped.
    """
    latest = {(column.name, column.tags): _last(column, launch_no) for column in columns if len(column.steps)}
    updates = {key: {"at_run_id": run_id, "at_series": _hash(*key), **values} for key, values in latest.items()}
    if not updates or (not newer and _CHANGE.change(connection, *updates.values()) == len(updates)):
        return  # nearly always: all series exist and no newer launch has logged them
    rows = connection.execute(_SERIES, {"run_id": run_id})
    launches: dict[tuple[str, str], int] = {(row.name, row.tags): row.launch_no for row in rows}
    missing = [key for key in latest if key not in launches]
    if len(launches) + len(missing) > MAX_SERIES:
        if is_refused:
            raise invalid(f"A run has at most {MAX_SERIES} metrics.", "metrics")
        missing = missing[: max(MAX_SERIES - len(launches), 0)]
    for name, tags in missing:
        row = {"run_id": run_id, "series": _hash(name, tags), "name": name, "tags": tags}
        connection.execute(insert(metric).values(**row, **latest[name, tags]))
    # Also if the step is lower: a resumed run goes back, and its newest launch counts.
    changed = [values for key, values in updates.items() if key in launches and launches[key] not in newer]
    if changed:
        _CHANGE.change(connection, *changed)


def list_series(connection: Connection, run_id: int) -> list[Series]:
    """Return the series of a run by name and tags."""
    rows = connection.execute(_LAST_VALUES, {"run_id": run_id}).all()
    # Sorted here: PostgreSQL's order depends on its locale.
    in_order = sorted(rows, key=lambda row: (row.name, row.tags))
    return [Series(row.name, json.loads(row.tags), row.last) for row in in_order]


def last_losses(connection: Connection, run_ids: Sequence[int]) -> dict[int, Series]:
    """Return the series ``loss`` without tags of the runs that log it."""
    rows = connection.execute(_LOSSES, {"run_ids": run_ids})
    return {row.run_id: Series(row.name, {}, row.last) for row in rows}


def last_loss_of_run(missing: float) -> ColumnElement[float]:
    """Return the last loss of a row of ``run``, ``missing`` where it is not finite or not logged."""
    last = select(metric.c.last).where(metric.c.run_id == run.c.run_id, metric.c.series == LOSS).scalar_subquery()
    return func.coalesce(last, missing)


def _last(column: MetricColumn, launch_no: int) -> dict[str, object]:
    row = int(column.steps.argmax())
    value = float(column.values[row])
    last = value if math.isfinite(value) else None
    return {"launch_no": launch_no, "last_step": int(column.steps[row]), "last": last}


def _hash(name: str, tags: str) -> bytes:
    return hashlib.sha256(f"{name}\0{tags}".encode()).digest()
