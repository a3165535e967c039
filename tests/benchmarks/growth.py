"""How the time and the room of a batch, of pages and of loops grow with what is in a store.

python tests/benchmarks/growth.py [--only batches runs steps sessions shards launches] [--database postgresql]
    [--batches 600] [--runs 10000] [--steps 1000000] [--layers 3000] [--sessions 600] [--rounds 5]

The size of one way can be made smaller: a million steps of 3,000 layers are some twenty minutes of CPU to fill, by the
compactor's own functions into tiles. A number of batches without --only measures these alone.

First batches alone: one training posts batches of five steps as fast as they are acknowledged, absmax and norm, to a
store of its own. Its first batch, which describes the layers, is left out. CPU is the collector's, and PostgreSQL's
with it; writes are those of SQLite's log and file, or of PostgreSQL's log alone.

Then each way to be large beside a tenth of it, two collectors in turns: runs in the store; steps of one run of many
layers; sessions of one launch, of replicas or of shards, each asked as its ranks would; launches of one run. Opening a
page is both questions that a browser asks; before each question a batch comes. What a loop takes that finds nothing
to do, and what a deletion takes, is measured in this process, the collector ended. Medians of five rounds.
A miss is what takes more than 11.5 times a tenth's CPU; where it need not grow at all, more than 1.5 times it and a
millisecond. Exit status 1 where something is missed; a miss comes first.
"""

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import ratios

ratios.need("psutil")

import growth_questions
import growth_stores
import jobs
import postgresql
import psutil
import run_list
import servers

from gradcanary import wire
from gradcanary_server.storage.database import Database
from support import streams

LAYERS = (50, 500, 5000)


WAYS = ("runs", "steps", "sessions", "shards", "launches")
LINEAR, CONSTANT, SLACK_MS = 11.5, 1.5, 1.0
GROWS = {
    "runs": ("/metrics", "search of runs", "watchdog, a round (each 5 s)", "page: storage"),
    "steps": ("deletion of the run", "the compactor's round after it", "page: storage"),
    "sessions": ("watchdog, a round (each 5 s)", "compactor, a round (each 2 s)"),
    "shards": ("watchdog, a round (each 5 s)", "compactor, a round (each 2 s)"),
    "launches": (),
}
"""What may grow, as much as what it looks at: each open session, each run, the row of each tile."""

OF_LAUNCH = (
    "page: run",
    "page: layer",
    "page: settings of the run",
    "page: comparison",
    "deletion of the run",
    "the compactor's round after it",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=("batches", *WAYS))
    parser.add_argument("--batches", type=int)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--layers", type=int, default=3_000)
    parser.add_argument("--sessions", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    given = parser.parse_args()
    only = given.only or (("batches", *WAYS) if given.batches is None else ("batches",))
    sizes = {"runs": given.runs, "steps": given.steps}
    are_met = []
    with postgresql.running() if given.database == "postgresql" else contextlib.nullcontext() as server:
        if "batches" in only:
            measure_batches(server, given.batches or 600, given.runs)
        for way in (each for each in WAYS if each in only):
            layers = {"steps": given.layers, "shards": growth_stores.LAYERS_OF_SHARDS}.get(way, growth_stores.LAYERS)
            are_met.append(compare(server, way, sizes.get(way, given.sessions), layers, given.rounds))
    return int(not all(are_met))


def measure_batches(server: postgresql.PostgreSQL | None, batches: int, runs: int) -> None:
    """Print what a batch takes by layers, runs in the store, and steps."""
    print("| what | acknowledged after | CPU of a batch | writes of a batch | B per point, with the log |")
    print("|---|---|---|---|---|")
    for layers in LAYERS:
        measure(server, f"{layers:,} layers", layers, batches)
    measure(server, f"500 layers, {runs:,} runs in the store", 500, batches, runs)
    many, few = 5 * batches, batches
    measure(server, f"500 layers, {many * jobs.STEPS:,} steps", 500, many, of_last=few)


def compare(server: postgresql.PostgreSQL | None, way: str, size: int, layers: int, rounds: int) -> bool:
    """Measure a store beside one of a tenth; print a table, and return True if nothing is missed."""
    with contextlib.ExitStack() as stack:
        pair = [Large(stack, server, way, each, layers, rounds) for each in (size // 10, size)]
        for number in range(1 + rounds):
            for each in pair:
                each.asked.ask(number > 0)
        few, many = [each.finish(rounds) for each in pair]
    found = [Row(way, name, few.costs[name], many.costs[name]) for name in few.costs]
    print(
        f"\n| {way} | {size // 10:,}: CPU (time) | {size:,}: CPU (time) | CPU, times | at most |\n|---|---|---|---|---|"
    )
    for row in sorted(found, key=lambda row: row.is_met):
        print(row.told())
    print(
        f"\nlargest memory: {few.peak_mb:.0f} MB, {many.peak_mb:.0f} MB; on disk {few.disk_mb:.0f}, {many.disk_mb:.0f}"
    )
    met = [row.is_met for row in found]
    met.append(ratios.judged(f"{way}: memory, times", many.peak_mb / few.peak_mb, CONSTANT))
    return all(met)


class Large:
    """A store that is large in one way, with its collector and its training."""

    def __init__(
        self,
        stack: contextlib.ExitStack,
        server: postgresql.PostgreSQL | None,
        way: str,
        size: int,
        layers: int,
        rounds: int,
    ) -> None:
        data = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gradcanary-growth-"))) / "data"
        data.mkdir()
        self._url = f"sqlite:///{data / 'gradcanary.db'}" if server is None else server.create_database()
        began = time.perf_counter()
        database = Database(self._url)
        growth_stores.FILLS.get(way, growth_stores.fill_nothing)(database, size, layers)
        database.close()
        self._server = server
        self._running = stack.enter_context(contextlib.ExitStack())
        collector = servers.collector(data, None if server is None else self._url)
        self._collector = self._running.enter_context(collector)
        batches = (1 + rounds) * (growth_questions.BATCHES_EACH + 20 * growth_questions.EACH)
        training = growth_stores.Training(self._collector.url, way, size, layers, batches)
        print(f"{way}: {size:,} after {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
        self.asked = growth_questions.Asked(self._collector.url, training, self._processes)
        self._running.callback(self.asked.close)

    def finish(self, rounds: int) -> "Found":
        """End the collector; return all costs, with those of rounds at rest."""
        peak_mb = growth_questions.peak_mb(self._collector.processes())
        self._running.close()
        database = Database(self._url)
        with contextlib.closing(database):
            at_rest = growth_questions.rounds_at_rest(database, self._of_database, rounds)
        return Found({**self.asked.costs, **at_rest}, peak_mb, size(self._url) / 1e6)

    def _of_database(self) -> list[psutil.Process]:
        return [] if self._server is None else self._server.processes()

    def _processes(self) -> list[psutil.Process]:
        return [*self._collector.processes(), *self._of_database()]


class Found(NamedTuple):
    """What was found of a store; memory is that of its collector."""

    costs: dict[str, growth_questions.Cost]
    peak_mb: float
    disk_mb: float


class Row(NamedTuple):
    """What one thing takes of a tenth, and of the whole."""

    way: str
    name: str
    few: growth_questions.Cost
    many: growth_questions.Cost

    @property
    def most(self) -> float:
        of_launch = self.way in ("sessions", "shards", "launches") and self.name in OF_LAUNCH
        return LINEAR if of_launch or self.name in GROWS[self.way] else CONSTANT

    @property
    def is_met(self) -> bool:
        few, many = (statistics.median(each.cpu_ms) for each in (self.few, self.many))
        return many <= self.most * few or many - few < SLACK_MS

    def told(self) -> str:
        """Return the row of the table."""
        few, many = (statistics.median(each.cpu_ms) for each in (self.few, self.many))
        verdict = f"{self.most:g}" if self.is_met else f"{self.most:g}, **missed**"
        return f"| {self.name} | {self.few.told()} | {self.many.told()} | {many / few:.1f} | {verdict} |"


def measure(
    server: postgresql.PostgreSQL | None,
    what: str,
    layers: int,
    batches: int,
    runs: int = 0,
    of_last: int | None = None,
) -> None:
    """Post to a new store, of so many runs already; print what a batch took, of all or only ``of_last``."""
    series = jobs.Series(layers, batches)
    with tempfile.TemporaryDirectory(prefix="gradcanary-growth-") as folder:
        data = Path(folder) / "data"
        data.mkdir()
        url = f"sqlite:///{data / 'gradcanary.db'}" if server is None else server.create_database()
        if runs:
            fill(url, runs)
        with servers.collector(data, None if server is None else url) as collector:
            before, session = size(url), streams.Session(collector.url)
            session.put_hello(series.stream.hello()).raise_for_status()
            session.post_batch(0, series.body(0, 1, is_first=True).raw).raise_for_status()
            measured = range(max(1, batches - (of_last or batches)), batches)
            for seq in range(1, measured.start):
                session.post_batch(seq, series.body(seq, 1, is_first=False).raw).raise_for_status()
            begun, acks_ms = taken(url, collector, server), []
            for seq in measured:
                began = time.perf_counter()
                session.post_batch(seq, series.body(seq, 1, is_first=False).raw).raise_for_status()
                acks_ms.append((time.perf_counter() - began) * 1e3)
            cpu_s, written = (now - then for now, then in zip(taken(url, collector, server), begun, strict=True))
            session.post("/end", wire.End("finished", None, None)).raise_for_status()
            room = (size(url) - before) / (series.body(0, 1, is_first=True).points * batches)
    quick, usual, slow = (f"{each:.1f}" for each in statistics.quantiles(acks_ms, n=4))
    each = f"{cpu_s / len(measured) * 1e3:.1f} ms | {written / len(measured) / 1e3:.0f} kB"
    print(f"| {what} | {usual} ms ({quick} to {slow}) | {each} | {room:.1f} |", flush=True)


def taken(url: str, collector: servers.Server, server: postgresql.PostgreSQL | None) -> tuple[float, int]:
    """Return the seconds of CPU and the bytes written so far."""
    if server is None:
        return collector.cpu_s(), sum(each.io_counters().write_bytes for each in collector.processes())
    database = Database(url)
    with contextlib.closing(database), database.read() as connection:
        logged = connection.exec_driver_sql("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')").scalar_one()
    return servers.cpu_of([*collector.processes(), *server.processes()]), int(logged)


def fill(url: str, runs: int) -> None:
    """Make a store with so many runs in it."""
    database = Database(url)
    run_list.fill(database, runs)
    database.close()


def size(url: str) -> int:
    """Return the bytes that a store takes."""
    database = Database(url)
    with contextlib.closing(database), database.read() as connection:
        return database.size(connection)


if __name__ == "__main__":
    raise SystemExit(main())
