"""Whose secret it is, from memory: the tokens and visits that hold, read again every few seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from gradcanary_server import tokens
from gradcanary_server.buckets import Buckets
from gradcanary_server.database import Database
from gradcanary_server.errors import RequestError
from gradcanary_server.outages import busy, unavailable
from gradcanary_server.rights import Asker
from gradcanary_server.tokens import Key

FRESH_S = 5.0
"""How long a token goes on to hold here that another process revoked."""

NOTED_S = 60.0
"""How often it is written that a token is in use."""

AGAIN_S = 2.0
"""How long a failure to read the tables is everybody's, if it took as long, and until the next try has ended."""

NEVER = float("-inf")

UNKNOWN = (20.0, 2.0)
"""Unknown secrets for which the tables are read at once, since a token may be new, and how many more a second."""


class Keyring:
    """The keys of a store; safe to share between threads."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._keys: Mapping[str, Key] = {}
        self._read_at = self._forgotten_at = NEVER
        self._ahead = 0.0  # of this process's clock: the database's
        self._noted: dict[int, float] = {}  # when that was last tried
        self._unknown = Buckets(*UNKNOWN)
        self._lock = threading.Lock()
        self._failure: tuple[float, str] = NEVER, ""  # until when nobody reads the tables, and why

    def recall(self, secret: str) -> Asker | None:
        """Return whose it is if that is known without a look into the tables, which may take long."""
        key = self._keys.get(tokens.digest(secret)) if self._is_fresh() else None
        return key.asker if key is not None and self._holds(key) and not self._is_due(key) else None

    def look(self, secret: str) -> Asker | None:
        """Return whose secret it is, None where it opens nothing (any more); reads and writes the tables."""
        digest = tokens.digest(secret)
        if not self._is_fresh() or (digest not in self._keys and not self._unknown.take(None, self._clock())):
            self._read()
        key = self._keys.get(digest)
        if key is None or not self._holds(key):
            return None
        if self._is_due(key):
            self._note(key)
        return key.asker

    def forget(self) -> None:
        """Read the tables at the next request: something was changed here."""
        self._forgotten_at = self._clock()

    def _is_fresh(self) -> bool:
        return self._read_at > self._forgotten_at and self._clock() - self._read_at < FRESH_S

    def _holds(self, key: Key) -> bool:
        return key.expires is None or key.expires > self._now()

    def _is_due(self, key: Key) -> bool:
        tried = self._noted.get(key.token_id)
        if tried is not None and self._clock() - tried < NOTED_S:
            return False
        return key.noted is None or abs(self._now() - key.noted) >= NOTED_S  # it may have been set back since

    def _now(self) -> float:
        return self._clock() + self._ahead

    def _read(self) -> None:
        asked = self._clock()
        self._refuse(asked)
        with self._lock:
            if self._read_at > asked:
                return  # another thread did it meanwhile
            self._refuse(asked)
            until, why = self._failure
            # Where it took long, nobody waits for this one.
            self._failure = (float("inf") if until > NEVER else NEVER, why)
            began, failed = self._clock(), (NEVER, "")
            try:
                with self._database.read() as connection:
                    now = self._database.now(connection)
                    self._keys = tokens.keys(connection, now)
            except Exception as error:
                known = unavailable(error)
                if known is not None and self._clock() - began >= AGAIN_S:
                    failed = self._clock() + AGAIN_S, known.message
                raise
            finally:
                self._failure = failed
            self._ahead = now - self._clock()
            self._read_at = began

    def _refuse(self, asked: float) -> None:
        """Raise what the last try to read the tables raised, if that took long: in turn each would wait as long."""
        until, why = self._failure
        if asked < until:
            raise busy(why)

    def _note(self, key: Key) -> None:
        """Store that a token is in use; where that cannot be done now it is left, and not tried at each request."""
        self._noted[key.token_id] = self._clock()
        try:
            with self._database.write() as connection:
                tokens.note_use(connection, key.token_id, self._database.now(connection))
        except (DBAPIError, PoolTimeoutError, RequestError) as error:
            if unavailable(error) is None:
                raise
