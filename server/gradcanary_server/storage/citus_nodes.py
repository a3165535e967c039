"""Nodes of a Citus cluster that do not answer: statements leave out their runs until they answer again.

A statement that reaches such a node waits, and with it a thread, a connection and its locks. So a statement about a run
there fails at once, and one about all runs reads those of the other nodes. While all nodes answer, no statement is
changed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Engine, Executable, SelectBase, Transaction, event, select, text

from gradcanary_server.background import BackgroundLoop
from gradcanary_server.errors import NodeUnavailable
from gradcanary_server.storage.citus_statements import ClusterStatement, Given
from gradcanary_server.storage.driver_errors import translated
from gradcanary_server.storage.schema import run_name

LOOK_S = 1.0
"""How often each node is asked, in seconds."""

CONNECT_MS = 1000
"""How long a node may take for a connection: one that is stopped accepts it, and never answers."""

NO_RUNS = range(-1024, 0)
"""Ids that no run has, on all nodes as there are enough of them."""

MOST_NAMES = 100_000
"""Names of runs whose node is remembered; some more are looked up again."""

_NODES = text("SELECT groupid, nodename, nodeport FROM pg_dist_node WHERE isactive AND noderole = 'primary'")
_HERE = text("SELECT groupid FROM pg_dist_local_group")
_CHECK = text("SELECT citus_check_connection_to_node(:host, :port)")
_SHARDS = text(
    "SELECT CAST(shardmaxvalue AS integer), groupid FROM pg_dist_shard JOIN pg_dist_placement USING (shardid) "
    "WHERE logicalrelid = CAST('run' AS regclass) ORDER BY 1"
)
_OWN_SIZE = text("SELECT pg_database_size(current_database())")
_SIZES = text(
    "SELECT CAST(coalesce(sum(CAST(result AS bigint)), 0) AS bigint) "
    "FROM master_run_on_worker(CAST(:hosts AS text[]), CAST(:ports AS int[]), CAST(:commands AS text[]), true) "
    "WHERE success"
)
_SET_UP = f"SET citus.node_connection_timeout = {CONNECT_MS}; SET citus.max_cached_conns_per_worker = 0"
_RUN_IDS = select(run_name.c.run_id).distinct()

logger = logging.getLogger(__name__)


class Node(NamedTuple):
    """A node of the cluster; ``groupid`` 0 is the coordinator."""

    groupid: int
    host: str
    port: int


class Shards(NamedTuple):
    """The last hash of each shard of runs, and the ``groupid`` of its node."""

    ends: NDArray[np.int32]
    groups: NDArray[np.int32]

    def find_nodes(self, run_ids: Sequence[int]) -> NDArray[np.int32]:
        """Return the ``groupid`` of the node of each run."""
        found: NDArray[np.int32] = self.groups[np.searchsorted(self.ends, hash_ids(np.array(run_ids, np.int64)))]
        return found


@dataclass(frozen=True, eq=False)
class Away:
    """The nodes that do not answer, as they were found at one look."""

    nodes: tuple[Node, ...]
    shards: Shards
    _is_lost: dict[int, bool] = field(default_factory=dict)
    """Of runs that statements have named since."""

    def holds_any(self, run_ids: Iterable[int]) -> bool:
        """Return True if one of these runs is on one of these nodes."""
        return any(self._holds(run_id) for run_id in run_ids)

    def _holds(self, run_id: int) -> bool:
        if run_id not in self._is_lost:
            self._is_lost[run_id] = bool(self.holds([run_id])[0])
        return self._is_lost[run_id]

    def holds(self, run_ids: Sequence[int]) -> NDArray[np.bool_]:
        """Return for each run whether it is on one of these nodes."""
        return np.isin(self.shards.find_nodes(run_ids), [node.groupid for node in self.nodes])

    def left_of(self, run_ids: Sequence[int]) -> list[int]:
        """Return the runs that are on other nodes.

        If there are none it is an id that no run has, as Citus asks each node for an empty list; without any other
        node the list is empty.
        """
        left = [run_id for run_id, is_lost in zip(run_ids, self.holds(run_ids), strict=True) if not is_lost]
        return left or [run_id for run_id, is_lost in zip(NO_RUNS, self.holds(NO_RUNS), strict=True) if not is_lost][:1]


class Nodes(BackgroundLoop):
    """Asks each node every second, and keeps the statements of an engine from those that do not answer."""

    def __init__(self, engine: Engine, probing: Engine) -> None:
        """``probing`` is an engine with one connection, whose settings are changed."""
        super().__init__("nodes", logger)
        self._probing = probing.execution_options(isolation_level="AUTOCOMMIT")
        self._others: tuple[Node, ...] = ()
        self._shards = Shards(np.empty(0, np.int32), np.empty(0, np.int32))
        self._node_of: dict[str, int] = {}
        self._away: Away | None = None
        self._missing: str | None = None
        self._left_for: WeakKeyDictionary[Transaction, tuple[Away, list[int]]] = WeakKeyDictionary()
        event.listen(engine, "before_execute", self._guard, retval=True)
        event.listen(engine, "checkout", self._hurry)

    def missing(self) -> str | None:
        """Return the nodes that do not answer, with the number of their runs; None if all answer."""
        return self._missing

    def is_away(self, run_id: int) -> bool:
        """Return True if the node of a run does not answer."""
        away = self._away
        return away is not None and away.holds_any([run_id])

    def note(self, name: str, run_id: int) -> None:
        """Remember the node of a run by a name of it."""
        if name not in self._node_of and len(self._shards.ends):
            if len(self._node_of) >= MOST_NAMES:
                self._node_of.clear()
            self._node_of[name] = int(self._shards.find_nodes([run_id])[0])

    def node_of(self, name: str) -> int | None:
        """Return the ``groupid`` of the node of a run, None if it was not noted since shards last moved."""
        return self._node_of.get(name)

    def close(self) -> None:
        """Close the connection by which nodes are asked."""
        self._probing.dispose()

    def size(self, connection: Connection) -> int:
        """Return the bytes of the store on all nodes that answer."""
        silent = () if self._away is None else self._away.nodes
        nodes = [node for node in self._others if node not in silent]
        hosts, ports = [node.host for node in nodes], [node.port for node in nodes]
        sizes = {"hosts": hosts, "ports": ports, "commands": [str(_OWN_SIZE)] * len(nodes)}
        own, others = connection.execute(_OWN_SIZE), connection.execute(_SIZES, sizes)
        return int(own.scalar_one()) + int(others.scalar_one())

    def look(self) -> None:
        """Ask each node for an answer."""
        with translated(), self._probing.connect() as connection:
            connection.exec_driver_sql(_SET_UP)
            here, nodes = connection.scalar(_HERE), [Node(*row) for row in connection.execute(_NODES)]
            self._others = tuple(node for node in nodes if node.groupid != here)
            self._read_shards(connection)
            silent = tuple(node for node in self._others if not _answers(connection, node))
            if not silent:
                self._away = self._missing = None
                return
            away = Away(silent, self._shards)
            is_known = all(node.groupid > 0 for node in silent)  # names of runs are on the coordinator
            count = str(away.holds(connection.scalars(_RUN_IDS).all()).sum()) if is_known else "all"
        names = ", ".join(f"{node.host}:{node.port}" for node in silent)
        self._missing = f"node {names} does not answer: {count} runs"
        self._away = away

    def _read_shards(self, connection: Connection) -> None:
        rows = np.array([tuple(row) for row in connection.execute(_SHARDS)], np.int32).reshape(-1, 2)
        shards = Shards(rows[:, 0], rows[:, 1])
        if not all(map(np.array_equal, shards, self._shards)):
            self._shards = shards
            self._node_of.clear()

    def _run(self) -> None:
        while not self._stopping.wait(LOOK_S):
            before = self._missing
            with self._tracked_round():
                self.look()
            if (before is None) != (self._missing is None):
                logger.warning(self._missing or "all nodes of the cluster answer again")

    def _hurry(self, connection: object, _record: object, _proxy: object) -> None:
        connection.hurries = lambda: self._away is not None  # type: ignore[attr-defined]  # postgresql.LimitedConnection

    def _guard(
        self, connection: Connection, statement: Executable, many: Sequence[Given], one: Given, _options: object
    ) -> tuple[object, Sequence[Given], Given]:
        """Fail for a run of a node that does not answer, and leave its runs out of a query about all."""
        away = self._away
        if away is None:
            return statement, many, one
        seen = ClusterStatement(statement)
        if not seen.is_of_runs:
            return statement, many, one
        named = {run_id for given in (many or [one]) for run_id in seen.named_runs(given, connection.dialect)}
        if away.holds_any(named) or not (named or isinstance(statement, SelectBase)):
            raise NodeUnavailable(f"A part of the database is away: {self._missing}.")
        if seen.may_ask_all_nodes(named):
            run_ids = [*named] or self._left(connection, away)
            if not run_ids:
                raise NodeUnavailable(f"A part of the database is away: {self._missing}.")
            return seen.restricted(run_ids), many, one
        return statement, many, one

    def _left(self, connection: Connection, away: Away) -> list[int]:
        """Return the runs of other nodes, which are read once in a transaction and after each look at the nodes."""
        transaction = connection.get_transaction()
        if transaction is None:
            return away.left_of(connection.scalars(_RUN_IDS).all())
        known = self._left_for.get(transaction)
        if known is None or known[0] is not away:
            known = self._left_for[transaction] = away, away.left_of(connection.scalars(_RUN_IDS).all())
        return known[1]


def _answers(connection: Connection, node: Node) -> bool:
    return bool(connection.execute(_CHECK, {"host": node.host, "port": node.port}).scalar_one())


def hash_ids(run_ids: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return the hash of each id by which Citus finds its shard: ``hashint8`` of PostgreSQL."""
    high = (run_ids >> 32).astype(np.uint32)
    key = run_ids.astype(np.uint32) ^ np.where(run_ids >= 0, high, ~high)
    b = np.full(len(run_ids), (0x9E3779B9 + 4 + 3923095) % 2**32, np.uint32)
    a, c = b + key, b.copy()

    def rotated(values: NDArray[np.uint32], bits: int) -> NDArray[np.uint32]:
        return (values << np.uint32(bits)) | (values >> np.uint32(32 - bits))

    c = (c ^ b) - rotated(b, 14)
    a = (a ^ c) - rotated(c, 11)
    b = (b ^ a) - rotated(a, 25)
    c = (c ^ b) - rotated(b, 16)
    a = (a ^ c) - rotated(c, 4)
    b = (b ^ a) - rotated(a, 14)
    c = (c ^ b) - rotated(b, 24)
    return c.view(np.int32)
