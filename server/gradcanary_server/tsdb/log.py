"""The batch log: compressed bodies of batches that are not in tiles yet, decoded once.

Base64 is nearly all of a body and a third longer than its bytes: the log stores the bytes. Every body is restored to
the last byte; text for which that is impossible is stored as it came.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pybase64
from numpy.typing import NDArray
from sqlalchemy import Connection, bindparam, select, tuple_

from gradcanary_server.caches import Cache, split_cache_budget
from gradcanary_server.storage.database import Record
from gradcanary_server.storage.layers import LayerSetCache
from gradcanary_server.storage.schema import batch, session
from gradcanary_server.tsdb import batch as tsdb_batch
from gradcanary_server.tsdb.batch import Columns

_MARK = b"\x01"
"""The first byte of a compressed body: JSON cannot begin with it."""

_MIN_TEXT = 256
"""Characters of the shortest JSON string that is tried."""

_QUOTE = ord('"')  # numpy finds quotes ten times as fast as a regular expression

_COUNT = struct.Struct("<I")
_COLUMN = struct.Struct("<III")
"""The position of a column in the other text, its bytes, and its stored bytes: 1 if all are equal."""


def compress_body(raw: bytes) -> bytes:
    heads, texts, columns, done, position = [], [], [], 0, 0
    for begin, end in _long_texts(raw):
        column = _decode(raw[begin:end])
        if column is not None:
            texts.append(raw[done:begin])
            position += begin - done
            is_constant = column[:1] == column[-1:] and column == column[:1] * len(column)
            columns.append(column[:1] if is_constant else column)
            heads.append(_COLUMN.pack(position, len(column), len(columns[-1])))
            done = end
    if not heads:
        return raw
    return b"".join([_MARK, _COUNT.pack(len(heads)), *heads, *texts, raw[done:], *columns])


def decompress_body(body: bytes) -> bytes:
    """Return the original bytes of a body."""
    if not body.startswith(_MARK):
        return body
    (count,) = _COUNT.unpack_from(body, len(_MARK))
    begin = len(_MARK) + _COUNT.size
    text = begin + count * _COLUMN.size
    heads = list(_COLUMN.iter_unpack(body[begin:text]))
    columns = len(body) - sum(size for _, _, size in heads)
    column, done, parts = columns, 0, []
    for position, length, size in heads:
        parts.append(body[text + done : text + position])
        parts.append(pybase64.b64encode(body[column : column + size] * (length // size)))
        column += size
        done = position
    return b"".join([*parts, body[text + done : columns]])


def _long_texts(raw: bytes) -> list[tuple[int, int]]:
    """Return the bounds of long texts between two quotes, JSON strings among them."""
    quotes = np.flatnonzero(np.frombuffer(raw, np.uint8) == _QUOTE)
    long = np.flatnonzero(np.diff(quotes) > _MIN_TEXT)
    return list(zip((quotes[long] + 1).tolist(), quotes[long + 1].tolist(), strict=True))


def _decode(text: bytes) -> bytes | None:
    """Return the bytes of a base64 text, None if encoding them does not restore this text."""
    try:
        column: bytes = pybase64.b64decode(text, validate=True)
    except ValueError:
        return None
    return column if pybase64.b64encode(column) == text else None


_TOGETHER = 16
"""Bodies that one statement reads, each up to 4 MB."""

_OF_RUN = (
    select(batch.c.session, batch.c.seq, batch.c.launch_no, session.c.layer_sets)
    .join(session, (session.c.run_id == batch.c.run_id) & (session.c.session == batch.c.session))
    .where(batch.c.run_id == bindparam("run_id"), session.c.is_primary, batch.c.seq >= session.c.sealed_seq)
    .order_by(batch.c.launch_no, batch.c.session, batch.c.seq)
)


class BatchKey(Protocol):
    """The key of a batch in its run."""

    @property
    def session(self) -> str: ...
    @property
    def seq(self) -> int: ...
    @property
    def launch_no(self) -> int: ...


@dataclass(frozen=True)
class LoggedBatch:
    """A batch; column i of its planes belongs to layer ``numbers[i]`` (int32[L])."""

    launch_no: int
    session: str
    seq: int
    numbers: NDArray[np.int32]
    columns: Columns


class BatchLog:
    """Reads batches through a cache of decoded ones: a batch never changes."""

    def __init__(self, sets: LayerSetCache, cache_bytes: int = split_cache_budget().batches) -> None:
        self._sets = sets
        self._decoded: Cache[tuple[int, str, int], Columns] = Cache(cache_bytes, Columns.nbytes)

    def read_run(
        self, connection: Connection, run_id: int, begin: int | None = None, end: int | None = None
    ) -> list[LoggedBatch]:
        """Return the batches of primary sessions of a run that are not wholly in tiles, by launch and seq.

        Only those with a step from ``begin`` to ``end``, both included, None = no bound.
        """
        query = _OF_RUN if begin is None else _OF_RUN.where(batch.c.last_step >= begin)
        query = query if end is None else query.where(batch.c.first_step <= end)
        rows, found = connection.execute(query, {"run_id": run_id}).all(), []
        for first in range(0, len(rows), _TOGETHER):
            some = rows[first : first + _TOGETHER]
            decoded = self._decode(connection, run_id, [(row.session, row.seq) for row in some])
            found += [
                self._with_layers(connection, run_id, row, row.layer_sets, columns)
                for row, columns in zip(some, decoded, strict=True)
            ]
        return found

    def read_session(self, connection: Connection, row: Record, most: int, most_bytes: int) -> list[LoggedBatch]:
        """Return up to ``most`` batches of a session, given its row, up to the one that reaches ``most_bytes``."""
        query = (
            select(batch.c.session, batch.c.seq, batch.c.launch_no)
            .where(batch.c.run_id == row.run_id, batch.c.session == row.session, batch.c.seq >= row.sealed_seq)
            .order_by(batch.c.seq)
            .limit(most)
        )
        batches: list[LoggedBatch] = []
        for key in connection.execute(query).all():
            batches.append(self.read(connection, row.run_id, key, row.layer_sets))
            most_bytes -= batches[-1].columns.nbytes()
            if most_bytes <= 0:
                break
        return batches

    def read(self, connection: Connection, run_id: int, key: BatchKey, layer_sets: str) -> LoggedBatch:
        """Return a batch, given the layer sets of its session; it must be committed, because it is cached."""
        (columns,) = self._decode(connection, run_id, [(key.session, key.seq)])
        return self._with_layers(connection, run_id, key, layer_sets, columns)

    def _decode(self, connection: Connection, run_id: int, keys: Sequence[tuple[str, int]]) -> list[Columns]:
        """Return batches by session and seq; bodies of those that are not cached are read with one statement."""
        found = {key: self._decoded.get((run_id, *key)) for key in keys}
        missing = [key for key, columns in found.items() if columns is None]
        if missing:
            query = select(batch.c.session, batch.c.seq, batch.c.body).where(
                batch.c.run_id == run_id, tuple_(batch.c.session, batch.c.seq).in_(missing)
            )
            for name, seq, body in connection.execute(query):
                found[name, seq] = columns = tsdb_batch.decode_batch(tsdb_batch.parse_batch(decompress_body(body)))
                self.cache((run_id, name, seq), columns)
        return [columns for columns in found.values() if columns is not None]

    def _with_layers(
        self, connection: Connection, run_id: int, key: BatchKey, layer_sets: str, columns: Columns
    ) -> LoggedBatch:
        layer_set = self._sets.find(connection, run_id, layer_sets, columns.layer_set)
        return LoggedBatch(key.launch_no, key.session, key.seq, layer_set.numbers, columns)

    def cache(self, key: tuple[int, str, int], columns: Columns) -> None:
        """Cache a committed batch by run, session and seq."""
        self._decoded.keep(key, columns)
