"""How the time and the room of a batch grow with the layers of a run, its steps, and the runs of a store.

python tests/benchmarks/growth.py [--batches 600] [--runs 10000]
One training posts batches of five steps as fast as they are acknowledged, absmax and norm, to an SQLite store of its
own. Its first batch, which describes the layers, is left out. CPU is the collector's. Prints a table, judges nothing.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import ratios

ratios.need("psutil")

import jobs  # noqa: E402 -- once it is known to be there
import run_list  # noqa: E402 -- likewise
import servers  # noqa: E402 -- likewise
import streams  # noqa: E402 -- likewise

from gradcanary import wire  # noqa: E402 -- likewise
from gradcanary_server.database import Database  # noqa: E402 -- likewise

LAYERS = (50, 500, 5000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=600)
    parser.add_argument("--runs", type=int, default=10_000)
    given = parser.parse_args()
    print("| what | acknowledged after | CPU of a batch | B per point, with the log |\n|---|---|---|---|")
    for layers in LAYERS:
        measure(f"{layers:,} layers", layers, given.batches)
    measure(f"500 layers, {given.runs:,} runs in the store", 500, given.batches, given.runs)
    measure(f"500 layers, {5 * given.batches * jobs.STEPS:,} steps", 500, 5 * given.batches, of_last=given.batches)


def measure(what: str, layers: int, batches: int, runs: int = 0, of_last: int | None = None) -> None:
    """Post to a new store, of so many runs already; print what a batch took, of all or only ``of_last``."""
    with tempfile.TemporaryDirectory(prefix="gradcanary-growth-") as folder:
        data = Path(folder) / "data"
        if runs:
            fill(data, runs)
        series = jobs.Series(layers, batches)
        with servers.collector(data) as collector:
            before = collector.disk()
            session = streams.Session(collector.url)
            session.put_hello(series.stream.hello()).raise_for_status()
            session.post_batch(0, series.body(0, is_first=True)).raise_for_status()
            measured = range(max(1, batches - (of_last or batches)), batches)
            for seq in range(1, measured.start):
                session.post_batch(seq, series.body(seq, is_first=False)).raise_for_status()
            used, acks_ms = collector.cpu_s(), []
            for seq in measured:
                began = time.perf_counter()
                session.post_batch(seq, series.body(seq, is_first=False)).raise_for_status()
                acks_ms.append((time.perf_counter() - began) * 1e3)
            cpu_ms = (collector.cpu_s() - used) / len(measured) * 1e3
            session.post("/end", wire.End("finished", None, None)).raise_for_status()
            room = (collector.disk() - before) / (series.points * batches)
    quick, usual, slow = (f"{each:.1f}" for each in statistics.quantiles(acks_ms, n=4))
    print(f"| {what} | {usual} ms ({quick} to {slow}) | {cpu_ms:.1f} ms | {room:.1f} |", flush=True)


def fill(data: Path, runs: int) -> None:
    """Make a store with so many runs in it."""
    data.mkdir(parents=True)
    database = Database(f"sqlite:///{data / 'gradcanary.db'}")
    run_list.fill(database, runs)
    database.close()


if __name__ == "__main__":
    main()
