"""The valid credentials in memory: read from the tables again every few seconds."""

import contextlib
import threading
import time
from collections.abc import Callable, Mapping

from gradcanary_server.auth import tokens
from gradcanary_server.auth.policy import Principal
from gradcanary_server.auth.rate_limit import RateLimiter
from gradcanary_server.auth.tokens import Credential
from gradcanary_server.errors import StoreUnavailable
from gradcanary_server.storage.database import Database

FRESH_S = 5.0
"""A token that another process revoked is accepted here for up to this long."""

USE_WRITE_S = 60.0
"""The interval at which the last use of a token is stored."""

NEVER = float("-inf")

UNKNOWN = (20.0, 2.0)
"""Unknown secrets for which the tables are read at once, since a token may be new, and how many more a second."""


class TokenCache:
    """The credentials of a store; safe to share between threads."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._credentials: Mapping[str, Credential] = {}
        self._read_at = self._invalidated_at = self._failed_at = NEVER
        self._failure = ""
        self._clock_offset = 0.0  # of the database's clock to this process's
        self._use_tried: dict[int, float] = {}  # time of the last try to store a use, by token
        self._unknown = RateLimiter(*UNKNOWN)
        self._lock = threading.Lock()

    def get(self, secret: str) -> Principal | None:
        """Return the principal of a secret, None if the tables have to be read or written first."""
        credential = self._find(tokens.secret_digest(secret)) if self._is_fresh() else None
        return None if credential is None or self._use_is_due(credential) else credential.principal

    def now(self) -> float:
        """Return the time to say to ``load`` as the request's arrival."""
        return self._clock()

    def load(self, secret: str, arrived_at: float | None = None) -> Principal | None:
        """Return the principal of a secret, None if it is not valid; may read and write the tables.

        A read that ends or fails after ``arrived_at`` answers the request too: it may have waited for a thread.
        """
        arrived_at = self._clock() if arrived_at is None else arrived_at
        digest = tokens.secret_digest(secret)
        is_known = digest in self._credentials
        if not self._is_fresh() or (not is_known and not self._unknown.acquire(None, self._clock())):
            self._read(arrived_at)
        credential = self._find(digest)
        if credential is None:
            return None
        if self._use_is_due(credential):
            self._write_use(credential)
        return credential.principal

    def last_read(self, secret: str) -> Principal | None:
        """Return the principal of a secret as the tables last had it, at any age."""
        credential = self._find(tokens.secret_digest(secret))
        return None if credential is None else credential.principal

    def invalidate(self) -> None:
        """Read the tables at the next request: something was changed here."""
        self._invalidated_at = self._clock()

    def _is_fresh(self) -> bool:
        return self._read_at > self._invalidated_at and self._clock() - self._read_at < FRESH_S

    def _find(self, digest: str) -> Credential | None:
        credential = self._credentials.get(digest)
        is_valid = credential is not None and (credential.expires is None or credential.expires > self._now())
        return credential if is_valid else None

    def _use_is_due(self, credential: Credential) -> bool:
        tried = self._use_tried.get(credential.token_id)
        if tried is not None and self._clock() - tried < USE_WRITE_S:
            return False
        stored = credential.last_used
        return stored is None or abs(self._now() - stored) >= USE_WRITE_S  # the clock may have been set back since

    def _now(self) -> float:
        return self._clock() + self._clock_offset

    def _read(self, arrived_at: float) -> None:
        with self._lock:
            if self._read_at > arrived_at:
                return  # another thread did it meanwhile
            if self._failed_at > arrived_at:  # another thread tried meanwhile: in turn each would wait as long
                raise StoreUnavailable(self._failure)
            began = self._clock()
            try:
                with self._database.read() as connection:
                    now = self._database.now(connection)
                    self._credentials = tokens.credentials(connection, now)
            except StoreUnavailable as error:
                self._failed_at, self._failure = self._clock(), error.message
                raise
            self._clock_offset = now - self._clock()
            self._read_at = began

    def _write_use(self, credential: Credential) -> None:
        """Store the use of a token; where that fails, it is not tried again at each request."""
        self._use_tried[credential.token_id] = self._clock()
        with contextlib.suppress(StoreUnavailable), self._database.write() as connection:
            tokens.write_last_use(connection, credential.token_id, self._database.now(connection))
