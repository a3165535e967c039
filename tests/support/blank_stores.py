"""Stores as a collector leaves them that was started once: to migrate each store of the suite anew took minutes.

How an empty database becomes one is the subject of tests/component/server/storage/test_migrations.py.
"""

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

FILE = "gradcanary.db"
"""What a collector's folder has."""


def migrate(url: str) -> None:
    """Make the tables."""
    from gradcanary_server.storage.database import Database  # here: benchmarks of earlier versions have no such module

    database = Database(url)
    database.migrate()
    database.close()


def lay(folder: Path) -> Path:
    """Put an SQLite store into a folder that has none, and return its file."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / FILE
    if not file.exists():
        shutil.copy(_template(), file)
    return file


@functools.cache
def _template() -> Path:
    folder = tempfile.TemporaryDirectory(prefix="gradcanary-store-")
    atexit.register(folder.cleanup)
    file = Path(folder.name) / FILE
    migrate(f"sqlite:///{file}")
    return file
