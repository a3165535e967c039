"""The series that a run logs, as its page lists them: name, tags and the last value."""

import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, insert, select, update

from gradcanary_server.batches import MetricColumn
from gradcanary_server.errors import invalid
from gradcanary_server.schema import metric

MAX_SERIES = 10_000
"""Of a run: name and tags."""

_KNOWN = select(metric.c.name, metric.c.tags, metric.c.launch_no).where(metric.c.run_id == bindparam("run_id"))
_CHANGE = update(metric).where(metric.c.run_id == bindparam("at_run_id"), metric.c.series == bindparam("at_series"))


@dataclass(frozen=True)
class Series:
    """A metric of a run; ``last`` is None where the value is not finite."""

    name: str
    tags: dict[str, str]
    last: float | None


def note(
    connection: Connection,
    run_id: int,
    launch_no: int,
    newer: frozenset[int],
    columns: Iterable[MetricColumn],
    *,
    is_refused: bool = True,
) -> None:
    """Keep the newest value of each series that none of the newer launches logged.

    Where there are too many it raises RequestError 422, or, unless ``is_refused``, keeps none of the new ones.
    """
    latest = [(column.name, column.tags, _last(column, launch_no)) for column in columns if len(column.steps)]
    told = [{"at_run_id": run_id, "at_series": _key(name, tags), **values} for name, tags, values in latest]
    if not told or (not newer and connection.execute(_CHANGE, told).rowcount == len(told)):
        return  # all of them known, as nearly always, and nobody else's
    rows = connection.execute(_KNOWN, {"run_id": run_id})
    known: dict[tuple[str, str], int] = {(row.name, row.tags): row.launch_no for row in rows}
    changed: list[dict[str, object]] = []
    for name, tags, values in latest:
        key = (name, tags)
        if key not in known:
            if len(known) >= MAX_SERIES and not is_refused:
                continue
            if len(known) >= MAX_SERIES:
                raise invalid(f"A run has at most {MAX_SERIES} metrics.", "metrics")
            row = {"run_id": run_id, "series": _key(*key), "name": name, "tags": tags}
            connection.execute(insert(metric).values(**row, **values))
        elif known[key] not in newer:
            # Also when the step is lower: a resumed run went back, and its newest launch speaks.
            changed.append({"at_run_id": run_id, "at_series": _key(*key), **values})
        known.setdefault(key, launch_no)
    if changed:
        connection.execute(_CHANGE, changed)


def of_run(connection: Connection, run_id: int) -> list[Series]:
    """Return the series of a run by name and tags."""
    rows = connection.execute(select(metric).where(metric.c.run_id == run_id)).all()
    # Sorted here: what PostgreSQL calls order depends on the locale it was set up with.
    in_order = sorted(rows, key=lambda row: (row.name, row.tags))
    return [Series(row.name, json.loads(row.tags), row.last) for row in in_order]


def _last(column: MetricColumn, launch_no: int) -> dict[str, object]:
    at = int(column.steps.argmax())
    step, value = int(column.steps[at]), float(column.values[at])
    return {"launch_no": launch_no, "last_step": step, "last": value if math.isfinite(value) else None}


def _key(name: str, tags: str) -> bytes:
    return hashlib.sha256(f"{name}\0{tags}".encode()).digest()
