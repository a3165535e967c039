"""The trainings of the soak as processes: each is started, visited, ordered to end, and written down."""

import contextlib
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
from soaking.training import FAULT_STEP, FAULTY_STEPS, PAUSE_S, ROW

KINDS = ("healthy", "healthy", "collapse", "collapse", "nan", "crash", "killed", "attached")
LONG = ("healthy", "healthy", "attached", "attached")
"""These live as long as the soak: what they hold shows whether the agent leaks."""

COMMAND_S = 600.0


class Record:
    """Lines of JSON in a folder, a file for each sort."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, sort: str, **fields: object) -> None:
        """Append a line with the time."""
        with self._lock, (self.folder / f"{sort}.jsonl").open("a") as file:
            file.write(json.dumps({"at": time.time(), **fields}) + "\n")


def command(environ: dict[str, str], *words: str) -> tuple[int, str]:
    """Run ``gradcanary`` and return its status and what it printed."""
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "gradcanary.cli", *words],
            env=environ,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return -1, f"no end after {COMMAND_S:g} s"
    return ended.returncode, ended.stdout + ended.stderr


class Job:
    """One training, from its start to its end."""

    def __init__(self, folder: Path, kind: str, number: int, life_s: float, environ: dict[str, str]) -> None:
        self.kind, self.run, self.environ = kind, f"{kind}-{number:03}", environ
        self.folder = folder / self.run
        self.folder.mkdir(parents=True)
        self.until = time.monotonic() + life_s
        self.is_leaving = threading.Event()
        self.windows: list[dict[str, int | None]] = []
        self.visitor: threading.Thread | None = None
        self._random = random.Random(number)
        run = "" if kind == "attached" else self.run
        program = str(Path(__file__).with_name("training.py"))
        with (self.folder / "log").open("w") as log:
            self.process = psutil.Popen(
                [sys.executable, program, str(self.folder), kind, str(number), run],
                env=environ,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Linux shares its cores among sessions: one of 20 trainings would starve
            )

    @property
    def steps(self) -> int:
        """Steps whose gradients it has written down."""
        file = self.folder / "truth"
        return file.stat().st_size // ROW.size if file.exists() else 0

    @property
    def may_leave(self) -> bool:
        """Return True if nothing is left to see: the fault has been there for a while."""
        is_late = self.kind in ("collapse", "nan")
        return self.steps >= (FAULT_STEP + FAULTY_STEPS if is_late else 100)

    def visit(self, record: Record, calm: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
        """Attach and detach until the training leaves; every second time stay until its end."""
        self.visitor = threading.Thread(target=self._visit, args=(record, calm), daemon=True)
        self.visitor.start()

    def _visit(self, record: Record, calm: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
        while self.steps < 20 and self.process.is_running():
            time.sleep(0.5)
        while not self.is_leaving.wait(self._random.uniform(5, 30)):
            status, output = command(
                self.environ, "attach", str(self.process.pid), "--run", self.run, "--every", "1", "--url", self.url
            )
            record.write("attaches", run=self.run, what="attach", status=status, output=output)
            if status != 0:
                continue
            window: dict[str, int | None] = {"begin": self.steps, "end": None}
            self.windows.append(window)
            if self.is_leaving.wait(self._random.uniform(30, 150)) and self._random.random() < 0.5:
                return
            with calm():
                window["end"] = self.steps - 1
                status, output = command(self.environ, "detach", str(self.process.pid))
            record.write("attaches", run=self.run, what="detach", status=status, output=output)

    @property
    def url(self) -> str:
        """Of the collector."""
        return self.environ["GRADCANARY_URL"]

    def order(self, record: Record, spool: Path) -> None:
        """Let the training end in the way of its kind, and write down how it ended."""
        seen = None
        if self.kind == "killed":
            with contextlib.suppress(httpx.HTTPError):
                seen = httpx.get(f"{self.url}/api/v1/runs/{self.run}", timeout=5).raise_for_status().json()["step"]
            self.process.kill()
        else:
            (self.folder / ("crash" if self.kind == "crash" else "finish")).touch()
        at = time.time()
        try:
            status = self.process.wait(60 + (FAULT_STEP + FAULTY_STEPS) * PAUSE_S)
        except psutil.TimeoutExpired:
            status = None
            self.process.kill()
        has_spool = any(spool.glob(f"{self.run}.*"))
        record.write(
            "jobs",
            run=self.run,
            kind=self.kind,
            status=status,
            ordered=at,
            seen=seen,
            windows=self.windows,
            has_spool=has_spool,
        )


def measured(process: psutil.Process) -> dict[str, float]:
    """Return what a process holds: MiB, open files, threads, TCP connections."""
    with process.oneshot():
        return {
            "mib": process.memory_info().rss / 2**20,
            "files": process.num_fds(),
            "threads": process.num_threads(),
            "connections": len(process.net_connections("tcp")),
            "cpu_s": sum(process.cpu_times()[:2]),
        }


def held(folder: Path) -> tuple[int, int]:
    """Return files and bytes of a folder; files come and go meanwhile."""
    count = size = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                size += (Path(parent) / name).stat().st_size
                count += 1
    return count, size
