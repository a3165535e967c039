"""Citus: the tables of runs over several nodes, and all others on the coordinator.

All rows of a run are on one node, so what changes one run is one commit there. What is of no run stays on the
coordinator, where Citus knows of it: a transaction that changes both is committed in two phases, and is either there or
not, whoever is killed. No batch does that.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, text

from gradcanary_server.errors import StoreError, StoreUnavailable
from gradcanary_server.storage.schema import (
    HEAVY,
    attempt,
    configuration,
    deleted_run,
    delivery,
    incident,
    incident_layer,
    launch,
    layer,
    layer_set,
    metadata,
    run,
    session,
)

DISTRIBUTED = (
    *(run, launch, configuration, session, layer, layer_set, incident, incident_layer, delivery, attempt),
    *(deleted_run, *HEAVY),
)
"""By ``run_id``; a table comes after those that its foreign keys lead to."""

KEPT = tuple(table for table in metadata.tables.values() if table not in DISTRIBUTED)
"""The tables of the coordinator."""

VERSION_TABLE = "alembic_version"
"""Of Alembic, on the coordinator, too: a collector may be connected to any node."""

NO_CITUS = (
    "This database has no Citus: load it on every node (shared_preload_libraries = 'citus'), and here say "
    "CREATE EXTENSION citus; before. Without it plain PostgreSQL is all that is needed."
)
NO_COORDINATOR = (
    "Citus does not know the address of this server, which its nodes need: say "
    "SELECT citus_set_coordinator_host('HOST', PORT); before."
)

NODE_SETTINGS = {
    "lock_timeout": "5s",
    "statement_timeout": "30s",
    "idle_in_transaction_session_timeout": "60s",
    "citus.node_connection_timeout": "2s",
    "citus.max_adaptive_executor_pool_size": "1",
}
"""Of connections between nodes, to which a session's settings do not go; as storage/postgresql.py has them.

And how many of them to a node one list may use. Of Citus' 16 all but one are opened for it and closed after it: beside
six readers batches waited twice as long (docs/results/scaling.md).
"""

_EXTENSION = text("SELECT extversion FROM pg_extension WHERE extname = 'citus'")
_COORDINATOR = text("SELECT 1 FROM pg_dist_node WHERE groupid = 0")
_KNOWN = text("SELECT logicalrelid::regclass::text FROM pg_dist_partition")
_DISTRIBUTE = text("SELECT create_distributed_table(CAST(:name AS regclass), 'run_id', colocate_with => :colocated)")
_KEEP = text("SELECT citus_add_local_table_to_metadata(CAST(:name AS regclass), cascade_via_foreign_keys => true)")
_TRUNCATE = text("SELECT truncate_local_data_after_distributing_table(CAST(:name AS regclass))")
_ON_NODES = text("SELECT nodeid, success, result FROM run_command_on_all_nodes(:command)")


def is_spread(connection: Connection) -> bool:
    """Return True if this store is on a Citus cluster."""
    if connection.dialect.name != "postgresql" or connection.execute(_EXTENSION).first() is None:
        return False
    return run.name in connection.scalars(_KNOWN)


def distribute(connection: Connection) -> list[str]:
    """Distribute the tables of runs over the nodes and return the names of the new ones; raises StoreError.

    Rows that were on the coordinator are moved.
    """
    if connection.dialect.name != "postgresql":
        raise StoreError("--citus goes with --db postgresql://...: SQLite is one file.")
    if connection.execute(_EXTENSION).first() is None:
        raise StoreError(NO_CITUS)
    if connection.execute(_COORDINATOR).first() is None:
        raise StoreError(NO_COORDINATOR)
    check_nodes(connection)
    connection.exec_driver_sql("SET LOCAL citus.multi_shard_modify_mode TO 'sequential'")  # as foreign keys need it
    known = set(connection.scalars(_KNOWN))
    missing = [table.name for table in DISTRIBUTED if table.name not in known]
    for name in missing:
        connection.execute(_DISTRIBUTE, {"name": name, "colocated": "none" if name == run.name else run.name})
    for name in missing:
        connection.execute(_TRUNCATE, {"name": name})
    for name in (*(table.name for table in KEPT), VERSION_TABLE):
        if name not in set(connection.scalars(_KNOWN)):  # a foreign key may have brought it
            connection.execute(_KEEP, {"name": name})
    return missing


def set_up_nodes(connection: Connection) -> None:
    """Limit the statements that nodes send each other, as those of a collector are; for new connections.

    Raises StoreUnavailable if a node does not answer.
    """
    database = connection.exec_driver_sql("SELECT quote_ident(current_database())").scalar_one()
    for name, value in NODE_SETTINGS.items():
        for row in _on_nodes(connection, f"ALTER DATABASE {database} SET {name} = '{value}'"):
            if not row.success:
                raise StoreUnavailable(f"Node {row.nodeid} of the cluster failed: {row.result}")


def check_nodes(connection: Connection) -> None:
    """Raise StoreError if a node acknowledges commits before they are on disk; one that is away is not asked."""
    for row in _on_nodes(connection, "SHOW synchronous_commit"):
        if row.success and row.result == "off":
            raise StoreError(
                f"Node {row.nodeid} of the cluster has synchronous_commit = off: a failure of its power would lose "
                "what was acknowledged. Set it to on there."
            )


def _on_nodes(connection: Connection, command: str) -> Sequence[Row[Any]]:
    return connection.execute(_ON_NODES, {"command": command}).all()
