"""Copies of a run in a store on PostgreSQL, made by the database: a store of many runs in a moment."""

from sqlalchemy import Connection, Table, text

from gradcanary_server.storage.schema import batch, launch, layer, layer_set, run, run_name, session, stream

COPIED = (run, run_name, launch, session, layer, layer_set, batch, stream)


def copy_run(connection: Connection, run_id: int, copies: int) -> None:
    """Copy a run with its log and its streams under the ids 1, 2, ... and the names copy-1, copy-2, ..."""
    for table in COPIED:
        columns = ", ".join(f'"{column.name}"' for column in table.columns)
        values = ", ".join(_value(table, column.name) for column in table.columns)
        numbers = f"generate_series(1, {copies}) AS number"
        copied = (
            f'INSERT INTO "{table.name}" ({columns}) SELECT {values} FROM "{table.name}", {numbers} WHERE run_id = :id'
        )
        connection.execute(text(copied), {"id": run_id})


def _value(table: Table, column: str) -> str:
    if column == "run_id":
        return "number"
    if column == "name" and table is not layer:
        return "'copy-' || number"
    return f'"{column}"'
