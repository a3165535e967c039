"""What is handed to the process: a folder of its user's own, and in it a file that lets the request in as long as it is
there. Who takes it away first, the process or the one who gave up waiting, has decided."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gradcanary
from gradcanary import naming
from gradcanary.attach.processes import Process


class AttachError(Exception):
    """It cannot be done, or was not; the message says why, and what to do. The process is as it was."""


class AlreadyAttachedError(AttachError):
    """Somebody has attached to it before; ``launch`` is that of its watch, None as long as it waits for a step."""

    def __init__(self, message: str, launch: str | None) -> None:
        super().__init__(message)
        self.launch = launch


PATIENCE_S = 5.0
LONGEST = 1 << 20


def send_request(path: Path, asked: dict[str, Any], timeout_s: float = PATIENCE_S) -> dict[str, Any] | None:
    """Return the answer of the process that listens there, None where nobody does (any more).

    Raises TimeoutError where it takes longer.
    """
    with socket.socket(socket.AF_UNIX) as door:
        door.settimeout(timeout_s)
        try:
            door.connect(str(path))
            write_message(door, asked)
            return read_message(door)
        except TimeoutError:
            raise
        except BlockingIOError as error:  # as many wait there as may
            raise TimeoutError from error
        except (OSError, ValueError):
            return None


def write_message(door: socket.socket, said: dict[str, Any]) -> None:
    """Say one thing."""
    door.sendall(json.dumps(said).encode() + b"\n")


def read_message(door: socket.socket) -> dict[str, Any]:
    """Return one thing that is said; raises ValueError on anything else."""
    held = b""
    while not held.endswith(b"\n"):
        part = door.recv(65536)
        if not part or len(held) > LONGEST:
            raise ValueError("not a whole answer")
        held += part
    said = json.loads(held)
    if not isinstance(said, dict):
        raise ValueError("not an object")  # noqa: TRY004 -- as all that is no message
    return said


PACKAGE = Path(gradcanary.__file__).parent

# The main thread runs this in the process's __main__, whose names may be anything and where no name may be left. That
# takes microseconds: all that takes longer runs in a thread, where no handler of a signal runs that could raise.
LINE = """\
try:
    if __import__("os").access({gate!r}, 4):
        __import__("_thread").start_new_thread(__import__("builtins").exec, ({opening!r}, {{"gate": {gate!r}}}))
except __import__("builtins").BaseException:
    pass
"""

OPENING = """\
try:
    with open(gate, encoding="utf-8") as file:
        text = file.read()
except OSError:  # withdrawn in this moment
    text = ""
exec(compile(text, "<gradcanary>", "exec"), {"__name__": "gradcanary_arrival"})
"""

ABANDONED_S = 86400.0
"""After which a request is one of somebody who was killed as he waited."""

UNDER_WAY = "somebody is attaching to process {pid} just now, or it hangs: gradcanary ps tells when that is over"
NOT_MADE = "{folder} cannot be made: {why}. Remove what is there, or have its owner do so, and try again"
NOT_OURS = "{folder} is not a folder of yours alone: remove it, or have its owner do so, and try again"


def home(uid: int) -> Path:
    """Return the folder of a user's attached processes; both sides have to find it, whatever their TMPDIR is."""
    # A /tmp may be shared by containers, in which ids mean other processes.
    space = os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116 -- follows the link
    return Path(f"/tmp/gradcanary-{uid}-{space}")  # noqa: S108 -- made for its user alone, and checked


def make_home(uid: int) -> Path:
    """Return that folder, made, without what processes that have ended left in it; raises AttachError where somebody
    else has one of that name."""
    folder = home(uid)
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise AttachError(NOT_MADE.format(folder=folder, why=error.strerror)) from error
    check_home(uid)
    for left in folder.iterdir():
        pid, _, started = left.name.partition("-")
        if pid.isdigit() and naming.started(int(pid)) != started.partition(".")[0]:
            left.unlink(missing_ok=True)
        elif pid == "request" and time.time() - left.lstat().st_mtime > ABANDONED_S:
            shutil.rmtree(left, ignore_errors=True)
    return folder


def check_home(uid: int) -> None:
    """Raise AttachError where somebody else could have put a socket there; one that is not there holds none."""
    folder = home(uid)
    try:
        found = folder.lstat()
    except OSError:
        return
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid or found.st_mode & 0o077:
        raise AttachError(NOT_OURS.format(folder=folder))


def socket_of(uid: int, pid: int, started: str) -> Path:
    """Return where an attached process listens; a later process of the same id listens elsewhere."""
    return home(uid) / f"{pid}-{started}"


@contextmanager
def held(process: Process) -> Iterator[None]:
    """Have one process be attached to by nobody else meanwhile; raises AttachError where somebody does."""
    path = make_home(process.uid) / f"{process.pid}-{process.started}.lock"
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AttachError(UNDER_WAY.format(pid=process.pid)) from None
        if not path.exists() or not os.path.samestat(path.stat(), os.fstat(file.fileno())):
            raise AttachError(UNDER_WAY.format(pid=process.pid))
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


class Gate:
    """A request to one process, open until it is let in or withdrawn."""

    def __init__(self, request: dict[str, Any], uid: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="request-", dir=make_home(uid)))
        self.file = self.folder / "gate"
        asked = {**request, "gate": str(self.file), "folder": str(self.folder), "package": str(PACKAGE)}
        bootstrap = (PACKAGE / "attach" / "bootstrap.py").read_text(encoding="utf-8")
        self.file.write_text(f"{bootstrap}\n\nenter(json.loads({json.dumps(asked)!r}))\n", encoding="utf-8")

    @property
    def line(self) -> str:
        """The line of Python for the process: it never raises, and does nothing once the gate is closed."""
        return LINE.format(gate=str(self.file), opening=OPENING)

    def close(self) -> bool:
        """Withdraw the request; False where it was let in before."""
        try:
            self.file.unlink()
        except FileNotFoundError:
            return False
        return True

    def answer(self) -> dict[str, Any] | None:
        """Return what the process said, None as long as it said nothing."""
        try:
            said: dict[str, Any] = json.loads((self.folder / "answer").read_text(encoding="utf-8"))
        except OSError:
            return None
        return said

    def place(self) -> str:
        """Return what was in the way when it last tried."""
        try:
            return (self.folder / "place").read_text(encoding="utf-8")
        except OSError:
            return ""

    def clear(self) -> None:
        """Leave nothing of it."""
        shutil.rmtree(self.folder, ignore_errors=True)
