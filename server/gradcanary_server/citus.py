"""The tables of measurements spread over the nodes of a Citus cluster, by run."""

from __future__ import annotations

from sqlalchemy import Connection, Table, text

from gradcanary_server.errors import StoreError
from gradcanary_server.schema import HEAVY

NO_CITUS = (
    "This database has no Citus: load it on every node (shared_preload_libraries = 'citus'), and here say "
    "CREATE EXTENSION citus; before. Without it plain PostgreSQL is all that is needed."
)

_EXTENSION = text("SELECT extversion FROM pg_extension WHERE extname = 'citus'")
_DISTRIBUTED = text("SELECT logicalrelid::regclass::text FROM pg_dist_partition")
_DISTRIBUTE = text("SELECT create_distributed_table(CAST(:name AS regclass), 'run_id', colocate_with => :beside)")


def distribute(connection: Connection) -> list[str]:
    """Spread the tables of measurements that are not spread yet, and return their names; without Citus, StoreError.

    Rows of a run are on one node, in all tables: what is read together lies together. All other tables stay on the
    coordinator, where runs are locked and work is claimed.
    """
    if connection.dialect.name != "postgresql":
        raise StoreError("--citus goes with --db postgresql://...: SQLite is one file.")
    if connection.execute(_EXTENSION).first() is None:
        raise StoreError(NO_CITUS)
    known = set(connection.scalars(_DISTRIBUTED))
    missing = [(name, beside) for name, beside in plan(HEAVY) if name not in known]
    for name, beside in missing:
        connection.execute(_DISTRIBUTE, {"name": name, "beside": beside})
    return [name for name, _ in missing]


def plan(tables: tuple[Table, ...]) -> list[tuple[str, str]]:
    """Return the names of tables in the order in which they are spread, and beside which each one's rows lie."""
    first = tables[0].name
    return [(table.name, "none" if table.name == first else first) for table in tables]
