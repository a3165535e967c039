"""The processes of ``gradcanary up --workers N``: one parent, and N workers that serve its socket.

The parent serves nothing: it starts the workers as forks of itself, starts a dead one again, and ends them. It holds
the socket, so a connection that no worker has accepted yet outlives a worker. Workers share the store and nothing else;
each writes its health and its metrics to a file every second, from which any of them answers for all.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from gradcanary_server.background import BackgroundLoop
from gradcanary_server.errors import CollectorError

PUBLISH_S = 1.0
"""Between two reports of a worker."""

SILENT_S = 15.0
"""After which a worker without a report hangs: its event loop answers no request either."""

BACKOFF_S = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Before a dead worker is started again, by how often it died in a row."""

STEADY_S = 60.0
"""A worker that lived as long as this is started again after the first of these times."""

END_S = 15.0
"""Workers that have not ended by then are killed: a stop takes less than 10 s (process.GRACE_S, app.STOP_S)."""

_SIGNALS = (signal.SIGTERM, signal.SIGINT)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Report:
    """What a worker wrote: the monotonic time, the reason of each loop that does not work, and its metrics as text."""

    at: float
    failing: dict[str, str]
    metrics: str


@dataclass(frozen=True)
class WorkerBoard:
    """The reports of the workers 1 to ``count`` in a folder; ``own`` is the number of this process, 0 of the parent."""

    folder: Path
    count: int
    own: int = 0

    async def keep_publishing(self, loops: Sequence[BackgroundLoop], registry: CollectorRegistry) -> None:
        """Write this worker's report until the task is cancelled; on the event loop, so one that hangs writes none."""
        while True:
            failing = {loop.name: reason for loop in loops if (reason := loop.health()) is not None}
            text = generate_latest(registry).decode()
            part = self.folder / f"{self.own}.part"
            with contextlib.suppress(OSError):  # a full disk: the report grows old, which says so
                part.write_text(json.dumps([time.monotonic(), failing, text]), "utf-8")
                part.replace(self._file(self.own))
            await asyncio.sleep(PUBLISH_S)

    def drop(self, number: int) -> None:
        """Delete the report of a worker that ended."""
        self._file(number).unlink(missing_ok=True)

    def is_complete(self) -> bool:
        """Return True if each worker has written a report."""
        return all(self._file(number).exists() for number in range(1, self.count + 1))

    def checks(self) -> dict[str, str]:
        """Return ``ok``, or the reason why it does not work, for each worker."""
        return {_name(number): self._check(number) for number in range(1, self.count + 1)}

    def others(self) -> frozenset[str]:
        """Return the names of the other workers in :meth:`checks`."""
        return frozenset(_name(number) for number in range(1, self.count + 1) if number != self.own)

    def metrics(self) -> dict[str, str]:
        """Return the metrics of each worker that runs, by its number."""
        reports = ((str(number), self._read(number)) for number in range(1, self.count + 1))
        return {number: report.metrics for number, report in reports if report is not None}

    def _check(self, number: int) -> str:
        report = self._read(number)
        if report is None:
            return "It does not run, and is being started: the collector's log says why."
        silent_s = time.monotonic() - report.at
        if silent_s > SILENT_S:
            return f"It has not reported for {silent_s:.0f} s."
        return " ".join(f"{loop}: {reason}" for loop, reason in report.failing.items()) or "ok"

    def _read(self, number: int) -> Report | None:
        try:
            return Report(*json.loads(self._file(number).read_text("utf-8")))
        except FileNotFoundError:
            return None

    def _file(self, number: int) -> Path:
        return self.folder / f"{number}.json"


def _name(number: int) -> str:
    return f"worker {number}"


@dataclass(frozen=True)
class WorkerMetrics(Collector):
    """The metrics of the processes of all workers, with a label ``worker``."""

    board: WorkerBoard

    def describe(self) -> list[Metric]:
        """Return nothing: no worker has written a report yet."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as they were reported last, also those of this process: no counter may go back."""
        families: dict[str, Metric] = {}
        for number, text in self.board.metrics().items():
            for found in text_string_to_metric_families(text):
                family = families.setdefault(found.name, Metric(found.name, found.documentation, found.type))
                for sample in found.samples:
                    family.add_sample(sample.name, {**sample.labels, "worker": number}, sample.value)
        yield from families.values()


@dataclass
class _Worker:
    """A place for a worker: its process, if it runs, or when it is started again."""

    number: int
    pid: int | None = None
    started: float = 0.0
    deaths: int = 0
    due: float = 0.0


@dataclass
class Supervisor:
    """The parent: runs ``serve(number)`` in each worker, and ``announce()`` once, when all of them serve."""

    board: WorkerBoard
    serve: Callable[[int], None]
    announce: Callable[[], None]
    _is_stopping: bool = field(default=False, init=False)

    def run(self) -> None:
        """Keep the workers running until SIGTERM or SIGINT, and end them."""
        gc.collect()
        gc.freeze()  # a collection would write to the memory that parent and workers share
        self._workers = [_Worker(number) for number in range(1, self.board.count + 1)]
        self._lifeline = os.pipe()  # its write end closes with the parent, however that ends
        with self._handled_signals() as woken:
            is_announced = False
            while not self._is_stopping:
                self._start_due()
                if not is_announced and self.board.is_complete():
                    self.announce()
                    is_announced = True
                _wait(woken, PUBLISH_S if is_announced else 0.05)
                self._reap()
            self._end(woken)

    def _start_due(self) -> None:
        for worker in self._workers:
            if worker.pid is None and time.monotonic() >= worker.due:
                worker.started = time.monotonic()
                try:
                    worker.pid = self._fork(worker.number)
                except OSError as error:  # no memory, or a limit of processes: the other workers serve
                    self._wait_longer(worker, f"could not be started ({error.strerror})")

    def _fork(self, number: int) -> int:
        sys.stdout.flush()
        # A signal in between would be handled by the worker as the parent does it, and be lost.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            pid = os.fork()
            if pid == 0:
                self._be_worker(number)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        return pid

    def _be_worker(self, number: int) -> None:
        """Serve in the new process, and end it: nothing of the parent's may run here."""
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            # Ctrl-C reaches all processes of a terminal: the parent passes it on, and until then nothing may end here.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            os.close(self._lifeline[1])
            threading.Thread(target=_end_with_parent, args=(self._lifeline[0],), daemon=True).start()
            self.serve(number)
            status = 0
        except CollectorError as error:
            logger.error("%s: %s", _name(number), error)  # noqa: TRY400 -- a sentence for the operator
        except BaseException:  # noqa: BLE001 -- the process ends here
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def _reap(self) -> None:
        """Note the workers that ended, and when to start them again."""
        for worker in self._workers:
            pid, status = (0, 0) if worker.pid is None else os.waitpid(worker.pid, os.WNOHANG)
            if pid == 0:
                continue
            code = os.waitstatus_to_exitcode(status)
            self._wait_longer(worker, f"ended ({signal.Signals(-code).name if code < 0 else f'status {code}'})")

    def _wait_longer(self, worker: _Worker, how: str) -> None:
        """Note that a worker does not run, and when to start it again."""
        worker.deaths = 0 if time.monotonic() - worker.started > STEADY_S else worker.deaths
        wait_s = BACKOFF_S[min(worker.deaths, len(BACKOFF_S) - 1)]
        worker.pid, worker.deaths, worker.due = None, worker.deaths + 1, time.monotonic() + wait_s
        self.board.drop(worker.number)
        if not self._is_stopping:
            logger.warning("worker %s %s: it is started again in %s s", worker.number, how, wait_s)

    def _end(self, woken: int) -> None:
        until = time.monotonic() + END_S
        self._signal(signal.SIGTERM)
        while any(worker.pid for worker in self._workers):
            _wait(woken, 0.5)
            self._reap()
            if time.monotonic() > until:
                self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        for worker in self._workers:
            if worker.pid is not None:
                os.kill(worker.pid, number)

    @contextlib.contextmanager
    def _handled_signals(self) -> Iterator[int]:
        """Yield a descriptor that can be read after a signal came."""
        woken, wake = os.pipe()
        os.set_blocking(woken, False)
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        before = {number: signal.signal(number, self._stop) for number in _SIGNALS}
        before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        try:
            yield woken
        finally:
            signal.set_wakeup_fd(-1)
            for number, handler in before.items():
                signal.signal(number, handler)
            for descriptor in (woken, wake, *self._lifeline):
                os.close(descriptor)
            gc.unfreeze()

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self._is_stopping = True


def _wait(woken: int, seconds: float) -> None:
    """Wait for a signal, at most this long."""
    if select.select([woken], [], [], seconds)[0]:
        os.read(woken, 4096)


def _end_with_parent(lifeline: int) -> None:
    """End this worker as SIGTERM does, once the parent is gone: nothing would start or end it any more."""
    os.read(lifeline, 1)
    os.kill(os.getpid(), signal.SIGTERM)
