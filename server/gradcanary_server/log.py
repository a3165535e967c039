"""The batch log as its readers see it: decoded once, one winner per step."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from threading import Lock

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Select, select

from gradcanary_server import batches, requests
from gradcanary_server.batches import Columns
from gradcanary_server.database import Record
from gradcanary_server.layers import KnownSets
from gradcanary_server.schema import batch, session

CACHE_BYTES = 256 * 2**20
"""Decoded batches that are kept; a batch never changes, so one second later only the newest is decoded."""

NEWEST_BATCHES = 8
"""How far back :meth:`Log.newest` looks for the last values of a layer."""


@dataclass(frozen=True)
class Piece:
    """The rows of a batch that a reader may use; column i belongs to layer ``numbers[i]`` (int32[L]).

    ``rows`` are the indices of the steps that no later launch measured again.
    """

    priority: tuple[int, float, str]
    numbers: NDArray[np.int32]
    columns: Columns
    rows: NDArray[np.intp]

    def steps(self) -> NDArray[np.int64]:
        """Return the steps of the usable rows."""
        return self.columns.steps[self.rows]


class Log:
    """Reads batches of rank 0; what other ranks sent is kept, and not drawn yet."""

    def __init__(self, sets: KnownSets, cache_bytes: int = CACHE_BYTES) -> None:
        self._sets = sets
        self._lock = Lock()
        self._decoded: OrderedDict[tuple[int, str, int], Columns] = OrderedDict()
        self._room = cache_bytes

    def pieces(self, connection: Connection, run_id: int, from_step: int | None, to_step: int | None) -> list[Piece]:
        """Return every measurement of a run from ``from_step`` to ``to_step``, both included; None is no bound."""
        query = _choice(run_id)
        if from_step is not None:
            query = query.where(batch.c.last_step >= from_step)
        if to_step is not None:
            query = query.where(batch.c.first_step <= to_step)
        found = self._read(connection, run_id, connection.execute(query).all())
        return _winners([_inside(piece, from_step, to_step) for piece in found])

    def newest(self, connection: Connection, run_id: int) -> list[Piece]:
        """Return the last few batches of a run, the newest first."""
        query = _choice(run_id).where(batch.c.first_step.is_not(None))
        newest_first = (batch.c.launch_no.desc(), batch.c.last_step.desc(), batch.c.seq.desc())
        query = query.order_by(None).order_by(*newest_first).limit(NEWEST_BATCHES)
        return self._read(connection, run_id, connection.execute(query).all())

    def _read(self, connection: Connection, run_id: int, rows: Sequence[Record]) -> list[Piece]:
        return [self._piece(connection, run_id, row) for row in rows]

    def _piece(self, connection: Connection, run_id: int, row: Record) -> Piece:
        columns = self._columns(connection, run_id, row)
        known = self._sets.find(connection, run_id, row.session, columns.layer_set)
        priority = (row.launch_no, row.started, row.session)
        return Piece(priority, known.numbers, columns, np.arange(len(columns.steps)))

    def _columns(self, connection: Connection, run_id: int, row: Record) -> Columns:
        key = (run_id, row.session, row.seq)
        with self._lock:
            cached = self._decoded.get(key)
            if cached is not None:
                self._decoded.move_to_end(key)
                return cached
        this = (batch.c.run_id == run_id) & (batch.c.session == row.session) & (batch.c.seq == row.seq)
        body = connection.execute(select(batch.c.body).where(this)).scalar_one()
        columns = batches.decode(requests.batch(body))
        self._keep(key, columns)
        return columns

    def _keep(self, key: tuple[int, str, int], columns: Columns) -> None:
        with self._lock:
            if key in self._decoded:
                return
            self._decoded[key] = columns
            self._room -= columns.nbytes()
            while self._room < 0:
                _, oldest = self._decoded.popitem(last=False)
                self._room += oldest.nbytes()


def later_wins(
    parts: Iterable[tuple[tuple[int, float, str], NDArray[np.int64]]],
) -> list[NDArray[np.intp]]:
    """Return, for each (priority, steps), the rows whose step no higher priority has."""
    listed = list(parts)
    rows = [np.arange(len(steps)) for _, steps in listed]
    taken = np.empty(0, np.int64)
    for priority in sorted({priority for priority, _ in listed}, reverse=True):
        mine = [index for index, (other, _) in enumerate(listed) if other == priority]
        if len(taken):
            for index in mine:
                rows[index] = np.flatnonzero(~np.isin(listed[index][1], taken))
        taken = np.concatenate([taken, *(listed[index][1] for index in mine)])
    return rows


def _winners(pieces: list[Piece]) -> list[Piece]:
    won = later_wins((piece.priority, piece.steps()) for piece in pieces)
    return [replace(piece, rows=piece.rows[rows]) for piece, rows in zip(pieces, won, strict=True)]


def _inside(piece: Piece, from_step: int | None, to_step: int | None) -> Piece:
    steps = piece.columns.steps
    begin = 0 if from_step is None else int(np.searchsorted(steps, from_step, "left"))
    end = len(steps) if to_step is None else int(np.searchsorted(steps, to_step, "right"))
    return replace(piece, rows=piece.rows[begin:end])


def _choice(run_id: int) -> Select[tuple[str, int, int, float]]:
    joined = (session.c.run_id == batch.c.run_id) & (session.c.session == batch.c.session)
    return (
        select(batch.c.session, batch.c.seq, batch.c.launch_no, session.c.started)
        .join(session, joined)
        .where(batch.c.run_id == run_id, session.c.rank == 0)
        .order_by(batch.c.launch_no, batch.c.session, batch.c.seq)
    )
