"""A team's collector: a hundred trainings post to it while ten people look on. Acknowledgements, CPU, memory, disk.

python tests/benchmarks/team.py [--jobs 100] [--layers 500] [--seconds 300] [--settle 30] [--tabs 10]
    [--database postgresql] [--workers 2] [--pages-apart]
Each training has ten steps a second, all sampled, absmax and norm, in a batch each half second, or as seldom as the
collector asks for, which agents heed. They begin one after the other, and what is measured begins when all have been
there for a while: a collector asks for larger batches in steps of some seconds. An acknowledgement counts from the
moment at which its batch was due. Every other tab shows the list of runs, the others a run each, and each asks once a
second (tabs.py). CPU, memory and writes are those of the collector and of PostgreSQL, each by itself; who posts and who
looks is counted apart. Exit status 1 where a target is missed.
"""

import argparse
import contextlib
import sqlite3
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

import httpx
import ratios

ratios.need("psutil", "pytest")

import jobs
import postgresql
import psutil
import servers
import tabs
from prometheus_client.parser import text_string_to_metric_families

ACK_MS, CORES = 100.0, 2.0
QUIET_S = 5.0


def main() -> int:
    """Print the table and whether the targets were met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--layers", type=int, default=500)
    parser.add_argument("--seconds", type=int, default=300)
    parser.add_argument("--settle", type=int, default=30, help="seconds with all of the load that are not measured")
    parser.add_argument("--tabs", type=int, default=10)
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--workers", type=int, default=1, help="processes of the collector, on PostgreSQL")
    parser.add_argument("--pages-apart", action="store_true", help="pages in a process of their own")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gradcanary-team-") as folder, contextlib.ExitStack() as stack:
        database = stack.enter_context(postgresql.running()) if given.database == "postgresql" else None
        address = database and database.create_database()
        options = ("--workers", str(given.workers)) if given.workers > 1 else ()
        options += ("--pages-apart",) if given.pages_apart else ()
        collector = stack.enter_context(servers.collector(Path(folder) / "data", address, *options))
        measured = {"collector": collector.processes}
        if database is not None:
            measured["PostgreSQL"] = database.processes
        lasts_s = given.settle + given.seconds
        with jobs.Jobs(collector.url, given.jobs, given.layers, seconds=lasts_s) as load:
            with tabs.Tabs(collector.url, shown(given.tabs, given.jobs)) as readers:
                time.sleep(given.settle)
                readers.answers_s.clear()
                with Meter(measured) as meter:
                    load.begin()
                    time.sleep(given.seconds)
            acks = load.stop()
        settled(collector)
        told = counted(collector.url)
        free = free_bytes(Path(folder) / "data" / "gradcanary.db")
    print(f"{given.jobs} trainings of {given.layers} layers, {given.tabs} tabs, {given.seconds} s, ", end="")
    print(f"{given.database}, {given.workers} {'worker' if given.workers == 1 else 'workers'}\n")
    ack_ms = show(acks, readers.answers_s, meter, given.seconds)
    used = told["store_bytes"] - free
    print(f"| store, all of it in tiles | {used / 2**20:,.0f} MB |")
    print(f"| free pages and SQLite's log | {free / 2**20:,.0f} MB |")
    print(f"| a point takes | {used / told['ingest_points_total']:.1f} B |\n")
    problems = [*acks.problems, *readers.problems]
    print("".join(f"- {each}\n" for each in problems), end="")
    are_met = [
        ratios.judged("99th percentile of acknowledgements, ms", ack_ms, ACK_MS),
        ratios.judged("cores", sum(meter.cores().values()), CORES),
    ]
    return int(bool(problems) or not all(are_met))


def free_bytes(file: Path) -> int:
    """Return the bytes of SQLite's log and of pages that it will use again; 0 on PostgreSQL."""
    if not file.exists():
        return 0
    with contextlib.closing(sqlite3.connect(file)) as connection:
        free, size = (connection.execute(f"PRAGMA {word}").fetchone()[0] for word in ("freelist_count", "page_size"))
    log = file.with_name(f"{file.name}-wal")
    return int(free * size) + (log.stat().st_size if log.exists() else 0)


def shown(count: int, runs: int) -> list[str | None]:
    """Return what so many tabs show: the list, or a run; those are from all over it."""
    return [None if number % 2 else jobs.run_name(number * runs // count) for number in range(count)]


class Meter:
    """What groups of processes use while the block lasts: CPU, the most memory they had, and what they wrote."""

    def __init__(self, groups: Mapping[str, Callable[[], Sequence[psutil.Process]]]) -> None:
        self._groups = groups
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.memory = dict.fromkeys(groups, 0)
        self.written = dict.fromkeys(groups, 0)

    def __enter__(self) -> Self:
        self._began, self._used = time.perf_counter(), self._cpu()
        self._before = {name: self._written(name) for name in self._groups}
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._took, self._until = time.perf_counter() - self._began, self._cpu()
        self.written = {name: self._written(name) - self._before[name] for name in self._groups}
        self._stopping.set()
        self._thread.join()

    def cores(self) -> dict[str, float]:
        """Return how many cores each group kept busy."""
        return {name: (self._until[name] - self._used[name]) / self._took for name in self._groups}

    def _watch(self) -> None:
        while not self._stopping.wait(1):
            for name, processes in self._groups.items():
                # Of what is shared, as PostgreSQL's buffers are, each process has its part.
                with contextlib.suppress(psutil.NoSuchProcess):  # PostgreSQL's come and go
                    now = sum(each.memory_full_info().pss for each in processes())
                    self.memory[name] = max(self.memory[name], now)

    def _cpu(self) -> dict[str, float]:
        return {name: servers.cpu_of(processes()) for name, processes in self._groups.items()}

    def _written(self, name: str) -> int:
        written = 0
        for each in self._groups[name]():
            with contextlib.suppress(psutil.NoSuchProcess):
                written += each.io_counters().write_bytes
        return written


def show(acks: jobs.Acks, answers_s: Sequence[float], meter: Meter, seconds: float) -> float:
    """Print the table; return the 99th percentile of acknowledgements in milliseconds."""
    print("| what | found |\n|---|---|")
    print(f"| acknowledged | {len(acks.ack_s) / seconds:.0f} batches a second, {acks.points / seconds:,.0f} points |")
    print(f"| acknowledgement: median, p99, longest | {_spread(acks.ack_s)} |")
    print(f"| posted after it was due: median, p99, longest | {_spread(acks.late_s)} |")
    print(f"| asked to be left between two batches: median, p99, longest | {_spread(acks.spacing_s)} |")
    if answers_s:
        print(f"| refresh of a tab, of {len(answers_s) / seconds:.1f} a second | {_spread(answers_s)} |")
    for name, cores in meter.cores().items():
        memory, written = meter.memory[name] / 2**20, meter.written[name] / 2**20 / seconds
        print(f"| {name} | {cores:.2f} cores, {memory:,.0f} MB of memory, writes {written:.1f} MB/s |")
    print(f"| who posts | {acks.cpu_s / seconds:.2f} cores |")
    return quantile(acks.ack_s, 0.99) * 1e3


def _spread(seconds: Sequence[float]) -> str:
    return ", ".join(f"{quantile(seconds, share) * 1e3:.0f} ms" for share in (0.5, 0.99, 1.0))


def quantile(numbers: Sequence[float], share: float) -> float:
    """Return the number below which such a share of the numbers is."""
    return sorted(numbers)[min(len(numbers) - 1, int(len(numbers) * share))]


def settled(collector: servers.Server) -> None:
    """Wait until all of it is in tiles and nobody has anything to do any more."""
    while True:
        used = collector.cpu_s()
        time.sleep(QUIET_S)
        at_rest = 0.02 * QUIET_S * len(collector.processes())
        if collector.cpu_s() - used < at_rest and not counted(collector.url)["compaction_waiting_sessions"]:
            return


def counted(url: str) -> dict[str, float]:
    """Return what the collector says of itself: those numbers that have no labels but that of a worker."""
    text = httpx.get(f"{url}/metrics").raise_for_status().text
    found: dict[str, list[float]] = defaultdict(list)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.labels.keys() <= {"worker"}:
                found[sample.name.removeprefix("gradcanary_")].append(sample.value)
    # Workers count what each of them did, and say the same of the store.
    return {name: sum(each) if name.endswith("_total") else max(each) for name, each in found.items()}


if __name__ == "__main__":
    raise SystemExit(main())
