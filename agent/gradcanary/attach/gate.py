"""What is handed to the process: a folder of its user's own, and in it a file that lets the request in as long as it is
there. Who takes it away first, the process or the one who gave up waiting, has decided."""

from __future__ import annotations

import json
import shutil
import stat
import tempfile
import time
from pathlib import Path
from typing import Any

import gradcanary
from gradcanary import naming
from gradcanary.attach import arrival
from gradcanary.attach.errors import AttachError

PACKAGE = Path(gradcanary.__file__).parent

# Run in the process's __main__, whose names may be anything, and where no name may be left behind, nor a warning
# of a file that was not closed.
LINE = """\
try:
    __import__("builtins").exec(
        __import__("builtins").compile(
            __import__("pathlib").Path({gate!r}).read_text("utf-8"), "<gradcanary>", "exec"
        ),
        {{"__name__": "gradcanary_arrival", "__file__": "<gradcanary>"}},
    )
except __import__("builtins").BaseException:
    pass
"""

ABANDONED_S = 86400.0
"""After which a request is one of somebody who was killed as he waited."""

NOT_OURS = "{folder} is not a folder of yours alone: remove it, or have its owner do so, and try again"


def home(uid: int) -> Path:
    """Return the folder of a user's attached processes; both sides have to find it, whatever their TMPDIR is."""
    return Path(f"/tmp/gradcanary-{uid}")  # noqa: S108 -- made for its user alone, and checked


def make_home(uid: int) -> Path:
    """Return that folder, made, without what processes that have ended left in it; raises AttachError where somebody
    else has one of that name."""
    folder = home(uid)
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid or found.st_mode & 0o077:
        raise AttachError(NOT_OURS.format(folder=folder))
    for left in folder.iterdir():
        pid, _, started = left.name.partition("-")
        if pid.isdigit() and naming.started(int(pid)) != started:
            left.unlink(missing_ok=True)
        elif pid == "request" and time.time() - left.lstat().st_mtime > ABANDONED_S:
            shutil.rmtree(left, ignore_errors=True)
    return folder


def socket_of(uid: int, pid: int, started: str) -> Path:
    """Return where an attached process listens; a later process of the same id listens elsewhere."""
    return home(uid) / f"{pid}-{started}"


class Gate:
    """A request to one process, open until it is let in or withdrawn."""

    def __init__(self, request: dict[str, Any], uid: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="request-", dir=make_home(uid)))
        self.file = self.folder / "gate"
        asked = {**request, "gate": str(self.file), "folder": str(self.folder), "package": str(PACKAGE)}
        source = Path(arrival.__file__).read_text(encoding="utf-8")
        self.file.write_text(f"{source}\n\nenter(json.loads({json.dumps(asked)!r}))\n", encoding="utf-8")

    @property
    def line(self) -> str:
        """The line of Python for the process: it never raises, and does nothing once the gate is closed."""
        return LINE.format(gate=str(self.file))

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
        """Leave nothing of it. What the process may still be about to read is only missed."""
        shutil.rmtree(self.folder, ignore_errors=True)
