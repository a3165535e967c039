"""A store that is locked, full or away for now: the 503 that asks a sender to come back, with the reason in words."""

import logging

from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from gradcanary_server.errors import RequestError


def busy(message: str) -> RequestError:
    """Return the 503 that asks the sender to come back."""
    return RequestError(503, "unavailable", message, retry_after_s=2)


def unavailable(error: Exception) -> RequestError | None:
    """Return the 503 for a store that is locked, full or away for now, None for any other failure."""
    if isinstance(error, RequestError):
        return error if error.status == 503 else None
    if isinstance(error, PoolTimeoutError):
        return busy("Every database connection is in use.")
    if not isinstance(error, DBAPIError):
        return None
    words = _of_postgresql(error) if hasattr(error.orig, "sqlstate") else _of_sqlite(error)
    return None if words is None else busy(words)


class Outage:
    """Tells of a loop's store that is away in one line, however long that lasts, and in one that it is back."""

    def __init__(self, logger: logging.Logger, name: str) -> None:
        self._logger, self._name = logger, name
        self._lasts = False
        self.reason: str | None = None  # why the last round failed

    def explains(self, error: Exception) -> bool:
        """Tell whether a round failed because the store is away for now."""
        known = unavailable(error)
        if known is not None and not self._lasts:
            self._logger.warning("%s: %s Trying again until it is back.", self._name, known.message)
        self._lasts = known is not None
        self.reason = f"{type(error).__name__}: the log says where." if known is None else known.message
        return self._lasts

    def end(self) -> None:
        """Note a round that went well."""
        if self._lasts:
            self._logger.info("%s: the database is back.", self._name)
        self._lasts = False
        self.reason = None


_LOCKED = "The database is locked by another writer."
_READ_ONLY = "The database is read-only."
_DAMAGED = "The database file is damaged: stop the collector, and put a backup in its place."
_FULL = "The database cannot be written: its disk is full or failing."
_UNOPENED = "The database file cannot be opened: its folder is away, or the collector has too many files open."
UNFLUSHED = "The disk failed to keep what was written, so nothing is acknowledged: see to its room and health."
LOST = "The disk lost what was not acknowledged yet: start the collector anew. What was acknowledged is there."
_AWAY = "The database cannot be reached: it restarts, has no connection left, or its network is down."

_STATES = {
    "40": _LOCKED,  # deadlocks and failed serializations, told by their rollback
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


def _of_postgresql(error: DBAPIError) -> str | None:
    state: str | None = getattr(error.orig, "sqlstate", None)
    if state is None:  # said by the client library: what it cannot send, or that nobody is there
        return _AWAY if error.connection_invalidated or isinstance(error, OperationalError) else None
    return _STATES.get(state, _STATES.get(state[:2]))


_SAID_BY_SQLITE = {
    "locked": _LOCKED,
    "busy": _LOCKED,
    "is full": _FULL,
    "disk i/o": _FULL,
    "readonly": _READ_ONLY,
    "malformed": _DAMAGED,
    "not a database": _DAMAGED,
    "unable to open": _UNOPENED,
}


def _of_sqlite(error: DBAPIError) -> str | None:
    words = str(error.orig).lower()
    return next((told for part, told in _SAID_BY_SQLITE.items() if part in words), None)
