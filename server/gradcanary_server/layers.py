"""The layers of a run in the store: numbered by name, never renumbered, with what is known of each."""

import json
from collections import defaultdict
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import BindParameter, Connection, bindparam, insert, select, update

from gradcanary import wire
from gradcanary_server.errors import invalid
from gradcanary_server.schema import layer

_NOTED = update(layer).where(
    layer.c.run_id == bindparam("at_run_id"), layer.c.layer_no.in_(bindparam("at_layers", expanding=True))
)
"""All that are alike at once: a row at a time, of 500 layers, took as long as a batch."""

MAX_LAYERS_OF_RUN = 100_000
"""Over all launches of a run; a launch has at most Limits.max_layers."""


def register(
    connection: Connection, run_id: int, layer_set: wire.LayerSet, settled: frozenset[int] = frozenset()
) -> list[int]:
    """Return the numbers of the layers of a set, giving new names the next ones.

    A new description replaces the old one, but not of ``settled`` layers: a newer launch described them.
    """
    rows = connection.execute(select(layer).where(layer.c.run_id == run_id))
    known = {row.name: row for row in rows}
    numbers: dict[str, int] = {name: row.layer_no for name, row in known.items()}
    new = [item.name for item in layer_set.layers if item.name not in numbers]
    if len(numbers) + len(new) > MAX_LAYERS_OF_RUN:
        raise invalid(f"A run has at most {MAX_LAYERS_OF_RUN} layer names over all its launches.", "layer_sets")
    numbers.update({name: number for number, name in enumerate(new, start=len(numbers))})
    described = [_described(item, numbers[item.name]) for item in layer_set.layers]
    inserts = [row for row in described if row["name"] not in known]
    updates = [row for row in described if row["name"] in known and _differs(known[str(row["name"])], row)]
    updates = [row for row in updates if row["layer_no"] not in settled]
    if inserts:
        connection.execute(insert(layer), [{"run_id": run_id, **row} for row in inserts])
    _rewrite(connection, run_id, updates, ("shape", "param_dtype", "module_class", "group_no"))
    return [numbers[item.name] for item in layer_set.layers]


def note_accumulators(
    connection: Connection,
    run_id: int,
    numbers: NDArray[np.int32],
    records: Iterable[wire.Accumulator],
    settled: frozenset[int] = frozenset(),
) -> None:
    """Keep the latest change record of each layer, but not of ``settled`` ones: those of a newer launch count."""
    latest = {int(numbers[index]): record for record in records for index in record.layers}
    alike: dict[tuple[str | None, str | None, str | None], list[int]] = defaultdict(list)
    for number, record in latest.items():
        if number not in settled:
            alike[record.declared, record.stored, record.effective].append(number)
    for (declared, stored, effective), these in alike.items():
        told = {"declared": declared, "stored": stored, "effective": effective}
        connection.execute(_NOTED, {"at_run_id": run_id, "at_layers": these, **told})


def _described(item: wire.Layer, number: int) -> dict[str, object]:
    return {
        "layer_no": number,
        "name": item.name,
        "shape": json.dumps(item.shape),
        "param_dtype": item.param_dtype,
        "module_class": item.module_class,
        "group_no": item.group,
    }


def _differs(known: object, row: dict[str, object]) -> bool:
    return any(getattr(known, column) != value for column, value in row.items())


def _rewrite(connection: Connection, run_id: int, rows: list[dict[str, object]], columns: tuple[str, ...]) -> None:
    if not rows:
        return
    this = (layer.c.run_id == run_id) & (layer.c.layer_no == bindparam("at"))
    values: dict[str, BindParameter[object]] = {column: bindparam(f"new_{column}") for column in columns}
    parameters = [{"at": row["layer_no"], **{f"new_{column}": row[column] for column in columns}} for row in rows]
    connection.execute(update(layer).where(this).values(values), parameters)
