"""What earlier processes left in the folder of spools, for which nothing but ``gradcanary sync`` does anything more.

Looked for in the sender's thread once the collector took something, by the first process of a machine: a folder may be
on a network, and hang.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from gradcanary import naming

MOST = 100
"""Sessions that are counted, beside those that live: a launcher that restarts a job for a week leaves thousands."""

ONE = "1 earlier session waits here to be sent: gradcanary sync {folder}"
SOME = "{count} earlier sessions wait here to be sent: gradcanary sync {folder}"


def tell(environ: Mapping[str, str], say: Callable[[str], None]) -> None:
    """Say how many sessions wait whose process is gone; nothing where none does, or where another process says it."""
    if _is_first(environ) and (found := _left(environ)) is not None:
        folder, count = found
        known = f"{count}" if count < MOST else f"{MOST} and more"
        if count:
            say((ONE if count == 1 else SOME).format(count=known, folder=shlex.quote(str(folder))))


def _is_first(environ: Mapping[str, str]) -> bool:
    local = environ.get("LOCAL_RANK") or environ.get("SLURM_LOCALID")
    return local == "0" if local else naming.rank(environ)[0] == 0


def _left(environ: Mapping[str, str]) -> tuple[Path, int] | None:
    # Who sends has imported it, if this Python has SQLite; a fork in the middle of an import here would hang the child.
    spool = sys.modules.get("gradcanary.spool")
    if spool is None:
        return None
    try:
        folder = spool.folder(environ)
    except RuntimeError:
        return None  # a user without a home, as often in a container, has no such folder
    count = 0
    for path in folder.glob(f"*{spool.SUFFIX}"):
        count += _is_left(path)
        if count == MOST:
            break
    return folder, count


def _is_left(path: Path) -> bool:
    """Tell whether nobody has a file open: who lives holds the lock of its own, and may be making an empty one.

    It is opened to be read, and nothing in it changes, not even what SQLite would take back in it.
    """
    import sqlite3  # as above: it is there

    from gradcanary.fork_safe import connect

    try:
        if not path.stat().st_size:
            return False
        with closing(connect(f"file:{quote(str(path.absolute()))}?mode=ro")) as connection:
            connection.rows("SELECT run FROM session")
    except (OSError, sqlite3.Error) as error:
        return not isinstance(error, OSError) and "locked" not in str(error)
    return True
