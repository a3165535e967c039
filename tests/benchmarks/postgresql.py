"""A PostgreSQL server to measure with: that of the tests, but for its settings. Imported, not run."""

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import psutil

sys.path[:0] = [str(Path(__file__).parent.parent)]

from support import postgres


class PostgreSQL(postgres.Server):
    """A server as it comes, which keeps what it acknowledges, unlike that of the tests."""

    settings: ClassVar = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "shared_buffers": "256MB"}

    def processes(self) -> list[psutil.Process]:
        """Return it and those that it started."""
        main = psutil.Process(self.pid)
        return [main, *main.children(recursive=True)]


@contextlib.contextmanager
def running() -> Iterator[PostgreSQL]:
    """Yield a PostgreSQL server, gone with everything in it when the block ends."""
    with (
        tempfile.TemporaryDirectory(prefix="gradcanary-postgresql-") as folder,
        contextlib.closing(PostgreSQL(Path(folder))) as server,
    ):
        yield server
