"""A request to another process, and the socket to an attached one.

A request is a program in a folder of its user's own. The process accepts it by removing the file; the command withdraws
it in the same way. So the one that removes the file first has decided.
"""

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
from gradcanary import identity
from gradcanary.attach.processes import Process

PACKAGE = Path(gradcanary.__file__).parent

# The main thread runs this in the process's __main__, whose names may be anything and where no name may be left. That
# takes microseconds: all that takes longer runs in a thread, where no handler of a signal runs that could raise.
LINE = """\
try:
    if __import__("os").access({file!r}, 4):
        __import__("_thread").start_new_thread(__import__("builtins").exec, ({opening!r}, {{"program": {file!r}}}))
except __import__("builtins").BaseException:
    pass
"""

OPENING = """\
try:
    with open(program, encoding="utf-8") as file:
        text = file.read()
except OSError:  # withdrawn in this moment
    text = ""
exec(compile(text, "<gradcanary>", "exec"), {"__name__": "gradcanary_bootstrap"})
"""

ABANDONED_S = 86400.0
"""A request of this age is one of a command that was killed."""

PATIENCE_S = 5.0
"""For an attached process to answer."""

MAX_MESSAGE_BYTES = 1 << 20

UNDER_WAY = "another command is attaching to process {pid} just now, or it hangs: see gradcanary ps"
NOT_MADE = "{folder} cannot be made: {why}. Remove what is there, or have its owner do so, and try again"
NOT_OURS = "{folder} is not a folder of yours alone: remove it, or have its owner do so, and try again"


class AttachError(Exception):
    """An attach or detach failed; the message says why, and what to do. The process is as it was."""


class AlreadyAttachedError(AttachError):
    """The process is attached already. ``launch`` is that of its watch, None until its first step."""

    def __init__(self, message: str, launch: str | None) -> None:
        super().__init__(message)
        self.launch = launch


# -- the user's folder -----------------------------------------------------------------------------------------------


def user_folder(uid: int) -> Path:
    """Return the folder of a user's attached processes. It does not depend on TMPDIR: both sides have to find it."""
    # A /tmp may be shared by containers, in which ids mean other processes.
    namespace = os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116 -- follows the link
    return Path(f"/tmp/gradcanary-{uid}-{namespace}")  # noqa: S108 -- made for its user alone, and checked


def make_user_folder(uid: int) -> Path:
    """Make and return that folder, without the files of processes that have ended.

    Raises AttachError if another user has one of that name.
    """
    folder = user_folder(uid)
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise AttachError(NOT_MADE.format(folder=folder, why=error.strerror)) from error
    check_user_folder(uid)
    for file in folder.iterdir():
        pid, _, started = file.name.partition("-")
        if pid.isdigit() and identity.start_time(int(pid)) != started.partition(".")[0]:
            file.unlink(missing_ok=True)
        elif pid == "request" and time.time() - file.lstat().st_mtime > ABANDONED_S:
            shutil.rmtree(file, ignore_errors=True)
    return folder


def check_user_folder(uid: int) -> None:
    """Raise AttachError if another user could have put a socket there."""
    folder = user_folder(uid)
    try:
        found = folder.lstat()
    except OSError:
        return  # no folder holds no socket
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid or found.st_mode & 0o077:
        raise AttachError(NOT_OURS.format(folder=folder))


def socket_of(process: Process) -> Path:
    """Return where the process listens once it is attached; a later process of the same id listens elsewhere."""
    return user_folder(process.uid) / f"{process.pid}-{process.started}"


@contextmanager
def locked(process: Process) -> Iterator[None]:
    """Let no other command attach to the process meanwhile; raise AttachError if one does."""
    path = make_user_folder(process.uid) / f"{process.pid}-{process.started}.lock"
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


# -- the request -----------------------------------------------------------------------------------------------------


class Request:
    """A request to one process, open until the process accepts it or :meth:`withdraw`."""

    def __init__(self, fields: dict[str, Any], uid: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="request-", dir=make_user_folder(uid)))
        self.file = self.folder / "program"
        fields = {**fields, "file": str(self.file), "folder": str(self.folder), "package": str(PACKAGE)}
        bootstrap = (PACKAGE / "attach" / "bootstrap.py").read_text(encoding="utf-8")
        self.file.write_text(f"{bootstrap}\n\nbootstrap(json.loads({json.dumps(fields)!r}))\n", encoding="utf-8")

    @property
    def line(self) -> str:
        """The line of Python for the process: it never raises, and does nothing after the request has closed."""
        return LINE.format(file=str(self.file), opening=OPENING)

    def withdraw(self) -> bool:
        """Close the request; return False if the process has accepted it."""
        try:
            self.file.unlink()
        except FileNotFoundError:
            return False
        return True

    def answer(self) -> dict[str, Any] | None:
        """Return the outcome, None until there is one."""
        try:
            answer: dict[str, Any] = json.loads((self.folder / "answer").read_text(encoding="utf-8"))
        except OSError:
            return None
        return answer

    def blocked_by(self) -> str:
        """Return the location that blocked the last try."""
        try:
            return (self.folder / "blocked_by").read_text(encoding="utf-8")
        except OSError:
            return ""

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


# -- the socket: one JSON object each way ------------------------------------------------------------------------------


def send_request(path: Path, action: str, timeout_s: float | None = None) -> dict[str, Any] | None:
    """Return the answer to ``status`` or ``detach`` of the process that listens there, None if none does.

    Raises TimeoutError after ``timeout_s``, else ``PATIENCE_S``.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE_S if timeout_s is None else timeout_s)
        try:
            connection.connect(str(path))
            write_message(connection, {"do": action})
            return read_message(connection)
        except TimeoutError:
            raise
        except BlockingIOError as error:  # its queue of connections is full
            raise TimeoutError from error
        except (OSError, ValueError):
            return None


def read_status(process: Process) -> dict[str, Any] | None:
    """Return the status of an attached process, None of another one.

    Raises TimeoutError if it hangs, AttachError if another user could answer instead.
    """
    check_user_folder(process.uid)
    return send_request(socket_of(process), "status")


def write_message(connection: socket.socket, message: dict[str, Any]) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


def read_message(connection: socket.socket) -> dict[str, Any]:
    """Return the next message; raises ValueError on anything else."""
    received = b""
    while not received.endswith(b"\n"):
        part = connection.recv(65536)
        if not part or len(received) > MAX_MESSAGE_BYTES:
            raise ValueError("not a whole message")
        received += part
    message = json.loads(received)
    if not isinstance(message, dict):
        raise ValueError("not an object")  # noqa: TRY004 -- like everything else that is no message
    return message
