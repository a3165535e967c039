"""The reports of several workers, from which any of them answers for all."""

import asyncio
import errno
import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest

from gradcanary_server.background import BackgroundLoop
from gradcanary_server.ops.workers import SILENT_S, Supervisor, WorkerBoard, WorkerMetrics


class Loop:
    """A background loop that is well, or says why not."""

    def __init__(self, name: str, reason: str | None) -> None:
        self.name, self.reason = name, reason

    def health(self) -> str | None:
        return self.reason


@pytest.fixture
def board(tmp_path: Path) -> WorkerBoard:
    return WorkerBoard(tmp_path, 2)


def report(board: WorkerBoard, number: int, batches: float, reason: str | None = None) -> None:
    """Write a report as a worker does."""
    registry = CollectorRegistry()
    Counter("batches", "Batches.", ["outcome"], registry=registry).labels("stored").inc(batches)
    loops: list[BackgroundLoop] = [Loop("compactor", reason)]  # type: ignore[list-item]

    async def once() -> None:
        task = asyncio.create_task(replace(board, own=number).keep_publishing(loops, registry))
        await asyncio.sleep(0)
        task.cancel()

    with ThreadPoolExecutor(1) as thread:  # this one may have a loop: Playwright's
        thread.submit(lambda: asyncio.run(once())).result()


def test_each_worker_is_well_missing_or_failing(board: WorkerBoard) -> None:
    assert not board.is_complete()
    report(board, 1, 1)
    assert board.checks()["worker 1"] == "ok"
    assert board.checks()["worker 2"].startswith("It does not run")
    report(board, 2, 1, "It does not run.")
    assert board.checks()["worker 2"] == "compactor: It does not run."
    assert board.is_complete()
    board.drop(2)
    assert not board.is_complete()


def test_a_worker_that_reports_no_more_is_said_to_hang(board: WorkerBoard) -> None:
    report(board, 1, 1)
    file = board.folder / "1.json"
    _, *rest = json.loads(file.read_text())
    file.write_text(json.dumps([time.monotonic() - SILENT_S - 5, *rest]))
    assert board.checks()["worker 1"] == "It has not reported for 20 s."


def test_a_worker_that_cannot_be_started_is_tried_again(
    board: WorkerBoard, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[int] = []

    def refused() -> int:
        asked.append(1)
        if len(asked) == 4:
            os.kill(os.getpid(), signal.SIGTERM)  # the supervisor's, which calls this: it ends as it would on Ctrl-C
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refused)
    Supervisor(board, serve=lambda _: None, announce=lambda: None).run()
    assert len(asked) == 4, "it went on until it was told to end"
    said = "worker 1 could not be started (Resource temporarily unavailable): it is started again in"
    assert sum(each.getMessage().startswith(said) for each in caplog.records) >= 2
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_metrics_have_a_label_for_the_worker(board: WorkerBoard) -> None:
    report(board, 1, 3)
    report(board, 2, 5)
    registry = CollectorRegistry()
    registry.register(WorkerMetrics(board))
    lines = generate_latest(registry).decode().splitlines()
    assert [line for line in lines if line.startswith("batches_total")] == [
        'batches_total{outcome="stored",worker="1"} 3.0',
        'batches_total{outcome="stored",worker="2"} 5.0',
    ]
    assert lines.count("# TYPE batches_total counter") == 1
