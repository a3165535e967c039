"""A disk that is full; one under SQLite's log that keeps what it is told to, loses what it failed to write, and can be
cut off."""

import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gradcanary_server import wal

PAGE = 512
"""What it writes or loses at a time."""


@contextmanager
def limited(size: int) -> Iterator[None]:
    """Let no file of this process grow over this, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


class FailingDisk:
    """Says of each flush what ``fails`` says; as Linux does, it takes what it could not write for written.

    ``kept`` is what would be there after the power was cut, of the log: the database itself is flushed by SQLite.
    """

    def __init__(self, monkeypatch, file: Path) -> None:
        self.file, self.log = file, file.with_name(f"{file.name}-wal")
        self.fails: OSError | None = None
        self.kept = b""
        self.flushes = 0
        self._lost: set[int] = set()
        self._put = os.pwrite
        monkeypatch.setattr(wal, "_flush", self.flush)
        monkeypatch.setattr(wal.os, "pwrite", self.write)

    def flush(self, descriptor: int) -> None:
        self.flushes += 1
        now = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
        pages = range(-(-len(now) // PAGE))
        if self.fails is not None:
            self._lost |= {page for page in pages if cut(now, page) != cut(self.kept, page)}
            raise self.fails
        self.kept = b"".join(cut(self.kept if page in self._lost else now, page).ljust(PAGE, b"\0") for page in pages)

    def write(self, descriptor: int, raw: bytes, at: int) -> int:
        """Write as the collector does, which makes pages to be written of those that were lost."""
        self._lost -= set(range(at // PAGE, -(-(at + len(raw)) // PAGE)))
        return self._put(descriptor, raw, at)

    def forget(self) -> None:
        """Give up the memory of what could not be written, as some file systems do at once."""
        with self.log.open("r+b") as log:
            for page in self._lost:
                log.seek(page * PAGE)
                log.write(cut(self.kept, page).ljust(PAGE, b"\0"))

    def after_a_cut(self, folder: Path) -> Path:
        """Return a copy of the store as it is on disk."""
        folder.mkdir()
        shutil.copy(self.file, folder / self.file.name)
        (folder / self.log.name).write_bytes(self.kept)
        return folder / self.file.name


def cut(raw: bytes, page: int) -> bytes:
    return raw[page * PAGE : (page + 1) * PAGE]
