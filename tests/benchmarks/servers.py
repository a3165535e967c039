"""Processes that benchmarks talk to, with what they use of CPU and disk. Imported, not run."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Self

import httpx
import psutil

sys.path[:0] = [str(Path(__file__).parent.parent)]

from support.ports import free_port

STARTUP_S = 600


class Server:
    """A process that listens on a port of its own, its children included, with everything it keeps in one folder."""

    def __init__(self, data: Path, *command: str, ready: str, **environ: str) -> None:
        """``command`` is for this Python, ``{port}`` in it a free port; ``ready`` a path that answers once it is up."""
        self.data = data
        self.url = f"http://127.0.0.1:{free_port()}"
        self._ready = ready
        self._command = [sys.executable, *(each.format(port=self.url.rsplit(":", 1)[1]) for each in command)]
        self._environ = {**os.environ, "OMP_NUM_THREADS": "1", **environ}
        self._process: psutil.Popen | None = None

    def __enter__(self) -> Self:
        self.data.mkdir(parents=True, exist_ok=True)
        with (self.data.parent / f"{self.data.name}.log").open("w") as log:
            self._process = psutil.Popen(
                self._command, env=self._environ, cwd=self.data, stdout=log, stderr=subprocess.STDOUT
            )
        until = time.monotonic() + STARTUP_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > until:
                self.__exit__()
                raise RuntimeError(f"{self._command} did not start:\n{Path(log.name).read_text()}")
            time.sleep(0.1)
        return self

    def __exit__(self, *_: object) -> None:
        children = self._process.children(recursive=True) if self._process.poll() is None else []
        self._process.terminate()
        self._process.wait(60)
        for child in psutil.wait_procs(children, 10)[1]:
            child.kill()

    def cpu_s(self) -> float:
        """Return the seconds of CPU that it has used so far."""
        return cpu_of(self.processes())

    def disk(self) -> int:
        """Return the bytes of its folder."""
        return sum(each.stat().st_size for each in self.data.rglob("*") if each.is_file())

    def processes(self) -> list[psutil.Process]:
        """Return it and its children."""
        return [self._process, *self._process.children(recursive=True)]

    def _answers(self) -> bool:
        try:
            return httpx.get(self.url + self._ready, timeout=60).is_success
        except httpx.TransportError:
            return False


def collector(data: Path, db: str | None = None, *options: str) -> Server:
    """Return gradcanary's collector, with its pages, on the data of a folder or on a database."""
    store = ("--data", str(data)) if db is None else ("--db", db)
    command = ("-m", "gradcanary.cli", "up", "--port", "{port}", *store, *options)
    return Server(data, *command, ready="/api/v1/runs")


def cpu_of(processes: Iterable[psutil.Process]) -> float:
    """Return the seconds of CPU that processes have used, with those of their children that are gone."""
    used = 0.0
    for each in processes:
        with contextlib.suppress(psutil.NoSuchProcess):  # PostgreSQL's come and go
            times = each.cpu_times()
            used += times.user + times.system + times.children_user + times.children_system
    return used
