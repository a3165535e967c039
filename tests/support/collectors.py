"""A real collector process: ``gradcanary up``."""

import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from support import blank_stores, warm

STARTUP_S = 60


class Collector:
    """A ``gradcanary up`` process; after the first start it keeps its port, so it can come back."""

    def __init__(
        self,
        data: Path,
        arguments: tuple[str, ...] = (),
        env: Mapping[str, str] | None = None,
        db: str | None = None,
    ) -> None:
        self.data = data
        self.db = db
        self.arguments = arguments
        self.env = {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}
        self.port = 0
        self.secret: str | None = None
        self.output: list[str] = []
        self.process: warm.Process | None = None
        self.program: tuple[str, ...] = ("-m", "gradcanary.cli")

    @property
    def store_url(self) -> str:
        return self.db or f"sqlite:///{self.data / 'gradcanary.db'}"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> "Collector":
        if self.db is None:
            blank_stores.lay(self.data)
        command = [*self.program, "up", "--port", str(self.port)]
        where = ["--data", str(self.data)] if self.db is None else ["--db", self.db]
        self.process = warm.Process(warm.COLLECTOR, [*command, *where, *self.arguments], self.env)
        listening = threading.Event()
        threading.Thread(target=self._read, args=(self.process, listening), daemon=True).start()
        if not listening.wait(STARTUP_S) or self.process.poll() is not None:
            self.kill()
            pytest.fail("the collector did not start:\n" + "".join(self.output))
        return self

    def _read(self, process: warm.Process, listening: threading.Event) -> None:
        with process.stdout as lines:
            for line in lines:
                self.output.append(line)
                if "listening on" in line:
                    self.port = int(line.rsplit(":", 1)[1])
                    listening.set()
                elif line.startswith("webhook secret"):
                    self.secret = line.rsplit(" ", 1)[1].strip()
        listening.set()

    def get(self, path: str, **params: object) -> httpx.Response:
        return httpx.get(self.url + path, params=params, timeout=30)

    def pages(self) -> list[psutil.Process]:
        """Return the process of the pages, if it has one that runs."""
        assert self.process is not None
        children = psutil.Process(self.process.pid).children()
        return [each for each in children if each.cmdline()[-1:] == ["gradcanary_dashboard.process"]]

    def stop(self) -> int:
        """End it as Ctrl-C does and return its exit status."""
        return self._end(signal.SIGINT)

    def kill(self) -> int:
        """End it as ``kill -9`` does."""
        return self._end(signal.SIGKILL)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Let it stand still while the block lasts: connections come about, and nobody answers."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def _end(self, signal_number: int) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal_number)
        return self.process.wait(30)
