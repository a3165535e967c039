"""What the rules remember of each run, in the store; what was read last is kept, unpacked."""

from collections import OrderedDict
from threading import Lock

from sqlalchemy import Connection, bindparam, insert, select

from gradcanary_server.database import change
from gradcanary_server.fold_state import FoldState
from gradcanary_server.schema import fold_state

_MOST_BYTES = 64 * 2**20
"""Of packed states that are kept; unpacked they take about as much again."""

_PACKED = select(fold_state.c.packed).where(fold_state.c.run_id == bindparam("run_id"))
_INSERT = insert(fold_state)


class FoldStates:
    """Reads and writes the states of runs. Another collector may write, too: what is kept counts only while the store
    has the very bytes.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: OrderedDict[int, tuple[bytes, FoldState]] = OrderedDict()
        self._bytes = 0

    def read(self, connection: Connection, run_id: int) -> FoldState:
        """Return the state of a run, an empty one where there is none; never write to it."""
        packed: bytes | None = connection.execute(_PACKED, {"run_id": run_id}).scalar_one_or_none()
        if packed is None:
            return FoldState.empty()
        kept = self._kept.get(run_id)
        return kept[1] if kept is not None and kept[0] == packed else FoldState.unpack(packed)

    def write(self, connection: Connection, run_id: int, state: FoldState) -> None:
        """Store a state, which nobody may write to from then on."""
        packed = state.pack()
        if change(connection, fold_state, {"run_id": run_id}, {"packed": packed}) == 0:
            connection.execute(_INSERT, {"run_id": run_id, "packed": packed})
        with self._lock:
            self._bytes += len(packed) - len(self._kept.pop(run_id, (b"", None))[0])
            self._kept[run_id] = packed, state
            while self._bytes > _MOST_BYTES:
                self._bytes -= len(self._kept.popitem(last=False)[1][0])
