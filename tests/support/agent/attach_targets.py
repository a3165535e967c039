"""Processes to attach to, and what they say of themselves."""

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from support import PROGRAMS, warm

WAIT_S = 120

Typed = Callable[..., tuple[int, str, str]]

# Of any version, with nothing but its own modules: looks as if it had torch, once it has mapped a file of that name.
LOOP = """
import mmap, sys, threading, time
file = open(sys.argv[1])
mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
def idle():
    while True:
        sum(range(200)); time.sleep(0.005)
for number in range(3):
    threading.Thread(target=idle, daemon=True).start()
print('ready', flush=True)
# waits
while True:
    idle.count = getattr(idle, 'count', 0) + 1
    time.sleep(0.002)
"""


def mapped(folder: Path) -> Path:
    """Return a file that stands for torch's library, by its name."""
    file = folder / "libtorch_cpu.so"
    file.write_bytes(b"\0" * 4096)
    return file


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


class Training:
    """``joined_training.py`` in a process of its own."""

    def __init__(self, folder: Path, env: dict[str, str] | None = None) -> None:
        folder.mkdir()
        self.folder = folder
        script = PROGRAMS / "joined_training.py"
        self.process = warm.Process(warm.TRAINING, [str(script), str(folder)], {**os.environ, **(env or {})})
        self.pid = self.process.pid
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read)  # a full pipe would hold the training
        self._reader.start()

    def _read(self) -> None:
        with self.process.stdout as lines:
            self._lines.extend(lines)

    @property
    def steps(self) -> int:
        """How many it has made."""
        file = self.folder / "step"
        return int(file.read_text()) if file.exists() else 0

    def go_on(self, steps: int = 20) -> None:
        """Let it make so many steps."""
        reached = self.steps + steps
        until(lambda: self.steps >= reached or self.process.poll() is not None)
        assert self.process.poll() is None

    def seen(self) -> dict[str, object]:
        """Return what hangs on torch and on the process, as it sees it itself."""
        (self.folder / "look").touch()
        until((self.folder / "seen").exists)
        found = json.loads((self.folder / "seen").read_text())
        (self.folder / "seen").unlink()
        return found

    def is_as(self, before: dict[str, object]) -> bool:
        """Say whether it is as it was; a thread that tried for it to be let in may need a moment to end."""
        until(lambda: self.seen()["tasks"] == before["tasks"])
        return self.seen() == before

    def ended(self, step: int | None = None) -> tuple[int, str, str]:
        """Let it end soon, or after that step; return steps, digest, and what else it said."""
        (self.folder / "fast").touch()
        (self.folder / "stop").write_text(str(self.steps if step is None else step))
        assert self.process.wait(WAIT_S + (step or 0) / 50) == 0, self._lines
        self._reader.join()
        *said, last = self._lines
        steps, digest = last.split()
        return int(steps), digest, "".join(said)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(9)
            self.process.wait(WAIT_S)
        self._reader.join()


@contextmanager
def training(folder: Path, env: dict[str, str] | None = None) -> Iterator[Training]:
    """Start a training; it does not outlive the block."""
    started = Training(folder, env)
    try:
        until(lambda: started.steps or started.process.poll() is not None)
        yield started
    finally:
        started.kill()


@contextmanager
def program(*words: str, **options: object) -> Iterator["subprocess.Popen[str]"]:
    """Start a program that is in its main part once it has printed a line."""
    process = subprocess.Popen([*words], stdout=subprocess.PIPE, text=True, **options)
    try:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield process
    finally:
        process.kill()
        with process:
            process.wait()
