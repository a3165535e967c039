"""The notice that a watch leaves for ``gradcanary ps``: its run, its page and its starter.

It is a file in memory. Other processes of the same user read it in ``/proc``; it is in no folder, waits for no disk,
and is gone with the process, however that ends. Linux; elsewhere there is none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

NAME = "gradcanary-watch"
LONGEST = 4096
KEYS = ("run", "url", "by")


class Notice:
    """A notice of this process, until it is withdrawn."""

    def __init__(self, *, run: str, url: str, by: str) -> None:
        """Raises OSError if the system has no such files, or no more of them."""
        self._file = os.memfd_create(NAME)
        self._inode = _inode(self._file)
        os.write(self._file, json.dumps({"run": run, "url": url, "by": by}).encode()[:LONGEST])

    def withdraw(self) -> None:
        """Close the file, unless the script has closed it and its number belongs to another file."""
        file, self._file = self._file, -1
        with suppress(OSError):
            if file >= 0 and _inode(file) == self._inode:
                os.close(file)


def read_notices(pid: int) -> Iterator[dict[str, Any]]:
    """Yield the notices of a process; none if this user may not read it."""
    with suppress(OSError):
        for number in sorted(os.listdir(f"/proc/{pid}/fd"), key=int):  # noqa: PTH208 -- names are all that is needed
            with suppress(OSError, ValueError):
                file = f"/proc/{pid}/fd/{number}"
                if os.readlink(file) != f"/memfd:{NAME} (deleted)":  # noqa: PTH115 -- the target is no path
                    continue
                notice = json.loads(_content(file))
                if isinstance(notice, dict) and all(isinstance(notice.get(key), str) for key in KEYS):
                    yield notice


def _content(file: str) -> bytes:
    opened = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return os.pread(opened, LONGEST, 0)
    finally:
        os.close(opened)


def _inode(file: int) -> tuple[int, int]:
    found = os.fstat(file)
    return found.st_dev, found.st_ino
