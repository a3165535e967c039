"""A run of a million steps: what it takes on disk, and how long its pictures take over HTTP.

python tests/benchmarks/big_run.py [--steps 1000000] [--layers 500] [--keep FOLDER] [--growth]
The samples go through the compactor's own functions into tiles and rollups, without ingest and rules: the store and
its readers are measured, not the fold. With --keep the database stays and is used again. Times are medians; cold is a
collector just started, its caches empty, of a heatmap and a trend in five starts. During ingest ten other trainings
post ten steps a second each. Then pictures of 200,000 steps are held against those of 20,000, with --growth these
alone. Exit status 1 where a target is missed: cold, warm, during ingest, or by growth.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import ratios
from jobs import Jobs
from sqlalchemy import select, update

sys.path[:0] = [str(Path(__file__).parent.parent)]

from gradcanary import wire
from gradcanary_server.ingest import sessions
from gradcanary_server.storage.database import Database
from gradcanary_server.storage.schema import run, session
from gradcanary_server.tsdb import compaction, metric_index, tiles
from gradcanary_server.tsdb.batch import Columns, MetricColumn
from gradcanary_server.tsdb.compaction import build_metric_tiles
from gradcanary_server.tsdb.log import LoggedBatch
from gradcanary_server.tsdb.samples import build_sample_tiles
from gradcanary_server.tsdb.tiles import METRIC_STREAM, SampleStream, TileStore
from support import streams

RUN = "big"
CHUNK = 4096
STATS = ("absmax", "norm")
ROUNDS = 7
STARTS = 5
HEATMAP, TREND = "heatmap of everything", "trend of one layer"
PICTURES = {HEATMAP: f"/api/v1/runs/{RUN}/heatmap", TREND: f"/api/v1/runs/{RUN}/series?layer=7"}
TARGETS_MS = {HEATMAP: 100.0, TREND: 30.0}
JOBS = 10
EXPORTED = 60e6
"""Bytes of CSV, of all that there would be."""
GROWTH = (20_000, 200_000)
GROWN = 1.5
"""How many times as long a picture of ten times the steps may take: it is as wide, a level of the rollups higher."""


def main() -> int:
    """Load the run where it is not there yet, ask for its pictures, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--layers", type=int, default=500)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--growth", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gradcanary-big-run-") as folder:
        data = arguments.keep or Path(folder)
        are_met = [] if arguments.growth else measure(data, arguments.steps, arguments.layers)
        are_met += compare(data, arguments.layers)
    return int(not all(are_met))


def measure(data: Path, steps: int, width: int) -> list[bool]:
    """Load the run, print how long its pictures take, and tell which targets were met."""
    if not (data / "gradcanary.db").exists():
        load(data, steps, width)
    size = (data / "gradcanary.db").stat().st_size
    print(f"{size / 2**20:,.0f} MB on disk, {size / (steps * width * len(STATS)):.2f} B per point")
    found = {**ask(data, steps), "during ingest": ask_during_ingest(data, width)}
    return [
        ratios.judged(f"{each}, {when}, ms", times[each], TARGETS_MS[each])
        for each in TARGETS_MS
        for when, times in found.items()
    ]


def load(data: Path, steps: int, width: int) -> None:
    """Write a run of healthy noise, in which one layer dips for a single step."""
    data.mkdir(parents=True, exist_ok=True)
    database = Database(f"sqlite:///{data / 'gradcanary.db'}")
    fill(database, steps, width)
    database.close()


def fill(database: Database, steps: int, width: int) -> None:
    """Write the run into an empty database."""
    database.migrate()
    names = streams.layer_set(streams.layer_names(width))
    with database.write() as connection:
        sessions.register_session(connection, RUN, "s", streams.hello(names), None, database.now(connection))
        run_id: int = connection.execute(select(run.c.run_id)).scalar_one()
        metric_index.update_series(
            connection, run_id, 1, frozenset(), made(np.random.default_rng(0), steps - 1, steps, width).columns.metrics
        )
    began, used = time.perf_counter(), time.process_time()
    stream, of_metrics = SampleStream(1, 1), SampleStream(1, METRIC_STREAM)
    random = np.random.default_rng(0)
    for first in range(0, steps, CHUNK):
        piece = made(random, first, min(first + CHUNK, steps), width)
        until = min(first + CHUNK, steps)
        of_metrics, logged = build_metric_tiles([piece], of_metrics, first)
        packed = tiles.pack_tiles([*build_sample_tiles([piece], stream, until), *logged])
        stream = replace(stream, sealed_until=until)
        with database.write() as connection:
            tiles.write_tiles(connection, run_id, packed, database.now(connection))
            tiles.write_stream(connection, run_id, stream)
            tiles.write_stream(connection, run_id, of_metrics)
            connection.execute(update(session).values(first_sample=0, last_step=until - 1, every=1, next_seq=1))
            connection.execute(update(session).values(sealed_seq=1, ended="finished"))
            connection.execute(update(run).values(step=until - 1, revision=2, ended="finished"))
    store = TileStore()
    for every in (1, METRIC_STREAM):
        while roll(database, store, run_id, every):
            pass
    took, used = time.perf_counter() - began, time.process_time() - used
    points = steps * width * len(STATS) / 1e6
    print(f"{points:,.0f}M points into tiles and rollups in {took:.0f} s: {used / points * 1e3:.0f} ms CPU per 1M")


def made(random: np.random.Generator, first: int, end: int, width: int) -> LoggedBatch:
    """Return the samples of some steps, as a batch would hold them."""
    steps = np.arange(first, end, dtype=np.int64)
    absmax = (1e-3 * 10 ** random.normal(0, 0.1, (len(steps), width))).astype(np.float32)
    absmax[steps == 777_777, width // 2] = 1e-9
    zeros = np.zeros(len(steps))
    columns = Columns(
        layer_set="",
        every=1,
        steps=steps,
        times=1.7e9 + steps * 0.25,
        micro_steps=np.full(len(steps), 8, np.int16),
        skipped=zeros.astype(np.uint8),
        clipped=zeros.astype(np.bool_),
        state=np.zeros(absmax.shape, np.uint8),
        values={"absmax": absmax, "norm": absmax * np.float32(3.1)},
        phases={stat: np.full(len(steps), wire.PHASES.index("accumulated"), np.uint8) for stat in STATS},
        accumulators=(),
        metrics=(MetricColumn("loss", "{}", steps, np.exp(-steps / 3e5) + random.normal(0, 0.01, len(steps))),),
        dropped_steps=0,
    )
    return LoggedBatch(1, "s", 0, np.arange(width, dtype=np.int32), columns)


def roll(database: Database, store: TileStore, run_id: int, every: int) -> bool:
    """Make the next tiles of a rollup."""
    with database.read() as connection:
        plan = compaction.plan_rollup(connection, store, run_id, 1, every)
    if plan is not None:
        packed = tiles.pack_tiles(plan.tiles)
        with database.write() as connection:
            compaction.apply_plan(connection, plan, packed, database.now(connection))
    return plan is not None


def ask(data: Path, steps: int) -> dict[str, dict[str, float]]:
    """Print how long the answers of a collector on the data take; return milliseconds, cold and warm, by answer."""
    api = f"/api/v1/runs/{RUN}"
    questions = {
        **PICTURES,
        "heatmap, zoomed to 1 %": f"{api}/heatmap?from={steps // 2}&to={steps // 2 + steps // 100}",
        "heatmap, single steps": f"{api}/heatmap?from={steps // 2}&to={steps // 2 + 500}",
        "loss": f"{api}/metrics?name=loss",
        "layer table": f"{api}/layers",
    }
    found: dict[str, dict[str, float]] = {"cold": {}, "warm": {}}
    print("| answer | cold | warm | CPU of the collector, warm | its memory | size |\n|---|---|---|---|---|---|")
    for name, path in questions.items():
        colds = [asked_first(data, path) for _ in range(STARTS - 1 if name in PICTURES else 0)]
        with collector(data) as url, httpx.Client(base_url=url, timeout=600) as client:
            client.get("/api/v1/runs")
            colds.append(timed(client, path) * 1e3)
            before = told(client, "process_cpu_seconds_total")
            times = [timed(client, path) * 1e3 for _ in range(ROUNDS)]
            used = (told(client, "process_cpu_seconds_total") - before) / ROUNDS
            room = told(client, "process_resident_memory_bytes")
            answer = client.get(path)
            if answer.json().get("steps", {}).get("shape") == [0]:
                raise RuntimeError(f"{name} is empty")
            size = len(answer.content)
        found["cold"][name], found["warm"][name] = statistics.median(colds), statistics.median(times)
        times_told = f"{ratios.told(colds, '.0f')} ms | {ratios.told(times, '.0f')} ms | {used * 1e3:.0f} ms"
        print(f"| {name} | {times_told} | {room / 2**20:.0f} MB | {size / 1e3:.0f} kB |", flush=True)
    export(data)
    return found


def asked_first(data: Path, path: str) -> float:
    """Return the milliseconds that an answer takes a collector just started."""
    with collector(data) as url, httpx.Client(base_url=url, timeout=600) as client:
        client.get("/api/v1/runs")
        return timed(client, path) * 1e3


def export(data: Path) -> None:
    """Print how fast samples come as CSV, and what the collector needs for it."""
    with collector(data) as url, httpx.Client(base_url=url, timeout=600) as client:
        before, began, size = told(client, "process_cpu_seconds_total"), time.perf_counter(), 0
        with client.stream("GET", f"/api/v1/runs/{RUN}/export.csv") as answer:
            for part in answer.iter_bytes():
                size += len(part)
                if size > EXPORTED:
                    break
        took, used = time.perf_counter() - began, told(client, "process_cpu_seconds_total") - before
        room = told(client, "process_resident_memory_bytes")
    each = f"{took / size * 1e8:.1f} s, {used / size * 1e8:.1f} s of CPU"
    print(f"\n100 MB of CSV: {each}; the collector had {room / 2**20:.0f} MB of memory", flush=True)


def told(client: httpx.Client, name: str) -> float:
    """Return a number that the collector tells of itself."""
    lines = client.get("/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def ask_during_ingest(data: Path, width: int) -> dict[str, float]:
    """Ask for the pictures while other trainings post; print and return the milliseconds, medians of warm answers."""
    with collector(data) as url, httpx.Client(base_url=url, timeout=600) as client, Jobs(url, JOBS, width) as jobs:
        time.sleep(5)  # the first batches of a run are dearer
        times: dict[str, list[float]] = {name: [] for name in PICTURES}
        for _ in range(1 + 3 * ROUNDS):
            for name, path in PICTURES.items():
                times[name].append(timed(client, path) * 1e3)
                time.sleep(0.25)
        posted = jobs.stop()
    if posted.problems:
        raise RuntimeError("; ".join(posted.problems))
    print(f"\n| during ingest of {JOBS} jobs, 10 steps/s each | cold | warm: median (range) |\n|---|---|---|")
    for name, (cold, *warm) in times.items():
        print(f"| {name} | {cold:.0f} ms | {ratios.told(warm, '.0f')} ms |")
    acks = sorted(each * 1e3 for each in posted.ack_s)
    print(
        f"\nacks of {len(acks)} batches: median {acks[len(acks) // 2]:.0f} ms, p99 {acks[len(acks) * 99 // 100]:.0f} ms"
    )
    return {name: statistics.median(warm) for name, (_, *warm) in times.items()}


def compare(data: Path, width: int) -> list[bool]:
    """Print how the times of the pictures grow with a tenfold run, asked in turns; tell which targets were met."""
    folders = {steps: data / str(steps) for steps in GROWTH}
    for steps, folder in folders.items():
        if not (folder / "gradcanary.db").exists():
            load(folder, steps, width)
    times: dict[tuple[str, int], list[float]] = {(name, steps): [] for name in PICTURES for steps in GROWTH}
    colds: dict[tuple[str, int], list[float]] = {each: [] for each in times}
    for _ in range(ROUNDS):
        for name, steps in times:
            with collector(folders[steps]) as url, httpx.Client(base_url=url, timeout=600) as client:
                client.get("/api/v1/runs")
                cold, *warm = (timed(client, PICTURES[name]) * 1e3 for _ in range(ROUNDS))
            colds[name, steps].append(cold)
            times[name, steps].append(statistics.median(warm))
    short, long = GROWTH
    grown: dict[str, list[float]] = {}
    print(f"\n| answer | {short:,} steps | {long:,} steps | times: median (range) |\n|---|---|---|---|")
    for kind, found in (("cold", colds), ("warm", times)):
        for name in PICTURES:
            few, many = found[name, short], found[name, long]
            grown[f"{name}, {kind}"] = by = [much / little for much, little in zip(many, few, strict=True)]
            each = f"{statistics.median(few):.0f} ms | {statistics.median(many):.0f} ms | {ratios.told(by, '.1f')}"
            print(f"| {name}, {kind} | {each} |")
    return [ratios.judged(f"{each}, times of {short:,} steps", statistics.median(grown[each]), GROWN) for each in grown]


def timed(client: httpx.Client, path: str) -> float:
    """Return the seconds that an answer takes."""
    began = time.perf_counter()
    client.get(path).raise_for_status()
    return time.perf_counter() - began


class collector:  # noqa: N801 -- used as a context manager
    """A collector process on some data."""

    def __init__(self, data: Path) -> None:
        command = [sys.executable, "-m", "gradcanary.cli", "up", "--port", "0", "--data", str(data)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if "listening on" in line:
                return line.split()[-1]
        raise RuntimeError("the collector did not start")

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


if __name__ == "__main__":
    raise SystemExit(main())
