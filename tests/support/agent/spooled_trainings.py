"""Trainings in processes of their own, and what their collector has of them in the end."""

import json
import os
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support import PROGRAMS, warm
from support.collectors import Collector

SCRIPT = PROGRAMS / "spooled_training.py"
WAIT_S = 120


class Trained:
    """A training that runs; ``lines`` is what it printed so far, ``errors`` its stderr once it ended."""

    def __init__(self, url: str, steps: int, spool: Path | None = None, **options: object) -> None:
        env = {**os.environ, "OMP_NUM_THREADS": "1"} | ({} if spool is None else {"GRADCANARY_SPOOL": str(spool)})
        words = [str(SCRIPT), url, str(steps), *(f"{name}={value}" for name, value in options.items())]
        self.process = warm.Process(warm.TRAINING, words, env, is_told=True)
        self.lines: list[str] = []
        self.errors = ""
        self._readers = [threading.Thread(target=self._read), threading.Thread(target=self._read_errors)]
        for reader in self._readers:
            reader.start()

    def _read(self) -> None:
        with self.process.stdout as lines:
            for line in lines:
                self.lines.append(line.strip())

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            self.errors = lines.read()

    def until_step(self, step: int) -> None:
        until(lambda: f"step {step}" in self.lines or self.process.poll() is not None)
        assert f"step {step}" in self.lines, self.errors

    def go_on(self) -> None:
        """Let go of a training that holds."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.close()

    def ended(self) -> str:
        """Wait for its end and return the digest of its weights."""
        assert self.process.wait(WAIT_S) == 0, self.errors
        self._join()
        return self.lines[-1]

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(WAIT_S)
        self._join()

    def _join(self) -> None:
        for reader in self._readers:
            reader.join()
        assert self.process.stdin is not None
        self.process.stdin.close()


@contextmanager
def training(url: str, steps: int, spool: Path | None = None, **options: object) -> Iterator[Trained]:
    """Start a training; it does not outlive the block."""
    trained = Trained(url, steps, spool, **options)
    try:
        yield trained
    finally:
        trained.kill()


def until(condition) -> None:
    """Wait for what another process will do."""
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def synced(*arguments: object) -> "subprocess.CompletedProcess[str]":
    """Run ``gradcanary sync``."""
    return warm.run(warm.COLLECTOR, ["-m", "gradcanary.cli", "sync", *map(str, arguments)], os.environ)


def kept(collector: Collector, run: str = "spooled") -> dict[str, Any]:
    """What a collector says of a run, but for clocks: series, losses, incidents, gaps, state."""
    path = f"/api/v1/runs/{run}"
    detail = collector.get(path).json()
    layers = collector.get(path + "/layers").json()["layers"]
    found: dict[str, Any] = {"state": detail["state"], "step": detail["step"], "gaps": detail["gaps"]}
    found["dropped"] = [each["dropped_steps"] for each in detail["sessions"]]
    for stat in ("absmax", "norm"):
        answer = collector.get(
            path + "/series", stat=stat, layer=[each["layer"] for each in layers], points=4000
        ).json()
        found[stat] = answer["steps"], answer["series"], answer["bucket_steps"]
    for name in ("loss", "lr0"):
        answer = collector.get(path + "/metrics", name=name, points=4000).json()
        found[name] = answer["steps"], answer["metrics"]
    found["incidents"] = incidents(collector)
    found["layers"] = [(each["name"], each["absmax"], each["accumulator"]) for each in layers]
    return found


def incidents(collector: Collector) -> list[tuple[object, ...]]:
    found = collector.get("/api/v1/incidents").json()["incidents"]
    keys = ("rule", "severity", "state", "resolution", "opened_step", "resolved_step", "counts")
    return [tuple(json.dumps(each[key]) for key in keys) for each in found]


def arrived(collector: Collector, run: str = "spooled") -> list[int]:
    """Return the sampled steps that a collector has."""
    rows = collector.get(f"/api/v1/runs/{run}/export.csv").text.splitlines()
    return [int(row.split(",")[0]) for row in rows[1:]]


def next_seq(collector: Collector) -> int:
    """Return how many batches the only session in the collector's database has numbered."""
    with sqlite3.connect(collector.data / "gradcanary.db") as connection:
        ((number,),) = connection.execute("SELECT next_seq FROM session").fetchall()
    connection.close()
    return int(number)
