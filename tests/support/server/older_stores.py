"""Stores of an older revision, with the rows of a store of today in them: the columns that both have."""

from typing import Any

from alembic.script import ScriptDirectory
from sqlalchemy import MetaData, column, insert, inspect, select, table, text

from gradcanary_server.storage import maintenance
from gradcanary_server.storage.database import Database
from gradcanary_server.storage.schema import metadata

REVISIONS = [each.revision for each in ScriptDirectory.from_config(maintenance.alembic_config()).walk_revisions()][1:]
"""That a collector upgrades: all but its own."""


def lay(url: str, revision: str, source: str) -> None:
    """Make the tables of a revision in an empty database, by the migrations alone, and copy the rows of a store."""
    old, new = Database(url), Database(source)
    with old.setup_transaction() as connection:
        maintenance.upgrade(connection, revision)
    with new.read() as reading, old.write() as writing:
        there = inspect(writing)
        for model in (each for each in metadata.sorted_tables if there.has_table(each.name)):
            names = [found["name"] for found in there.get_columns(model.name) if found["name"] in model.c]
            rows = reading.execute(select(*(model.c[name] for name in names))).mappings().all()
            if rows:  # without the defaults of the model: a store of that revision has those of its tables
                plain = table(model.name, *(column(name, model.c[name].type) for name in names))
                writing.execute(insert(plain), [dict(row) for row in rows])
            if writing.dialect.name == "postgresql" and (number := model.autoincrement_column) is not None:
                sequence = f"pg_get_serial_sequence('{model.name}', '{number.name}')"
                writing.execute(text(f"SELECT setval({sequence}, max({number.name})) FROM {model.name}"))
    old.close()
    new.close()


def contents(url: str) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of all tables, without empty columns, in the order of their text."""
    database, found = Database(url), MetaData()
    with database.read() as connection:
        found.reflect(connection)
        rows = {each.name: connection.execute(select(each)).mappings().all() for each in found.sorted_tables}
    database.close()
    full = {name: [{key: row[key] for key in row if row[key] is not None} for row in rows[name]] for name in rows}
    return {name: sorted(full[name], key=repr) for name in full}
