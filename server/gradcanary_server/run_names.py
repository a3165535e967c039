"""What runs are called: the name of each, and those that it had before.

On the wire sessions are keyed by the name of their run, and an agent keeps the one that it began with. So a name that a
run had leads there for as long as the run exists, for agents and for readers, until somebody frees it.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection, delete, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from gradcanary_server.database import Record
from gradcanary_server.errors import RequestError
from gradcanary_server.requests import is_run_name
from gradcanary_server.schema import run, run_alias, silence

WAS_DELETED = run.c.deleted_as > ""
IS_THERE = or_(run.c.archived.is_(False), run.c.deleted_as.is_(None))
"""What is true of runs that were deleted, and of the others: whoever asks for runs that are not named says so. Those
that were are in the archive; to look further is to read past all that agents said of a run."""

CALLED = func.coalesce(run.c.deleted_as, run.c.name)
"""What a run is called in messages, also once it was deleted."""


def find(connection: Connection, name: str, *, held: bool = False) -> Record | None:
    """Return the row of the run that a name leads to, None where there is none; ``held`` until the transaction ends."""
    if not is_run_name(name):
        return None  # PostgreSQL takes no NUL, not even in a question
    query = select(run).with_for_update() if held else select(run)
    found = connection.execute(query.where(run.c.name == name)).one_or_none()
    if found is None and (run_id := renamed(connection, name)) is not None:
        found = connection.execute(query.where(run.c.run_id == run_id)).one_or_none()
    return found


def renamed(connection: Connection, name: str) -> int | None:
    """Return the number of the run that had this name before."""
    its = select(run_alias.c.run_id).where(run_alias.c.name == name)
    found: int | None = connection.execute(its).scalar_one_or_none()
    return found


def former(connection: Connection, run_id: int) -> list[str]:
    """Return the names that a run had and that still lead to it."""
    return sorted(connection.scalars(select(run_alias.c.name).where(run_alias.c.run_id == run_id)))


def rename(connection: Connection, row: Record, name: str) -> None:
    """Give a run that is held another name; raises RequestError 409 where that leads to another run.

    Silences of this very run go with it, for nobody asked to be woken by it.
    """
    if name == row.name:
        return
    leads_to = renamed(connection, name)
    if leads_to not in (None, row.run_id):
        now = connection.execute(select(run.c.name).where(run.c.run_id == leads_to)).scalar_one()
        raise _taken(name, f"{name!r} leads to run {now!r}, which had that name before")
    connection.execute(delete(run_alias).where(run_alias.c.name == name))
    try:
        connection.execute(update(run).where(run.c.run_id == row.run_id).values(name=name))
    except IntegrityError as error:
        raise _taken(name, f"There is a run {name!r} here") from error
    connection.execute(insert(run_alias).values(name=row.name, run_id=row.run_id))
    connection.execute(update(silence).where(silence.c.run_glob == row.name).values(run_glob=name))


def free(connection: Connection, run_id: int, kept: Collection[str]) -> None:
    """Let names that a run had lead nowhere, but those that are ``kept``: whoever sends under one begins a new run."""
    gone = [name for name in former(connection, run_id) if name not in kept]
    connection.execute(delete(run_alias).where(run_alias.c.name.in_(gone)))


def _taken(name: str, reason: str) -> RequestError:
    return RequestError(409, "conflict", f"{reason}: choose another name than {name!r}.", "name")
