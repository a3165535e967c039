"""What the rules remember of each run, in the store; what was read last is kept, unpacked."""

from collections import OrderedDict
from threading import Lock

from sqlalchemy import Connection, bindparam, insert, select

from gradcanary_server.database import change
from gradcanary_server.fold_state import FoldState
from gradcanary_server.schema import fold_state

_MOST = 64
_PACKED = select(fold_state.c.packed).where(fold_state.c.run_id == bindparam("run_id"))
_INSERT = insert(fold_state)


class FoldStates:
    """Reads and writes the states of runs. Another collector may write, too: what is kept counts only while the store
    has the very bytes.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: OrderedDict[int, tuple[bytes, FoldState]] = OrderedDict()

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
            self._kept[run_id] = packed, state
            self._kept.move_to_end(run_id)
            while len(self._kept) > _MOST:
                self._kept.popitem(last=False)
