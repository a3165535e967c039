"""The batch log as its readers see it: what is not in tiles yet, decoded once."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, select

from gradcanary_server import batches, log_bodies, requests
from gradcanary_server.batches import Columns
from gradcanary_server.layer_sets import KnownSets
from gradcanary_server.schema import batch, session

CACHE_BYTES = 256 * 2**20
"""Decoded batches that are kept; a batch never changes, so one second later only the newest is decoded."""


class Key(Protocol):
    """Which batch of a run."""

    @property
    def session(self) -> str: ...
    @property
    def seq(self) -> int: ...
    @property
    def launch_no(self) -> int: ...


@dataclass(frozen=True)
class Piece:
    """A batch; column i of its planes belongs to layer ``numbers[i]`` (int32[L])."""

    launch_no: int
    session: str
    seq: int
    numbers: NDArray[np.int32]
    columns: Columns


class Log:
    """Reads batches."""

    def __init__(self, sets: KnownSets, cache_bytes: int = CACHE_BYTES) -> None:
        self._sets = sets
        self._lock = Lock()
        self._decoded: OrderedDict[tuple[int, str, int], Columns] = OrderedDict()
        self._room = cache_bytes

    def pieces(self, connection: Connection, run_id: int) -> list[Piece]:
        """Return the batches of what is drawn of a run that are not wholly in tiles, by launch and seq."""
        query = (
            select(batch.c.session, batch.c.seq, batch.c.launch_no)
            .join(session, (session.c.run_id == batch.c.run_id) & (session.c.session == batch.c.session))
            .where(batch.c.run_id == run_id, session.c.draws, batch.c.seq >= session.c.sealed_seq)
            .order_by(batch.c.launch_no, batch.c.session, batch.c.seq)
        )
        return self._read(connection, run_id, connection.execute(query).all())

    def of_session(
        self, connection: Connection, run_id: int, session_id: str, seq: int, most: int, most_bytes: int
    ) -> list[Piece]:
        """Return up to ``most`` batches of a session from a seq on, and none behind that which makes ``most_bytes``."""
        query = (
            select(batch.c.session, batch.c.seq, batch.c.launch_no)
            .where(batch.c.run_id == run_id, batch.c.session == session_id, batch.c.seq >= seq)
            .order_by(batch.c.seq)
            .limit(most)
        )
        found: list[Piece] = []
        for row in connection.execute(query).all():
            found.append(self.piece(connection, run_id, row))
            most_bytes -= found[-1].columns.nbytes()
            if most_bytes <= 0:
                break
        return found

    def piece(self, connection: Connection, run_id: int, row: Key) -> Piece:
        """Return a batch by its key; it must be committed, for what is decoded is kept."""
        columns = self._columns(connection, run_id, row)
        known = self._sets.find(connection, run_id, row.session, columns.layer_set)
        return Piece(row.launch_no, row.session, row.seq, known.numbers, columns)

    def _read(self, connection: Connection, run_id: int, rows: Sequence[Key]) -> list[Piece]:
        return [self.piece(connection, run_id, row) for row in rows]

    def _columns(self, connection: Connection, run_id: int, row: Key) -> Columns:
        key = (run_id, row.session, row.seq)
        with self._lock:
            cached = self._decoded.get(key)
            if cached is not None:
                self._decoded.move_to_end(key)
                return cached
        this = (batch.c.run_id == run_id) & (batch.c.session == row.session) & (batch.c.seq == row.seq)
        body = connection.execute(select(batch.c.body).where(this)).scalar_one()
        columns = batches.decode(requests.batch(log_bodies.restored(body)))
        self.keep(key, columns)
        return columns

    def keep(self, key: tuple[int, str, int], columns: Columns) -> None:
        """Keep a batch that was decoded, by run, session and seq; it must be committed, and never changes."""
        with self._lock:
            if key in self._decoded:
                return
            self._decoded[key] = columns
            self._room -= columns.nbytes()
            while self._room < 0:
                _, oldest = self._decoded.popitem(last=False)
                self._room += oldest.nbytes()
