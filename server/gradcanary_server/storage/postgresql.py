"""PostgreSQL connections: their settings, and a limit for each statement.

libpq limits connecting and unacknowledged TCP data, but not the wait for an answer. Behind a dead proxy, or with a
stopped server, a thread and its connection would be lost for good. Only this module needs psycopg, which is an extra.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import psycopg
from sqlalchemy import URL, Connection, Engine, create_engine, event

from gradcanary_server.errors import StoreError
from gradcanary_server.storage.schema import NUMBERS

if TYPE_CHECKING:
    from psycopg.abc import PQGen

LOCK_S = 5.0
"""How long a transaction waits for the row lock of another one, as long as a writer of SQLite."""

PING_S = 2.0
"""The limit of statements that are no work: the settings of a new connection, and the ping before it is used again."""

POOL_S = 2.0
"""How long a thread waits for a connection. With a ping and a new connection, 2 s each, that is 6 s: agents give up
after 10."""

OLDEST_POSTGRESQL = 15

STATEMENT_S = 30
"""How long PostgreSQL works on a statement before it cancels it."""

IDLE_S = 60
"""How long PostgreSQL keeps the locks of a collector that hangs."""

LOST_S = STATEMENT_S + 10
"""After which the answer to a statement is lost: the server has cancelled the statement before."""

# Set on the connection and not in its URL, which poolers would refuse. A server that acknowledges a commit before it is
# on disk is set not to.
_SETTINGS = f"""
SET lock_timeout = {int(LOCK_S * 1000)};
SET statement_timeout = {STATEMENT_S * 1000};
SET idle_in_transaction_session_timeout = {IDLE_S * 1000};
SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"""

# A server that vanished is noticed within 15 s instead of TCP's two hours; one that hangs, by LimitedConnection.
_CONNECT_ARGS = {
    "application_name": "gradcanary",
    "client_encoding": "utf8",
    "connect_timeout": "2",
    "keepalives_idle": "5",
    "keepalives_interval": "5",
    "keepalives_count": "2",
    "tcp_user_timeout": "15000",
}

Result = TypeVar("Result")


class LimitedConnection(psycopg.Connection[Any]):
    """A connection that closes itself where a statement has no answer within ``limit_s``."""

    limit_s = PING_S
    hurries: Callable[[], bool] = staticmethod(lambda: False)
    """Whether a node of a cluster is away: a statement that may wait for it has ``PING_S``, unless it has no limit."""

    def wait(self, gen: PQGen[Result], *arguments: float | None, **options: float | None) -> Result:
        """Return the result of a statement; raises OperationalError where none comes in time."""
        return super().wait(self._limited(gen), *arguments, **options)  # type: ignore[arg-type]  # as it was called

    def _limited(self, gen: PQGen[Result]) -> PQGen[Result]:
        # psycopg looks up every 0.1 s while nothing arrives, for Ctrl-C; ``ready`` is empty then.
        begun = time.monotonic()
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                waited_s = time.monotonic() - begun
                if not ready and waited_s > min(self.limit_s, PING_S) and self._is_over(waited_s):
                    self.close()
                    away = ", while a node of the cluster is away" if self.hurries() else ""
                    raise psycopg.OperationalError(f"no answer within {waited_s:.1f} s{away}")
                wanted = gen.send(ready)
        except StopIteration as end:
            result: Result = end.value
            return result

    def _is_over(self, waited_s: float) -> bool:
        return waited_s > self.limit_s or (self.limit_s < math.inf and self.hurries())


def open_engine(url: URL) -> Engine:
    """Return an engine whose pool gives out only connections that answer: a restart of the server fails no request."""
    # Numbers have a pool of their own: transactions that need one have all connections of the other one at worst.
    return open_pool(url, 8, 12).execution_options(**{NUMBERS: open_pool(url, 1, 0)})


def close_engine(engine: Engine) -> None:
    """Close the connections of :func:`open_engine`."""
    engine.dispose()
    engine.get_execution_options()[NUMBERS].dispose()


def open_pool(url: URL, size: int, overflow: int) -> Engine:
    """Return an engine with a pool of its own; ``overflow`` connections more are closed after their use."""
    # Parameters may be secrets, and errors are logged: SQLAlchemy hides them.
    engine = create_engine(
        url.set(drivername="postgresql+psycopg"),
        pool_size=size,
        max_overflow=overflow,
        pool_timeout=POOL_S,
        pool_pre_ping=True,
        hide_parameters=True,
        use_native_hstore=False,
        connect_args={key: value for key, value in _CONNECT_ARGS.items() if key not in url.query},
    )
    event.listen(engine, "do_connect", lambda _d, _r, args, kwargs: LimitedConnection.connect(*args, **kwargs))
    event.listen(engine, "connect", lambda connection, _record: _apply_settings(connection))
    event.listen(engine, "checkout", lambda connection, _record, _proxy: _set_limit(connection, LOST_S))
    event.listen(engine, "checkin", lambda connection, _record: _set_limit(connection, PING_S))  # the ping comes next
    return engine


def _apply_settings(connection: psycopg.Connection[Any]) -> None:
    connection.execute(_SETTINGS)
    connection.commit()  # otherwise the first rollback undoes the settings


def _set_limit(connection: object, limit_s: float) -> None:
    if connection is not None:  # None after the pool has invalidated it
        cast("LimitedConnection", connection).limit_s = limit_s


def disable_statement_timeout(connection: Connection) -> None:
    """Remove the limit of this connection until it returns to the pool."""
    _set_limit(connection.connection.driver_connection, math.inf)


def check_server(connection: Connection) -> None:
    """Raise StoreError if the server is too old, or its encoding is not UTF-8."""
    version = connection.exec_driver_sql("SHOW server_version").scalar_one()
    number = connection.exec_driver_sql("SHOW server_version_num").scalar_one()
    encoding = connection.exec_driver_sql("SHOW server_encoding").scalar_one()
    if int(number) < OLDEST_POSTGRESQL * 10_000:
        raise StoreError(f"PostgreSQL {version} is too old: this version needs {OLDEST_POSTGRESQL} or newer.")
    if encoding != "UTF8":
        raise StoreError(
            f"The database has the encoding {encoding}: make one with CREATE DATABASE ... TEMPLATE template0 "
            "ENCODING 'UTF8'."
        )
