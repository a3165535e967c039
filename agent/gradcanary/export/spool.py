"""Batches that wait on disk for a collector that is away, from this process or for ``gradcanary sync``.

Each session has a folder, made when a delivery fails for the first time and deleted when the collector has all of it:

- ``hello.json``: the run, the session, the collector's address and the hello.
- ``000001.seg``, ``000002.seg``, ...: batches, each after a header with its length and its checksum. A segment is only
  appended to. A record that was cut off by the end of its process is left out.
- ``acked``: what the collector has, written in place. The process that uses the folder holds a lock on this file.
- ``end.json``: how the session ended.

A write does not wait for the disk: it survives the process, not surely a crash of the machine.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shlex
import shutil
import struct
import tempfile
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from gradcanary import identity

try:
    import fcntl
except ImportError:  # Windows: batches wait in memory there
    fcntl = None  # type: ignore[assignment]  # mypy knows this system only

LIMIT_BYTES = 256 * 2**20
MAX_SEGMENTS = 64
"""In a full spool: a segment has 4 MB."""

CHECKED_BYTES = 2**20
"""Are written to find out if a folder takes files: a full disk or quota takes a few bytes."""

SUFFIX, UNREADY, GONE = ".spool", ".spool.new", ".spool.gone"
"""Ends of the name of a spool, of one that is being made, and of one that is being deleted."""

ABANDONED_S = 60.0
"""To make or to delete a folder takes milliseconds; after this time its process was killed meanwhile."""

SEGMENT = "{:06}.seg"
FORMAT = 1
"""Of the folder; another version of gradcanary may write another one."""

MAX_COUNTED = 100
"""Unsent sessions: a launcher that restarts a job for a week leaves thousands."""

ONE_UNSENT = "1 earlier session waits here to be sent: gradcanary sync {folder}"
SOME_UNSENT = "{count} earlier sessions wait here to be sent: gradcanary sync {folder}"

_RECORD = struct.Struct("<IIIQ")
"""Before each batch: the checksum of all that follows, the bytes of the batch, its steps, ``made``."""

_ACKED = struct.Struct("<QQQQQ")
"""A segment, how many of its records are done (as are all segments before it), and a :class:`Progress`."""

_open: set[Spool] = set()


class SpoolError(Exception):
    """A spool cannot be used; the message is the reason."""


class LockedError(SpoolError):
    """Another process uses the spool."""


@dataclass(frozen=True)
class StoredBatch:
    """A batch as bytes. ``made`` counts the sampled steps of the session up to its last one, dropped ones included."""

    body: bytes
    steps: int
    made: int


@dataclass(frozen=True)
class Progress:
    """What the collector has: the next batch number, the steps delivered, the dropped steps that were reported."""

    next_seq: int = 0
    delivered: int = 0
    reported: int = 0


@dataclass
class _Segment:
    """A file of records, and what of it waits."""

    path: Path
    count: int = 0
    steps: int = 0
    size: int = 0

    def add(self, batch: StoredBatch, sign: int = 1) -> None:
        self.count += sign
        self.steps += sign * batch.steps
        self.size += sign * (_RECORD.size + len(batch.body))


def default_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of all spools; raises RuntimeError for a user without a home."""
    if environ.get("GRADCANARY_SPOOL"):
        return Path(environ["GRADCANARY_SPOOL"])
    state = environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "gradcanary" / "spool"


def expendable_positions(count: int) -> range:
    """Return the positions that a full store gives up: every second one of the oldest half, never the first or last."""
    return range(1, max(count // 2, 2), 2) if count > 2 else range(0)


class Spool:
    """The folder of one session. Methods raise OSError if it cannot be read or written."""

    def __init__(self, path: Path, lock: int, text: bytes) -> None:
        """``lock`` is the open and locked file ``acked``; ``text`` is the content of ``hello.json``."""
        about = json.loads(text)
        if about["format"] != FORMAT:
            raise SpoolError("another version of gradcanary wrote it")
        self.path, self.limit = path, LIMIT_BYTES
        self.run, self.session, self.url = str(about["run"]), str(about["session"]), str(about["url"])
        self.hello = about["hello"].encode()
        self.ending: bytes | None = None
        self.made = 0
        self._lock, self._writer = lock, -1
        self._segments: list[_Segment] = []
        self._loaded: deque[StoredBatch] = deque()
        """The first segment, once a batch of it was needed; from then on it is not written to."""
        self._last_number, self._done, *progress = _ACKED.unpack(os.pread(lock, _ACKED.size, 0))
        self.progress = Progress(*progress)
        self._find_segments()
        _open.add(self)

    @classmethod
    def create(cls, parent: Path, run: str, session: str, url: str, hello: bytes, progress: Progress) -> Spool:
        """Make the folder of a session; raises OSError if that is not possible."""
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = parent / f"{run}.{session}{SUFFIX}"
        unready = path.with_suffix(UNREADY)  # renamed once it is complete and locked
        unready.mkdir(mode=0o700)
        with contextlib.ExitStack() as undo:
            undo.callback(shutil.rmtree, unready, ignore_errors=True)
            lock = os.open(unready / "acked", os.O_CREAT | os.O_RDWR, 0o600)
            undo.callback(os.close, lock)
            _take_lock(lock)
            _write_all(lock, _ACKED.pack(0, 0, progress.next_seq, progress.delivered, progress.reported))
            text = _hello_json(run, session, url, hello)
            _replace_file(unready / "hello.json", text)
            unready.rename(path)
            spool = cls(path, lock, text)
            undo.pop_all()
        return spool

    @classmethod
    def open(cls, path: Path) -> Spool:
        """Open the spool of a process that has ended; raises SpoolError."""
        try:
            with contextlib.ExitStack() as undo:
                lock = os.open(path / "acked", os.O_RDWR)
                undo.callback(os.close, lock)
                _take_lock(lock)
                spool = cls(path, lock, (path / "hello.json").read_bytes())
                undo.callback(_open.discard, spool)
                if (path / "end.json").exists():
                    found = json.loads((path / "end.json").read_bytes())
                    spool.ending, spool.made = found["end"].encode(), int(found["made"])
                undo.pop_all()
        except BlockingIOError as error:
            raise LockedError("a process that is running has it") from error
        except (OSError, ValueError, LookupError, TypeError, AttributeError, struct.error) as error:
            raise SpoolError(f"it is damaged ({error})") from error
        return spool

    @property
    def count(self) -> int:
        """Batches that wait."""
        return sum(segment.count for segment in self._segments)

    @property
    def size(self) -> int:
        """Bytes that wait."""
        return sum(segment.size for segment in self._segments)

    @property
    def steps(self) -> int:
        """Sampled steps that wait."""
        return sum(segment.steps for segment in self._segments)

    def append(self, batch: StoredBatch) -> None:
        """Store a batch after all others, and make room for it."""
        self._require_open()
        if self._writer < 0 or self._segments[-1].size >= self.limit // MAX_SEGMENTS:
            self._begin_segment()
        segment = self._segments[-1]
        checked = _RECORD.pack(0, len(batch.body), batch.steps, batch.made)[4:] + batch.body
        try:
            _write_all(self._writer, zlib.crc32(checked).to_bytes(4, "little") + checked)
        except OSError:
            with contextlib.suppress(OSError):  # then readers leave the record out, as damaged
                os.ftruncate(self._writer, segment.size)
            raise
        segment.add(batch)
        self.made = batch.made
        while self.size > self.limit and (positions := expendable_positions(len(self._segments))):
            for position in reversed(positions):
                self._segments.pop(position).path.unlink()

    def first(self) -> StoredBatch | None:
        """Return the oldest batch. After a damaged record the rest of its segment is left out."""
        while self._segments:
            if not self._loaded:
                if len(self._segments) == 1:
                    self._close_writer()
                self._loaded.extend(_read_segment(self._segments[0].path)[self._done :])
            if self._loaded:
                return self._loaded[0]
            self._remove_first_segment()
        return None

    def pop(self, progress: Progress) -> None:
        """Remove the oldest batch, which was delivered or given up, and keep the progress."""
        self.progress = progress
        if (batch := self.first()) is None:
            return
        self._loaded.popleft()
        self._segments[0].add(batch, -1)
        self._done += 1
        numbers = (progress.next_seq, progress.delivered, progress.reported)
        # Before the file of the segment goes: its batches must not be numbered again.
        os.pwrite(self._lock, _ACKED.pack(int(self._segments[0].path.stem), self._done, *numbers), 0)
        if not self._loaded:
            self._remove_first_segment()

    def set_hello(self, hello: bytes) -> None:
        """Keep the present hello."""
        self._require_open()
        _replace_file(self.path / "hello.json", _hello_json(self.run, self.session, self.url, hello))
        self.hello = hello

    def end(self, ending: bytes, made: int) -> None:
        """Keep how the session ended, and how many sampled steps it had."""
        self._require_open()
        _replace_file(self.path / "end.json", json.dumps({"end": ending.decode(), "made": made}).encode())
        self.ending, self.made = ending, made

    def close(self) -> None:
        """Close the files and release the lock; the folder stays."""
        _open.discard(self)
        self._close_writer()
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)

    def delete(self) -> None:
        """Remove the folder."""
        self._require_open()
        gone = self.path.with_suffix(GONE)
        with contextlib.suppress(OSError):  # its parent is read-only now; nothing in it waits
            self.path.rename(gone)  # first, so that no process finds the half of it
            shutil.rmtree(gone, ignore_errors=True)
        self.close()

    def _require_open(self) -> None:
        """Raise OSError after :meth:`close`, as in a forked child: the folder belongs to another process then."""
        if self._lock < 0:
            raise OSError(errno.EBADF, "the spool is closed")

    def _find_segments(self) -> None:
        first = self._last_number
        for path in sorted(self.path.glob("*.seg")):
            self._last_number = max(self._last_number, int(path.stem))
            batches = _read_segment(path)[self._done if int(path.stem) == first else 0 :]
            if int(path.stem) < first or not batches:
                path.unlink()
                continue
            self._segments.append(_Segment(path))
            for batch in batches:
                self._segments[-1].add(batch)
                self.made = batch.made
        if not self._segments or int(self._segments[0].path.stem) > first:
            self._done = 0

    def _begin_segment(self) -> None:
        self._close_writer()
        self._last_number += 1
        segment = _Segment(self.path / SEGMENT.format(self._last_number))
        self._writer = os.open(segment.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND, 0o600)
        self._segments.append(segment)

    def _remove_first_segment(self) -> None:
        self._done = 0
        self._loaded.clear()
        self._segments.pop(0).path.unlink(missing_ok=True)

    def _close_writer(self) -> None:
        # Forgotten before it is closed: a child that is forked meanwhile must not close another file of this number.
        writer, self._writer = self._writer, -1
        if writer >= 0:
            os.close(writer)


def report_unsent(environ: Mapping[str, str], print_once: Callable[[str], None]) -> None:
    """Print the number of sessions that wait and have no process, in the first process of a machine.

    The folder may be on a network and hang: this is called in the sender's thread.
    """
    local = environ.get("LOCAL_RANK") or environ.get("SLURM_LOCALID")
    if (local or str(identity.rank_and_world_size(environ)[0])) != "0":
        return
    try:
        parent = default_folder(environ)
    except RuntimeError:
        return  # a user without a home, as often in a container, has no such folder
    remove_abandoned(parent)
    count = sum(1 for _ in islice(find_unsent(parent), MAX_COUNTED))
    if count:
        number = f"{count}" if count < MAX_COUNTED else f"{count} and more"
        print_once((ONE_UNSENT if count == 1 else SOME_UNSENT).format(count=number, folder=shlex.quote(str(parent))))


def find_unsent(parent: Path) -> Iterator[Path]:
    """Yield the spools of processes that have ended. Nothing in them is changed."""
    return filter(_is_unsent, parent.glob(f"*{SUFFIX}"))


def existing_parent(folder: Path) -> Path:
    """Return the folder, or the next one above it that exists."""
    return next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())


def check_folder(folder: Path) -> None:
    """Raise OSError if no spool can be kept in a folder, which need not exist; leaves nothing there."""
    with tempfile.TemporaryFile(dir=existing_parent(folder)) as file:
        _take_lock(file.fileno())
        _write_all(file.fileno(), bytes(CHECKED_BYTES))


def remove_abandoned(parent: Path) -> None:
    """Remove the folders that a killed process did not finish making or deleting."""
    for path in (*parent.glob(f"*{UNREADY}"), *parent.glob(f"*{GONE}")):
        with contextlib.suppress(OSError):  # another process removes it, too
            if time.time() - path.stat().st_mtime > ABANDONED_S:
                shutil.rmtree(path, ignore_errors=True)


def _is_unsent(path: Path) -> bool:
    """Return True if no process holds the lock of a spool. Nothing in it is changed."""
    try:
        file = os.open(path / "acked", os.O_RDONLY)
    except OSError:
        return False
    try:
        _take_lock(file, is_shared=True)
    except OSError:
        return False
    finally:
        os.close(file)
    return True


def _read_segment(path: Path) -> list[StoredBatch]:
    """Return the batches of a segment up to one that is cut off or damaged."""
    raw, found, at = path.read_bytes(), [], 0
    while at + _RECORD.size <= len(raw):
        checksum, size, steps, made = _RECORD.unpack_from(raw, at)
        end = at + _RECORD.size + size
        if end > len(raw) or zlib.crc32(memoryview(raw)[at + 4 : end]) != checksum:
            break
        found.append(StoredBatch(raw[at + _RECORD.size : end], steps, made))
        at = end
    return found


def _hello_json(run: str, session: str, url: str, hello: bytes) -> bytes:
    about = {"format": FORMAT, "run": run, "session": session, "url": url, "hello": hello.decode()}
    return json.dumps(about).encode()


def _replace_file(path: Path, content: bytes) -> None:
    """Write a file as a whole, or leave it as it was."""
    fresh = path.with_name(path.name + ".new")
    fresh.write_bytes(content)
    fresh.replace(path)


def _write_all(file: int, content: bytes) -> None:
    if os.write(file, content) < len(content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _take_lock(file: int, *, is_shared: bool = False) -> None:
    """Lock a file until it is closed; raises BlockingIOError if another process has it."""
    if fcntl is None:
        raise OSError(errno.ENOSYS, "this system has no file locks")
    fcntl.flock(file, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)


def _close_in_child() -> None:
    """In a forked child: close the files, so that it writes nothing and does not hold the lock of its parent."""
    for spool in list(_open):
        spool.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
