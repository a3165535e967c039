"""Disks for SQLite: one that is full, and one whose flushes fail, lose what they should keep, or wait.

SQLite reads, writes and flushes by a table of functions for each open file. :func:`install` puts functions of our own
into these tables, for the SQLite that Python uses.
"""

import _sqlite3
import ctypes
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import CFUNCTYPE, POINTER, Structure, byref, c_char_p, c_int, c_int64, c_void_p
from pathlib import Path

PAGE = 4096

OK, IOERR_FSYNC = 0, 1034


@contextmanager
def limited(size: int) -> Iterator[None]:
    """Let no file of this process grow over this, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


class Disk:
    """Keeps what is flushed: ``kept`` is what a power cut would leave of each file.

    While ``fails`` each flush fails. As Linux does, the disk takes what it could not write for written: a later flush
    that succeeds does not keep these pages, unless they are written again. While ``loses``, the memory of such pages
    goes as well, as on some file systems.
    """

    def __init__(self) -> None:
        self.fails = self.loses = False
        self.ill = ""  # only files whose names end so fail
        self.kept: dict[str, bytes] = {}
        self.flushed: list[str] = []
        self._lost: dict[str, set[int]] = {}
        self._lock = threading.RLock()

    def flush(self, file: "File") -> int:
        """Answer a flush with a number of SQLite's."""
        with self._lock:
            self.flushed.append(file.path)
            now, kept = file.content(), self.kept.get(file.path, b"")
            lost = self._lost.setdefault(file.path, set())
            pages = range(-(-len(now) // PAGE))
            if (self.fails or self.loses) and file.path.endswith(self.ill):
                lost |= {page for page in pages if _page(now, page) != _page(kept, page)}
                for page in lost if self.loses else ():
                    file.put(_page(kept, page), page * PAGE)
                return IOERR_FSYNC
            whole = b"".join(_page(kept if page in lost else now, page) for page in pages)
            self.kept[file.path] = whole[: len(now)]
            return OK

    def note_open(self, file: "File") -> None:
        """What a file holds when it is opened for the first time is on disk; a new file of an old name is empty."""
        with self._lock:
            content = file.content()
            if not content or file.path not in self.kept:
                self.kept[file.path], self._lost[file.path] = content, set()

    def note_write(self, path: str, size: int, offset: int) -> None:
        """These pages are to be written at the next flush, whatever became of them before."""
        with self._lock:
            self._lost.get(path, set()).difference_update(range(offset // PAGE, -(-(offset + size) // PAGE)))

    def after_a_cut(self, file: Path, folder: Path) -> Path:
        """Return a copy of a store as a power cut would leave it."""
        folder.mkdir()
        for path in (file, file.with_name(f"{file.name}-wal")):
            if path.exists() and str(path) in self.kept:
                (folder / path.name).write_bytes(self.kept[str(path)])
        return folder / file.name


def _page(raw: bytes, page: int) -> bytes:
    return raw[page * PAGE : (page + 1) * PAGE].ljust(PAGE, b"\0")


# -- https://www.sqlite.org/c3ref/vfs.html and https://www.sqlite.org/c3ref/io_methods.html ----------------------------

_Sync = CFUNCTYPE(c_int, c_void_p, c_int)
_Read = CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_int64)
_Size = CFUNCTYPE(c_int, c_void_p, POINTER(c_int64))
_Open = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_int, c_void_p)  # SQLite keeps the name: no copy of it


class _Methods(Structure):
    _fields_ = [
        ("version", c_int),
        ("close", c_void_p),
        ("read", _Read),
        ("write", _Read),
        ("truncate", c_void_p),
        ("sync", _Sync),
        ("size", _Size),
        ("rest", c_void_p * 12),
    ]


class _OpenFile(Structure):
    _fields_ = [("methods", POINTER(_Methods))]


class _Vfs(Structure):
    _fields_ = [
        ("version", c_int),
        ("size", c_int),
        ("longest_path", c_int),
        ("next", c_void_p),
        ("name", c_char_p),
        ("data", c_void_p),
        ("open", c_void_p),
    ]


class File:
    """An open file of SQLite's, by the functions that it had."""

    def __init__(self, path: str, pointer: int, methods: _Methods) -> None:
        self.path, self._pointer, self._methods = path, pointer, methods

    def content(self) -> bytes:
        size = c_int64()
        assert self._methods.size(self._pointer, byref(size)) == OK
        raw = ctypes.create_string_buffer(max(size.value, 1))
        assert self._methods.read(self._pointer, raw, size.value, 0) == OK
        return raw.raw[: size.value]

    def put(self, raw: bytes, offset: int) -> None:
        assert self._methods.write(self._pointer, raw, len(raw), offset) == OK


@contextmanager
def installed(disk: Disk) -> Iterator[Disk]:
    """Let each file that SQLite opens in this process lie on the disk; those that are open at the end stay on it."""
    sqlite = ctypes.CDLL(_sqlite3.__file__)
    sqlite.sqlite3_vfs_find.restype = POINTER(_Vfs)
    vfs = sqlite.sqlite3_vfs_find(None).contents
    plain_address = vfs.open
    plain, files, tables = _Open(plain_address), {}, []

    def sync(pointer: int, flags: int) -> int:
        answer = disk.flush(files[pointer])
        return answer or files[pointer]._methods.sync(pointer, flags)

    def write(pointer: int, raw: int, size: int, offset: int) -> int:
        disk.note_write(files[pointer].path, size, offset)
        return files[pointer]._methods.write(pointer, raw, size, offset)

    def open_file(vfs_pointer: int, name: int | None, pointer: int, flags: int, answered: int) -> int:
        answer = plain(vfs_pointer, name, pointer, flags, answered)
        opened = ctypes.cast(pointer, POINTER(_OpenFile)).contents
        if answer == OK and name is not None and opened.methods:
            methods = _Methods.from_buffer_copy(opened.methods.contents)
            files[pointer] = File(ctypes.string_at(name).decode(), pointer, _Methods.from_buffer_copy(methods))
            disk.note_open(files[pointer])
            methods.sync, methods.write = kept_sync, kept_write
            tables.append(methods)
            opened.methods = ctypes.pointer(methods)
        return answer

    kept_sync, kept_write, kept_open = _Sync(sync), _Read(write), _Open(open_file)
    tables += [kept_sync, kept_write, kept_open]  # SQLite calls them as long as a file is open
    _FOR_EVER.append(tables)
    vfs.open = ctypes.cast(kept_open, c_void_p).value
    try:
        yield disk
    finally:
        vfs.open = plain_address


_FOR_EVER: list[list[object]] = []
