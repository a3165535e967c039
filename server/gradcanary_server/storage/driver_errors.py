"""Translation of driver errors: all other modules see only StoreUnavailable and StoreError."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from gradcanary_server.errors import NodeUnavailable, StoreError, StoreUnavailable


@contextmanager
def translated() -> Iterator[None]:
    """Raise StoreUnavailable for a driver's error that is temporary, StoreError for any other."""
    try:
        yield
    except (DBAPIError, PoolTimeoutError, OSError) as error:
        message = reason(error)
        if message is not None:
            raise (NodeUnavailable if message == _NODE_AWAY else StoreUnavailable)(message) from error
        if isinstance(error, DBAPIError):
            raise StoreError(f"The database failed: {driver_message(error)}") from error
        raise


def reason(error: Exception) -> str | None:
    """Return the message for an error that is temporary, None for any other."""
    if isinstance(error, StoreUnavailable):
        return error.message
    if isinstance(error, PoolTimeoutError):
        return "Every database connection is in use."
    if isinstance(error, OSError):
        return _NO_FILES if error.errno in (errno.EMFILE, errno.ENFILE) else None
    if not isinstance(error, DBAPIError):
        return None
    return _postgresql_reason(error) if hasattr(error.orig, "sqlstate") else _sqlite_reason(error)


def driver_message(error: BaseException) -> str:
    """Return the driver's message in one line, without the statement; for a translated error, that of its cause."""
    cause = error if isinstance(error, DBAPIError) else error.__cause__
    return " ".join(str(cause.orig if isinstance(cause, DBAPIError) else error).split())


_LOCKED = "The database is locked by another writer."
_READ_ONLY = "The database is read-only."
_DAMAGED = "The database file is damaged: stop the collector, and put a backup in its place."
_FULL = "The database cannot be written: its disk is full or failing."
_UNOPENED = "The database file cannot be opened: its folder is away, or the collector has too many files open."
_NO_FILES = "The collector has too many files and connections open."
_AWAY = "The database cannot be reached: it restarts, has no connection left, or its network is down."

_NODE_AWAY = "A node of the database's cluster cannot be reached."

_STATES = {
    "40": _LOCKED,  # deadlocks and failed serializations
    "55P03": _LOCKED,
    "57014": "The database took too long.",
    "25P03": "The database took too long.",
    "25006": _READ_ONLY,
    "58": _FULL,
    "53": _FULL,
    "53300": _AWAY,
    "08": _AWAY,
    "57": _AWAY,
}
"""By SQLSTATE, or its class: https://www.postgresql.org/docs/current/errcodes-appendix.html"""


_CITUS_MESSAGES = {
    "connection marked as essential": _NODE_AWAY,
    "could not commit transaction": _NODE_AWAY,
    "failed to prepare transaction": _NODE_AWAY,
    "connection to the remote node": _NODE_AWAY,
    "connections to the node": _NODE_AWAY,
    "multiple connection failures": _NODE_AWAY,
    "server closed the connection": _NODE_AWAY,
    "postmaster was shut down": _AWAY,  # that of the coordinator
}
"""Parts of messages of Citus about lost connections, which have the SQLSTATE of an internal error, or 08006."""

_AT_NODE = "while executing command on"
"""Part of the context of an error that Citus passes on from another node: one that stops ends its connections itself,
with the state that this server would have, too."""

_HURRIED = "node of the cluster"
"""Part of the message of postgresql.LimitedConnection."""


def _postgresql_reason(error: DBAPIError) -> str | None:
    state: str | None = getattr(error.orig, "sqlstate", None)
    said = str(error.orig)
    if state in ("XX000", "08006"):
        return next((text for part, text in _CITUS_MESSAGES.items() if part in said), _STATES.get(state[:2]))
    if state is None and _HURRIED in said:
        return _NODE_AWAY
    if state in ("57P01", "57P02") and _AT_NODE in said:
        return _NODE_AWAY
    if state is None:  # from the client library: it could not send, or the server is gone
        return _AWAY if error.connection_invalidated or isinstance(error, OperationalError) else None
    return _STATES.get(state, _STATES.get(state[:2]))


_SQLITE_MESSAGES = {
    "locked": _LOCKED,
    "busy": _LOCKED,
    "is full": _FULL,
    "disk i/o": _FULL,
    "readonly": _READ_ONLY,
    "malformed": _DAMAGED,
    "not a database": _DAMAGED,
    "unable to open": _UNOPENED,
}


def _sqlite_reason(error: DBAPIError) -> str | None:
    text = str(error.orig).lower()
    return next((message for part, message in _SQLITE_MESSAGES.items() if part in text), None)
