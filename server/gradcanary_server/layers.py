"""The layers of a run in the store: numbered by name, never renumbered, with what is known of each."""

import json
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import BindParameter, Connection, bindparam, insert, select, update

from gradcanary import wire
from gradcanary_server.database import Record
from gradcanary_server.errors import RequestError, invalid
from gradcanary_server.observations import LayerFacts
from gradcanary_server.schema import layer, session

MAX_LAYERS_OF_RUN = 100_000
"""Over all launches of a run; a launch has at most Limits.max_layers."""

_CACHED_SETS = 256


@dataclass(frozen=True)
class KnownSet:
    """A layer set of a session: column i of its batches belongs to ``facts[i]``, layer ``numbers[i]`` (int32[L]).

    ``numel`` int64[L] counts the elements that a session which sends shards has of them.
    """

    facts: tuple[LayerFacts, ...]
    numbers: NDArray[np.int32]
    numel: NDArray[np.int64]


class KnownSets:
    """Layer sets that this process has read; they never change, so they are kept."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._sets: OrderedDict[tuple[int, str, str], KnownSet] = OrderedDict()

    def find(self, connection: Connection, run_id: int, session_id: str, layer_set: str) -> KnownSet:
        """Return the layer set of a session; raises RequestError 409 when its hello has not come."""
        key = (run_id, session_id, layer_set)
        with self._lock:
            known = self._sets.get(key)
            if known is not None:
                self._sets.move_to_end(key)
                return known
        known = _read(connection, run_id, session_id, layer_set)
        with self._lock:
            self._sets[key] = known
            while len(self._sets) > _CACHED_SETS:
                self._sets.popitem(last=False)
        return known


def of_launches(connection: Connection, run_id: int, launches: Collection[int]) -> frozenset[int]:
    """Return the numbers of the layers that these launches have."""
    if not launches:
        return frozenset()
    query = select(session.c.layer_sets).where(session.c.run_id == run_id, session.c.launch_no.in_(launches))
    sets = (numbers for text in connection.scalars(query) for numbers in json.loads(text).values())
    return frozenset().union(*sets)


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
    if updates:
        _keep_described(connection, run_id, {row.layer_no: row for row in known.values()}, updates)
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
    latest = {index: record for record in records for index in record.layers if int(numbers[index]) not in settled}
    rows: list[dict[str, object]] = [
        {
            "layer_no": int(numbers[index]),
            "declared": record.declared,
            "stored": record.stored,
            "effective": record.effective,
        }
        for index, record in latest.items()
    ]
    _rewrite(connection, run_id, rows, ("declared", "stored", "effective"))


def _described(item: wire.Layer, number: int) -> dict[str, object]:
    return {
        "layer_no": number,
        "name": item.name,
        "shape": json.dumps(item.shape),
        "param_dtype": item.param_dtype,
        "module_class": item.module_class,
        "group_no": item.group,
    }


def _keep_described(
    connection: Connection, run_id: int, rows: Mapping[int, Record], updates: Sequence[Mapping[str, object]]
) -> None:
    """Write down how layers were that are described anew, in the hellos of those sessions that told of them so.

    They may go on sending, to another collector or after a restart: what the rules think of them must not change.
    """
    changed = {row["layer_no"] for row in updates}
    columns = (session.c.session, session.c.hello, session.c.layer_sets)
    for mine in connection.execute(select(*columns).where(session.c.run_id == run_id)).all():
        kept = json.loads(mine.hello).get("layer_sets", [])
        sets = {set_id: numbers for set_id, numbers in json.loads(mine.layer_sets).items() if changed & set(numbers)}
        for each in kept:
            sets.pop(each["id"], None)  # it was described anew before
        if sets:
            kept += [{"id": key, "layers": [_facts(rows[number]) for number in sets[key]]} for key in sets]
            hello = json.dumps({**json.loads(mine.hello), "layer_sets": kept})
            its = (session.c.run_id == run_id) & (session.c.session == mine.session)
            connection.execute(update(session).where(its).values(hello=hello))


def _facts(row: Record) -> list[object]:
    """Return the facts of a layer, from its row, as JSON has them."""
    return [row.layer_no, row.name, json.loads(row.shape), row.param_dtype, row.module_class, row.group_no]


def _differs(known: object, row: dict[str, object]) -> bool:
    return any(getattr(known, column) != value for column, value in row.items())


def _rewrite(connection: Connection, run_id: int, rows: list[dict[str, object]], columns: tuple[str, ...]) -> None:
    if not rows:
        return
    this = (layer.c.run_id == run_id) & (layer.c.layer_no == bindparam("at"))
    values: dict[str, BindParameter[object]] = {column: bindparam(f"new_{column}") for column in columns}
    parameters = [{"at": row["layer_no"], **{f"new_{column}": row[column] for column in columns}} for row in rows]
    connection.execute(update(layer).where(this).values(values), parameters)


def _read(connection: Connection, run_id: int, session_id: str, layer_set: str) -> KnownSet:
    columns = (session.c.layer_sets, session.c.local_numels, session.c.hello)
    mine = connection.execute(select(*columns).where(session.c.run_id == run_id, session.c.session == session_id)).one()
    numbers = json.loads(mine.layer_sets).get(layer_set)
    if numbers is None:
        raise RequestError(409, "unknown_layer_set", f"No hello brought the layer set {layer_set[:64]!r}.", "layer_set")
    kept = {each["id"]: each["layers"] for each in json.loads(mine.hello).get("layer_sets", [])}
    if layer_set in kept:
        told = kept[layer_set]
    else:
        rows = {row.layer_no: row for row in connection.execute(select(layer).where(layer.c.run_id == run_id))}
        told = [_facts(rows[number]) for number in numbers]
    facts = tuple(
        LayerFacts(number, name, tuple(shape), param_dtype, module_class, group)
        for number, name, shape, param_dtype, module_class, group in told
    )
    sizes = json.loads(mine.local_numels or "{}").get(layer_set, [0] * len(numbers))
    return KnownSet(facts, np.array(numbers, np.int32), np.array(sizes, np.int64))
