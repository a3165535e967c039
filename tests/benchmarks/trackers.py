"""What takes the same series as gradcanary's collector, each through its own door. Imported, not run.

Requests are made before the clock starts: what is measured is the side that takes them.
"""

import json
import sqlite3
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import httpx
import numpy as np
from numpy.typing import NDArray
from servers import Server, collector
from torch.utils.tensorboard import SummaryWriter

sys.path[:0] = [str(Path(__file__).parent.parent)]

from gradcanary import wire
from support import streams

QUIET_S = 2.5
"""A little more than the compactor sleeps."""

REST_S = 20.0
"""In which is measured what servers use while nobody sends anything: CPU is told in hundredths of a second."""


@dataclass
class Series:
    """``absmax`` and ``norm`` are float32 [step][layer], with mantissas as random as those of a training."""

    absmax: NDArray[np.float32]
    norm: NDArray[np.float32]

    @classmethod
    def made(cls, steps: int, layers: int) -> "Series":
        """Return gradients of which no rule says anything."""
        random = np.random.default_rng(0)
        level = 10 ** random.uniform(-3, -1.5, layers)
        absmax = level * 10 ** random.normal(0, 0.1, (steps, layers))
        return cls(np.float32(absmax), np.float32(absmax * random.uniform(3, 9, (steps, layers))))

    def steps(self, begin: int, end: int) -> Iterator[tuple[int, dict[str, float]]]:
        """Yield the numbers of some steps by their name."""
        names = streams.layer_names(self.absmax.shape[1])
        keys = [f"{name}/absmax" for name in names] + [f"{name}/norm" for name in names]
        for step in range(begin, min(end, len(self.absmax))):
            yield step, dict(zip(keys, [*self.absmax[step].tolist(), *self.norm[step].tolist()], strict=True))


class Tracker(Protocol):
    """Something that takes the first ``steps`` of a series."""

    steps: int

    def prepare(self, run: str) -> None:
        """Make the requests of a run."""

    def send(self) -> float:
        """Send them; return the seconds of CPU until the last number is where it stays."""

    def disk(self) -> int:
        """Return the bytes that all runs take."""


@dataclass
class Meter:
    """Counts what a server uses for what it is sent; ``rest`` is what it uses without, in seconds of CPU a second."""

    server: Server
    rest: float = 0.0

    def begin(self) -> None:
        """Count from now on."""
        self._used, self._begun = self.server.cpu_s(), time.monotonic()

    def end(self) -> float:
        """Wait until the server has nothing to do any more; return the seconds of CPU that it used for what it got."""
        used = settled(self.server) - self._used
        return used - self.rest * (time.monotonic() - self._begun)


class Gradcanary:
    """The collector, through HTTP, until its log is compacted."""

    def __init__(self, series: Series, meter: Meter, cut: int) -> None:
        self.steps = len(series.absmax)
        self._server, self._meter = meter.server, meter
        self.disk = self._server.disk
        self._stream = streams.Stream(series.absmax, loss=streams.falling_loss(self.steps))
        self._norm, self._cut = series.norm, cut

    def prepare(self, run: str) -> None:
        self._session = streams.Session(self._server.url, run)
        self._bodies = [wire.dump(self._batch(begin)) for begin in range(0, self.steps, self._cut)]

    def send(self) -> float:
        self._meter.begin()
        self._session.put_hello(self._stream.hello()).raise_for_status()
        for number, body in enumerate(self._bodies):
            self._session.post_batch(number, body).raise_for_status()
        self._session.end().raise_for_status()
        while self._is_logged():
            time.sleep(0.1)
        return self._meter.end()

    def _batch(self, begin: int) -> wire.Batch:
        """Return a batch of a healthy step: ``nonfinite`` is sent only when there is something to count."""
        end = min(begin + self._cut, self.steps)
        plain = self._stream.batch(begin, end, change_records=begin == 0)
        absmax, norm, _ = plain.blocks
        values = wire.column("f", self._norm[begin:end].ravel().tolist())
        return replace(plain, blocks=(absmax, replace(norm, values=values)))

    def _is_logged(self) -> bool:
        database = sqlite3.connect(self._server.data / "gradcanary.db")
        try:
            return bool(database.execute("SELECT count(*) FROM batch").fetchone()[0])
        finally:
            database.close()


class Trackio:
    """trackio's server, through the requests that its client sends."""

    def __init__(self, series: Series, meter: Meter, cut: int) -> None:
        self.steps = min(1024, len(series.absmax))  # of 256 the same took 1.5 to 2.0 s
        self.disk = meter.server.disk
        self._series, self._url, self._meter, self._cut = series, meter.server.url, meter, cut

    def prepare(self, run: str) -> None:
        self._bodies = [self._request(run, begin) for begin in range(0, self.steps, self._cut)]

    def send(self) -> float:
        self._meter.begin()
        with httpx.Client(base_url=self._url, headers={"x-trackio-write-token": TRACKIO_TOKEN}) as client:
            for body in self._bodies:
                answer = client.post("/api/bulk_log", content=body, timeout=60).raise_for_status().json()
                assert answer.get("error") is None, answer
        return self._meter.end()

    def _request(self, run: str, begin: int) -> bytes:
        until = min(begin + self._cut, self.steps)
        logs = [
            {"project": "p", "run": run, "run_id": run, "metrics": numbers, "step": step, "log_id": f"{run}-{step}"}
            for step, numbers in self._series.steps(begin, until)
        ]
        return json.dumps({"args": [], "kwargs": {"logs": logs, "hf_token": None}}).encode()


class Mlflow:
    """MLflow's server with its SQLite store, a thousand metrics to a request, the most it takes."""

    def __init__(self, series: Series, meter: Meter) -> None:
        self.steps = min(16, len(series.absmax))
        self.disk = meter.server.disk
        self._series, self._url, self._meter = series, meter.server.url, meter

    def prepare(self, run: str) -> None:
        self._client = httpx.Client(base_url=f"{self._url}/api/2.0/mlflow", timeout=120)
        asked = {"experiment_id": "0", "run_name": run, "start_time": 1_700_000_000_000}
        made = self._client.post("/runs/create", json=asked).raise_for_status().json()
        self._bodies = [self._request(made["run"]["info"]["run_id"], step) for step in range(self.steps)]

    def send(self) -> float:
        self._meter.begin()
        for body in self._bodies:
            self._client.post("/runs/log-batch", content=body, headers=JSON).raise_for_status()
        self._client.close()
        return self._meter.end()

    def _request(self, run_id: str, at: int) -> bytes:
        metrics = [
            {"key": key, "value": value, "timestamp": 1_700_000_000_000 + step, "step": step}
            for step, numbers in self._series.steps(at, at + 1)
            for key, value in numbers.items()
        ]
        assert len(metrics) <= MLFLOW_MOST, "at most 500 layers"
        return json.dumps({"run_id": run_id, "metrics": metrics}).encode()


class Tensorboard:
    """A SummaryWriter: no server, the training's own process writes."""

    def __init__(self, series: Series, folder: Path) -> None:
        self.steps = min(64, len(series.absmax))
        self._series, self._folder = series, folder

    def prepare(self, run: str) -> None:
        self._numbers = list(self._series.steps(0, self.steps))
        self._run = run

    def send(self) -> float:
        used = time.process_time()
        with SummaryWriter(self._folder / self._run) as writer:
            for step, numbers in self._numbers:
                for key, value in numbers.items():
                    writer.add_scalar(key, value, step)
        return time.process_time() - used

    def disk(self) -> int:
        return sum(each.stat().st_size for each in self._folder.rglob("*") if each.is_file())


TRACKIO_TOKEN, MLFLOW_MOST, JSON = "benchmark", 1000, {"Content-Type": "application/json"}


@contextmanager
def all_trackers(folder: Path, series: Series, cuts: tuple[int, ...]) -> Iterator[dict[str, Tracker]]:
    """Start all servers; yield what takes the series, by name. ``cuts``: so many steps are in a request."""
    database = f"sqlite:///{folder / 'mlflow' / 'mlflow.db'}"
    show = "import trackio; trackio.show(open_browser=False, share=False, server_port={port})"
    offline = {"TRACKIO_DIR": str(folder / "trackio"), "TRACKIO_WRITE_TOKEN": TRACKIO_TOKEN, "HF_HUB_OFFLINE": "1"}
    serve = ("server", "--port", "{port}", "--workers", "1", "--backend-store-uri", database)
    alone = {"MLFLOW_DISABLE_TELEMETRY": "1", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}  # no work but ours
    mlflow_server = Server(folder / "mlflow", "-m", "mlflow", *serve, ready="/health", **alone)
    with (
        collector(folder / "gradcanary") as collecting,
        Server(folder / "trackio", "-c", show, ready="/", **offline) as trackio,
        mlflow_server,
    ):
        meters = ours, theirs, mlflow = [Meter(each) for each in (collecting, trackio, mlflow_server)]
        measure_rest(meters)
        yield {
            **{f"gradcanary, {cut} steps": Gradcanary(series, ours, cut) for cut in cuts},
            **{f"trackio, {cut} steps": Trackio(series, theirs, cut) for cut in cuts},
            "MLflow, 1 step": Mlflow(series, mlflow),
            "TensorBoard": Tensorboard(series, folder / "tensorboard"),
        }


def measure_rest(meters: Sequence[Meter]) -> None:
    """Let all servers rest, and note what each of them uses meanwhile."""
    for meter in meters:
        settled(meter.server)
    before, begun = [meter.server.cpu_s() for meter in meters], time.monotonic()
    time.sleep(REST_S)
    for meter, used in zip(meters, before, strict=True):
        meter.rest = (meter.server.cpu_s() - used) / (time.monotonic() - begun)


def settled(server: Server) -> float:
    """Wait until a server has nothing to do any more; return the seconds of CPU that it has used then."""
    used, before = server.cpu_s(), -1.0
    while used - before > 0.02 * QUIET_S:
        time.sleep(QUIET_S)
        used, before = server.cpu_s(), used
    return used
