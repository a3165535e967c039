"""Layers of a run, numbered by name, and the layer sets of its sessions, stored by their hash.

A layer keeps its number. A set is stored once per run, whichever rank or launch sends it, and never changes: even if a
later launch describes its layers differently, it may still be in use, in another collector or after a restart.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import zstandard
from numpy.typing import NDArray
from sqlalchemy import BindParameter, Connection, bindparam, insert, select, update

from gradcanary import wire
from gradcanary_server.caches import Cache, split_cache_budget
from gradcanary_server.errors import RequestError, invalid
from gradcanary_server.rules.types import LayerFacts
from gradcanary_server.storage.database import Record
from gradcanary_server.storage.schema import insert_new, layer, layer_set, session

_SET_ACCUMULATORS = update(layer).where(
    layer.c.run_id == bindparam("at_run_id"), layer.c.layer_no.in_(bindparam("at_layers", expanding=True))
)
"""One statement for all equal records: one for each of 500 layers took as long as a batch."""

MAX_LAYERS_OF_RUN = 100_000
"""Over all launches of a run; one launch has at most Limits.max_layers."""

_DIGITS = len(str(MAX_LAYERS_OF_RUN))


_OF_RUN = select(layer).where(layer.c.run_id == bindparam("run_id")).order_by(layer.c.layer_no)
_BY_KEY = _OF_RUN.where(
    layer.c.name.in_(bindparam("names", expanding=True)) | layer.c.layer_no.in_(bindparam("numbers", expanding=True))
)


def read_layers(connection: Connection, run_id: int) -> Sequence[Record]:
    """Return the rows of a run's layers in model order."""
    return connection.execute(_OF_RUN, {"run_id": run_id}).all()


def find_layers(connection: Connection, run_id: int, keys: Sequence[str]) -> Sequence[Record]:
    """Return the rows of the layers with these names or numbers, in model order."""
    names = [key for key in keys if "\0" not in key]  # PostgreSQL fails for a NUL
    numbers = [int(key) for key in keys if key.isascii() and key.isdigit() and len(key) <= _DIGITS]
    return connection.execute(_BY_KEY, {"run_id": run_id, "names": names, "numbers": numbers}).all()


def register_layers(
    connection: Connection,
    run_id: int,
    layer_set: wire.LayerSet,
    owned_by_newer: frozenset[int] = frozenset(),
    *,
    adds_only: bool = False,
) -> list[int]:
    """Return the numbers of the layers of a set; new names get the next numbers.

    The description replaces the stored one, except of layers that a newer launch has described, ``owned_by_newer``;
    with ``adds_only`` it replaces none.
    """
    rows = {row.name: row for row in connection.execute(select(layer).where(layer.c.run_id == run_id))}
    numbers: dict[str, int] = {name: row.layer_no for name, row in rows.items()}
    new = [item.name for item in layer_set.layers if item.name not in numbers]
    if len(numbers) + len(new) > MAX_LAYERS_OF_RUN:
        raise invalid(f"A run has at most {MAX_LAYERS_OF_RUN} parameter names over all its launches.", "layer_sets")
    numbers.update({name: number for number, name in enumerate(new, start=len(numbers))})
    described = [_description_changes(item, numbers[item.name]) for item in layer_set.layers]
    inserts = [values for values in described if values["name"] not in rows]
    updates = [values for values in described if values["name"] in rows and _differs(rows[str(values["name"])], values)]
    updates = [values for values in updates if not adds_only and values["layer_no"] not in owned_by_newer]
    if inserts:
        connection.execute(insert(layer), [{"run_id": run_id, **values} for values in inserts])
    _update_descriptions(connection, run_id, updates, ("shape", "param_dtype", "module_class", "group_no"))
    return [numbers[item.name] for item in layer_set.layers]


def note_accumulators(
    connection: Connection,
    run_id: int,
    numbers: NDArray[np.int32],
    records: Iterable[wire.Accumulator],
    owned_by_newer: frozenset[int] = frozenset(),
) -> None:
    """Store the latest record of each layer, except of layers that a newer launch has described."""
    latest = {int(numbers[index]): record for record in records for index in record.layers}
    groups: dict[tuple[str | None, str | None, str | None], list[int]] = defaultdict(list)
    for number, record in latest.items():
        if number not in owned_by_newer:
            groups[record.declared, record.stored, record.effective].append(number)
    for (declared, stored, effective), layers in groups.items():
        values = {"declared": declared, "stored": stored, "effective": effective}
        connection.execute(_SET_ACCUMULATORS, {"at_run_id": run_id, "at_layers": layers, **values})


def _description_changes(item: wire.Layer, number: int) -> dict[str, object]:
    return {
        "layer_no": number,
        "name": item.name,
        "shape": json.dumps(item.shape),
        "param_dtype": item.param_dtype,
        "module_class": item.module_class,
        "group_no": item.group,
    }


def _differs(row: object, values: dict[str, object]) -> bool:
    return any(getattr(row, column) != value for column, value in values.items())


def _update_descriptions(
    connection: Connection, run_id: int, rows: list[dict[str, object]], columns: tuple[str, ...]
) -> None:
    if not rows:
        return
    where = (layer.c.run_id == run_id) & (layer.c.layer_no == bindparam("at"))
    values: dict[str, BindParameter[object]] = {column: bindparam(f"new_{column}") for column in columns}
    parameters = [{"at": row["layer_no"], **{f"new_{column}": row[column] for column in columns}} for row in rows]
    connection.execute(update(layer).where(where).values(values), parameters)


_LAYER_BYTES = 420
"""Measured size of a layer's facts without its name."""

Description = tuple[str, Sequence[int], str, str | None, int | None, int]
"""Name, shape, dtype, module class, group and number of elements of a layer in a session."""


@dataclass(frozen=True)
class StoredLayerSet:
    """A layer set of a session: column i of its batches is layer ``numbers[i]`` (int32[L]) with ``facts[i]``.

    ``numel`` int64[L] counts the elements of each layer that the session has, for shards a part of them.
    """

    facts: tuple[LayerFacts, ...]
    numbers: NDArray[np.int32]
    numel: NDArray[np.int64]


class _Columns(NamedTuple):
    """The part of a set that differs between the ranks of a sharded launch; ``facts`` is the key of the common part."""

    facts: str
    numbers: NDArray[np.int32]
    numel: NDArray[np.int64]


class LayerSetCache:
    """Layer sets of this process by their digest.

    The digest covers the whole content, so an entry is valid for every session, run and transaction: the 512 ranks of a
    launch share one. Sets that differ only in ``numel`` share their facts.
    """

    def __init__(self, cache_bytes: int = split_cache_budget().layers) -> None:
        self._columns: Cache[str, _Columns] = Cache(
            cache_bytes // 4, lambda columns: columns.numbers.nbytes + columns.numel.nbytes
        )
        self._facts: Cache[str, tuple[LayerFacts, ...]] = Cache(cache_bytes - cache_bytes // 4, _size)

    def find(self, connection: Connection, run_id: int, layer_sets: str, set_id: str) -> StoredLayerSet:
        """Return one of the ``layer_sets`` of a session's row; raises RequestError 409 if its hello is missing."""
        digest = json.loads(layer_sets).get(set_id)
        if digest is None:
            message = f"No hello brought the layer set {set_id[:64]!r}."
            raise RequestError(409, "unknown_layer_set", message, "layer_set")
        columns = self._columns.get(digest)
        facts = None if columns is None else self._facts.get(columns.facts)
        if columns is None or facts is None:
            return self._read(connection, run_id, digest)
        return StoredLayerSet(facts, columns.numbers, columns.numel)

    def _read(self, connection: Connection, run_id: int, digest: str) -> StoredLayerSet:
        where = (layer_set.c.run_id == run_id) & (layer_set.c.digest == digest)
        row = connection.execute(select(layer_set.c.layer_nos, layer_set.c.descriptions).where(where)).one()
        numbers = np.frombuffer(row.layer_nos, "<i4")
        descriptions = json.loads(zstandard.decompress(row.descriptions))
        key = _digest(row.layer_nos, [description[:-1] for description in descriptions])[1]
        facts = self._facts.get(key) or self._facts.keep(key, _facts(numbers, descriptions))
        numel = np.array([numel for *_, numel in descriptions], np.int64)
        self._columns.keep(digest, _Columns(key, numbers, numel))
        return StoredLayerSet(facts, numbers, numel)


def store_layer_set(connection: Connection, run_id: int, layer_set: wire.LayerSet, numbers: Sequence[int]) -> str:
    """Store a set whose layers have these numbers; return its digest."""
    descriptions: list[Description] = [
        (item.name, item.shape, item.param_dtype, item.module_class, item.group, item.local_numel)
        for item in layer_set.layers
    ]
    return _store(connection, run_id, numbers, descriptions)


def prefix_layers(
    connection: Connection,
    run_id: int,
    digest: str,
    taken: Collection[int],
    prefix: str,
    owned_by_newer: frozenset[int],
) -> str:
    """Store a set with a prefix before the names of its ``taken`` layers, which become others; return its digest."""
    where = (layer_set.c.run_id == run_id) & (layer_set.c.digest == digest)
    row = connection.execute(select(layer_set.c.layer_nos, layer_set.c.descriptions).where(where)).one()
    described = zip(
        np.frombuffer(row.layer_nos, "<i4").tolist(), json.loads(zstandard.decompress(row.descriptions)), strict=True
    )
    renamed = tuple(
        wire.Layer(_prefixed(name, prefix) if number in taken else name, tuple(shape), numel, dtype, group, kind)
        for number, (name, shape, dtype, kind, group, numel) in described
    )
    separate = wire.LayerSet("", renamed)
    numbers = register_layers(connection, run_id, separate, owned_by_newer)
    return store_layer_set(connection, run_id, separate, numbers)


def _prefixed(name: str, prefix: str) -> str:
    """Return the name with the prefix, without its first characters if it is too long."""
    return prefix + name[-(wire.MAX_NAME - len(prefix)) :]


def store_merged_layer_set(connection: Connection, run_id: int, numbers: Sequence[int]) -> str:
    """Store a set of these layers with their current descriptions; return its digest."""
    rows = {row.layer_no: row for row in connection.execute(select(layer).where(layer.c.run_id == run_id))}
    descriptions: list[Description] = [
        (row.name, json.loads(row.shape), row.param_dtype, row.module_class, row.group_no, 0)
        for row in (rows[number] for number in numbers)
    ]
    return _store(connection, run_id, numbers, descriptions)


def layer_ids(connection: Connection, run_id: int, launches: Collection[int]) -> frozenset[int]:
    """Return the numbers of the layers of some launches."""
    if not launches:
        return frozenset()
    query = select(session.c.layer_sets).where(session.c.run_id == run_id, session.c.launch_no.in_(launches))
    return layers_of_sets(
        connection, run_id, {digest for text in connection.scalars(query) for digest in json.loads(text).values()}
    )


def layers_of_sets(connection: Connection, run_id: int, digests: Collection[str]) -> frozenset[int]:
    """Return the numbers of the layers of some layer sets."""
    sets = select(layer_set.c.layer_nos).where(layer_set.c.run_id == run_id, layer_set.c.digest.in_(digests))
    return frozenset().union(*(np.frombuffer(packed, "<i4").tolist() for packed in connection.scalars(sets)))


def _store(connection: Connection, run_id: int, numbers: Sequence[int], descriptions: Sequence[Description]) -> str:
    packed = np.asarray(numbers, "<i4").tobytes()
    text, digest = _digest(packed, descriptions)
    row = {"run_id": run_id, "digest": digest, "layer_nos": packed, "descriptions": zstandard.compress(text, 1)}
    insert_new(connection, layer_set, row)
    return digest


def _digest(packed: bytes, descriptions: Sequence[Sequence[object]]) -> tuple[bytes, str]:
    """Return the descriptions as JSON, and the hash of them and the numbers."""
    text = json.dumps(descriptions, separators=(",", ":")).encode()
    return text, hashlib.sha256(packed + text).hexdigest()


def _facts(numbers: NDArray[np.int32], descriptions: Sequence[Description]) -> tuple[LayerFacts, ...]:
    return tuple(
        LayerFacts(number, name, tuple(shape), param_dtype, module_class, group)
        for number, (name, shape, param_dtype, module_class, group, _) in zip(
            numbers.tolist(), descriptions, strict=True
        )
    )


def _size(facts: tuple[LayerFacts, ...]) -> int:
    return sum(_LAYER_BYTES + len(fact.name) for fact in facts)
