"""How the time and the room of a batch grow with the layers of a run, its steps, and the runs of a store.

python tests/benchmarks/growth.py [--batches 600] [--runs 10000] [--database postgresql]
One training posts batches of five steps as fast as they are acknowledged, absmax and norm, to a store of its own. Its
first batch, which describes the layers, is left out. CPU is the collector's, and PostgreSQL's with it; writes are those
of SQLite's log and file, or of PostgreSQL's log alone. Prints a table, judges nothing.
"""

import argparse
import contextlib
import statistics
import tempfile
import time
from pathlib import Path

import ratios

ratios.need("psutil")

import jobs
import postgresql
import run_list
import servers

from gradcanary import wire
from gradcanary_server.storage.database import Database
from support import streams

LAYERS = (50, 500, 5000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=600)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    given = parser.parse_args()
    print("| what | acknowledged after | CPU of a batch | writes of a batch | B per point, with the log |")
    print("|---|---|---|---|---|")
    with postgresql.running() if given.database == "postgresql" else contextlib.nullcontext() as server:
        for layers in LAYERS:
            measure(server, f"{layers:,} layers", layers, given.batches)
        measure(server, f"500 layers, {given.runs:,} runs in the store", 500, given.batches, given.runs)
        many, few = 5 * given.batches, given.batches
        measure(server, f"500 layers, {many * jobs.STEPS:,} steps", 500, many, of_last=few)


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
    main()
