"""Layer sets in the store: what a session told of its layers, in the words in which it told it.

A set is kept once per run, under the hash of what it says, whoever tells it again: each rank, each launch. It never
changes: one whose layers a later launch describes anew may still be sent for, to another collector or after a restart,
and what the rules think of it must stay.
"""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from threading import Lock

import numpy as np
import zstandard
from numpy.typing import NDArray
from sqlalchemy import Connection, select

from gradcanary import wire
from gradcanary_server.errors import RequestError
from gradcanary_server.observations import LayerFacts
from gradcanary_server.rows import insert_new
from gradcanary_server.schema import layer, layer_set, session

_CACHED_SETS = 256

Told = tuple[str, Sequence[int], str, str | None, int | None, int]
"""Name, shape, dtype, module class, group of a layer, and how many elements of it the session has."""


@dataclass(frozen=True)
class KnownSet:
    """A layer set of a session: column i of its batches belongs to ``facts[i]``, layer ``numbers[i]`` (int32[L]).

    ``numel`` int64[L] counts the elements that the session has of them: of shards not all.
    """

    facts: tuple[LayerFacts, ...]
    numbers: NDArray[np.int32]
    numel: NDArray[np.int64]


class KnownSets:
    """Layer sets that this process has read; they never change, so they are kept."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._sets: OrderedDict[tuple[int, str, str], KnownSet] = OrderedDict()

    def find(self, connection: Connection, run_id: int, session_id: str, set_id: str) -> KnownSet:
        """Return the layer set of a session; raises RequestError 409 when its hello has not come."""
        key = (run_id, session_id, set_id)
        with self._lock:
            known = self._sets.get(key)
            if known is not None:
                self._sets.move_to_end(key)
                return known
        known = _read(connection, run_id, session_id, set_id)
        with self._lock:
            self._sets[key] = known
            while len(self._sets) > _CACHED_SETS:
                self._sets.popitem(last=False)
        return known


def keep(connection: Connection, run_id: int, told: wire.LayerSet, numbers: Sequence[int]) -> str:
    """Store a set whose layers have these numbers, and return what it is kept under."""
    return _keep(
        connection,
        run_id,
        numbers,
        [
            (each.name, each.shape, each.param_dtype, each.module_class, each.group, each.local_numel)
            for each in told.layers
        ],
    )


def keep_joint(connection: Connection, run_id: int, numbers: Sequence[int]) -> str:
    """Store a set of these layers as the run knows them now, and return what it is kept under."""
    rows = {row.layer_no: row for row in connection.execute(select(layer).where(layer.c.run_id == run_id))}
    mine = (rows[number] for number in numbers)
    told = [(row.name, json.loads(row.shape), row.param_dtype, row.module_class, row.group_no, 0) for row in mine]
    return _keep(connection, run_id, numbers, told)


def numbers_of(connection: Connection, run_id: int, launches: Collection[int]) -> frozenset[int]:
    """Return the numbers of the layers that these launches have."""
    if not launches:
        return frozenset()
    query = select(session.c.layer_sets).where(session.c.run_id == run_id, session.c.launch_no.in_(launches))
    kept = {digest for text in connection.scalars(query) for digest in json.loads(text).values()}
    found = select(layer_set.c.numbers).where(layer_set.c.run_id == run_id, layer_set.c.digest.in_(kept))
    return frozenset().union(*(np.frombuffer(packed, "<i4").tolist() for packed in connection.scalars(found)))


def _keep(connection: Connection, run_id: int, numbers: Sequence[int], told: Sequence[Told]) -> str:
    packed = np.asarray(numbers, "<i4").tobytes()
    text = json.dumps(told, separators=(",", ":")).encode()
    digest = hashlib.sha256(packed + text).hexdigest()
    row = {"run_id": run_id, "digest": digest, "numbers": packed, "described": zstandard.compress(text, 1)}
    insert_new(connection, layer_set, row)
    return digest


def _read(connection: Connection, run_id: int, session_id: str, set_id: str) -> KnownSet:
    mine = (session.c.run_id == run_id) & (session.c.session == session_id)
    digest = json.loads(connection.execute(select(session.c.layer_sets).where(mine)).scalar_one()).get(set_id)
    if digest is None:
        raise RequestError(409, "unknown_layer_set", f"No hello brought the layer set {set_id[:64]!r}.", "layer_set")
    this = (layer_set.c.run_id == run_id) & (layer_set.c.digest == digest)
    row = connection.execute(select(layer_set.c.numbers, layer_set.c.described).where(this)).one()
    numbers, told = np.frombuffer(row.numbers, "<i4"), json.loads(zstandard.decompress(row.described))
    facts = tuple(
        LayerFacts(number, name, tuple(shape), param_dtype, module_class, group)
        for number, (name, shape, param_dtype, module_class, group, _) in zip(numbers.tolist(), told, strict=True)
    )
    return KnownSet(facts, numbers, np.array([numel for *_, numel in told], np.int64))
