"""The packed rule state of each run, in parts, with a write-through cache.

The state is cut into parts of one length, and a batch writes only the changed ones: three of ten for five steps of 500
layers. ``run.state_token`` identifies the last write. It is in the row of the run, so a collector that made that write
reads nothing, and after a write of another collector it reads all parts.
"""

import secrets
from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from gradcanary_server.caches import Cache, split_cache_budget
from gradcanary_server.rules.state import RuleState
from gradcanary_server.storage.prepared import Prepared
from gradcanary_server.storage.schema import HeldRun, rule_state, run

PART_BYTES = 7_984
"""Four rows in which PostgreSQL stores a long value, and two pages of SQLite, which does not rewrite unchanged
pages."""

_PARTS = select(rule_state.c.packed).where(rule_state.c.run_id == bindparam("run_id")).order_by(rule_state.c.part)
_INSERT = insert(rule_state)
_OF_RUN = rule_state.c.run_id == bindparam("at_run_id")
_CHANGE = Prepared(update(rule_state).where(_OF_RUN, rule_state.c.part == bindparam("at_part")))
_DELETE_TAIL = delete(rule_state).where(_OF_RUN, rule_state.c.part >= bindparam("at_part"))
_SET_TOKEN = update(run).where(run.c.run_id == bindparam("at_run_id"))


@dataclass(frozen=True)
class StoredState:
    """The state of a run, which must not be changed, and its parts in the store."""

    state: RuleState
    parts: tuple[bytes, ...]


class RuleStateStore:
    """Reads and writes the states of runs whose rows are locked.

    Another collector may write, too, and a write of this process may be rolled back: an entry of the cache is valid
    only while ``run.state_token`` is that of its write.
    """

    def __init__(self, cache_bytes: int = split_cache_budget().states) -> None:
        self._cache: Cache[int, tuple[int, StoredState]] = Cache(cache_bytes, _size)

    def read(self, connection: Connection, row: HeldRun) -> StoredState:
        """Return the state of a run, an empty one without any."""
        cached = self._cache.get(row.run_id)
        return cached[1] if cached is not None and cached[0] == row.state_token else read_state(connection, row.run_id)

    def write(self, connection: Connection, run_id: int, before: StoredState, state: RuleState) -> int:
        """Store a state, which must not be changed afterwards; return its ``state_token``, which the caller stores."""
        token, stored = _write(connection, run_id, before, state)
        self._cache.keep(run_id, (token, stored))
        return token

    def rewrite(self, connection: Connection, run_id: int, before: StoredState, state: RuleState) -> None:
        """Store a state and its ``state_token``."""
        _write_token(connection, run_id, self.write(connection, run_id, before, state))


def read_state(connection: Connection, run_id: int) -> StoredState:
    """Return the state of a run as this transaction sees it, an empty one without any."""
    parts = tuple(connection.scalars(_PARTS, {"run_id": run_id}))
    return StoredState(RuleState.unpack(b"".join(parts)) if parts else RuleState.empty(), parts)


def write_state(connection: Connection, run_id: int, before: StoredState, state: RuleState) -> None:
    """Store a state and its ``state_token``."""
    token, _ = _write(connection, run_id, before, state)
    _write_token(connection, run_id, token)


def _write_token(connection: Connection, run_id: int, token: int) -> None:
    connection.execute(_SET_TOKEN, {"at_run_id": run_id, "state_token": token})


def _write(connection: Connection, run_id: int, before: StoredState, state: RuleState) -> tuple[int, StoredState]:
    packed, old = state.pack(), before.parts
    parts = tuple(packed[begin : begin + PART_BYTES] for begin in range(0, len(packed), PART_BYTES))
    changes = [
        {"at_run_id": run_id, "at_part": number, "packed": part}
        for number, part in enumerate(parts[: len(old)])
        if part != old[number]
    ]
    if changes:
        _CHANGE.change(connection, *changes)
    if len(parts) > len(old):
        added = enumerate(parts[len(old) :], start=len(old))
        connection.execute(_INSERT, [{"run_id": run_id, "part": number, "packed": part} for number, part in added])
    if len(parts) < len(old):
        connection.execute(_DELETE_TAIL, {"at_run_id": run_id, "at_part": len(parts)})
    # Random and not a counter: after a restore from a backup a counter would return to the same numbers.
    return secrets.randbits(63), StoredState(state, parts)


def _size(entry: tuple[int, StoredState]) -> int:
    # The unpacked state takes about as much as its parts.
    return 2 * sum(map(len, entry[1].parts))
