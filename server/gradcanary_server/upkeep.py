"""What an operator asks of a store at a terminal, and the sentence that answers."""

from __future__ import annotations

import contextlib
from pathlib import Path

from gradcanary_server import citus
from gradcanary_server.backups import back_up
from gradcanary_server.database import Database


def backup(url: str, file: Path) -> str:
    """Copy an SQLite store to a new file; raises StoreError, of PostgreSQL with the line to type instead."""
    made = back_up(url, file)
    runs = "1 run" if made.runs == 1 else f"{made.runs:,} runs"
    return f"{made.file} holds {runs} in {made.size / 2**20:,.1f} MiB; its tables are of revision {made.revision}"


def migrate(url: str, *, with_citus: bool) -> str:
    """Bring the tables of a store to this version's shape, and spread them over a cluster; raises StoreError."""
    with contextlib.closing(Database(url)) as database, database.claimed():
        before, now = database.migrate()
        said = f"the tables are of revision {now}" + ("" if before == now else f", and were of {before or 'none'}")
        if not with_citus:
            return said
        with database.set_up() as connection:
            spread = citus.distribute(connection)
        return f"{said}; spread over the cluster: {', '.join(spread) or 'nothing that was not before'}"
