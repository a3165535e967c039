"""What the rules remember of each run, in the store; what was written last is kept, unpacked.

It is packed, and cut into pieces of one length: a batch writes those that it made others, three of ten where it brings
five steps of 500 layers. ``run.folded`` says which writing the pieces are of. It comes with the row of the run: who has
kept what it wrote last reads nothing, and of another collector's writing reads all of it.
"""

import secrets
from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from gradcanary_server.database import Record
from gradcanary_server.fold_state import FoldState
from gradcanary_server.schema import fold_state, run

PIECE = 7_984
"""Bytes: what fills four of the rows in which PostgreSQL stores something long, and two pages of SQLite, which writes
one that stays as it was no second time."""

_MOST_BYTES = 64 * 2**20
"""Of packed states that are kept; unpacked they take about as much again."""

_PIECES = select(fold_state.c.packed).where(fold_state.c.run_id == bindparam("run_id")).order_by(fold_state.c.piece)
_INSERT = insert(fold_state)
_MINE = fold_state.c.run_id == bindparam("at_run_id")
_CHANGE = update(fold_state).where(_MINE, fold_state.c.piece == bindparam("at_piece"))
_CUT_OFF = delete(fold_state).where(_MINE, fold_state.c.piece >= bindparam("at_piece"))
_NOTE = update(run).where(run.c.run_id == bindparam("at_run_id"))


@dataclass(frozen=True)
class Memory:
    """The state of a run, which nobody writes to, and the pieces in which the store has it."""

    state: FoldState
    pieces: tuple[bytes, ...]


class FoldStates:
    """Reads and writes the states of runs whose rows are held. Another collector may write, too, and what was written
    here may have been undone: what is kept counts only while the run's row tells of the very writing.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: OrderedDict[int, tuple[int, Memory]] = OrderedDict()
        self._bytes = 0

    def read(self, connection: Connection, row: Record) -> Memory:
        """Return the state of a run, an empty one where there is none."""
        kept = self._kept.get(row.run_id)
        return kept[1] if kept is not None and kept[0] == row.folded else stored(connection, row.run_id)

    def write(self, connection: Connection, run_id: int, before: Memory, state: FoldState) -> int:
        """Store a state, which nobody may write to from then on, and return its ``folded``, which the caller notes."""
        folded, memory = _put(connection, run_id, before, state)
        self._keep(run_id, folded, memory)
        return folded

    def rewrite(self, connection: Connection, run_id: int, before: Memory, state: FoldState) -> None:
        """Store a state and note that in the row of the run: where nothing else is written there."""
        self._keep(run_id, *store(connection, run_id, before, state))

    def _keep(self, run_id: int, folded: int, memory: Memory) -> None:
        with self._lock:
            if (known := self._kept.pop(run_id, None)) is not None:
                self._bytes -= _length(known[1])
            self._kept[run_id] = folded, memory
            self._bytes += _length(memory)
            while self._bytes > _MOST_BYTES:
                self._bytes -= _length(self._kept.popitem(last=False)[1][1])


def stored(connection: Connection, run_id: int) -> Memory:
    """Return the state of a run as this transaction sees it, an empty one where there is none."""
    pieces = tuple(connection.scalars(_PIECES, {"run_id": run_id}))
    return Memory(FoldState.unpack(b"".join(pieces)) if pieces else FoldState.empty(), pieces)


def store(connection: Connection, run_id: int, before: Memory, state: FoldState) -> tuple[int, Memory]:
    """Store a state and note that in the row of the run; return its ``folded``, and the state as it is stored."""
    folded, memory = _put(connection, run_id, before, state)
    connection.execute(_NOTE, {"at_run_id": run_id, "folded": folded})
    return folded, memory


def cut(packed: bytes) -> tuple[bytes, ...]:
    """Return a packed state in pieces."""
    return tuple(packed[begin : begin + PIECE] for begin in range(0, len(packed), PIECE))


def _put(connection: Connection, run_id: int, before: Memory, state: FoldState) -> tuple[int, Memory]:
    pieces, known = cut(state.pack()), before.pieces
    changed = [number for number, piece in enumerate(pieces[: len(known)]) if piece != known[number]]
    if changed:
        connection.execute(
            _CHANGE, [{"at_run_id": run_id, "at_piece": number, "packed": pieces[number]} for number in changed]
        )
    if len(pieces) > len(known):
        added = range(len(known), len(pieces))
        rows = [{"run_id": run_id, "piece": number, "packed": pieces[number]} for number in added]
        connection.execute(_INSERT, rows)
    if len(pieces) < len(known):
        connection.execute(_CUT_OFF, {"at_run_id": run_id, "at_piece": len(pieces)})
    # Not counted: a store that was put back to what it was would count to the same number again.
    return secrets.randbits(63), Memory(state, pieces)


def _length(memory: Memory) -> int:
    return sum(map(len, memory.pieces))
