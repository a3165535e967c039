"""What a second process of `up --workers` brings: batches a second, how soon they are acknowledged, and at what CPU.

python tests/benchmarks/workers.py [--trainings 24] [--layers 500] [--steps 5] [--seconds 15] [--rounds 5]
    [--workers 1 2]
Each round starts a collector with each number of workers on a new database of one PostgreSQL. Each training posts its
next batch, of 5, 10 or 20 steps, as soon as the last one is acknowledged, so the machine is full: who posts runs on the
same cores, and its part is in the table. Medians of the rounds, with their range.
"""

import argparse
import os
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import ratios

ratios.need("psutil", "pytest")

import time

import httpx
import jobs
import postgresql
import servers
import team
from prometheus_client.parser import text_string_to_metric_families

ROWS = ("batches a second", "acknowledgement, median, ms", "99th percentile, ms")
PARTIES = ("collector", "PostgreSQL")
REST = ("part of the batches that the busiest worker took", "load average of the machine")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainings", type=int, default=24)
    parser.add_argument("--layers", type=int, default=500)
    parser.add_argument("--steps", type=int, choices=[each * jobs.STEPS for each in jobs.TOGETHER], default=jobs.STEPS)
    parser.add_argument("--seconds", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    given = parser.parse_args()
    found: dict[int, list[Sequence[float]]] = defaultdict(list)
    with postgresql.running() as database:
        for number in range(given.rounds):
            for workers in given.workers if number % 2 == 0 else reversed(given.workers):
                found[workers].append(measure(database, workers, given))
                print(f"workers {workers}: {[round(each, 2) for each in found[workers][-1]]}", flush=True)
    print(f"\n{given.trainings} trainings of {given.layers} layers, {given.steps} steps a batch, ", end="")
    print(f"{given.seconds} s, {given.rounds} rounds\n")
    print(f"| | {' | '.join(f'{each} workers' for each in given.workers)} |\n|---|{'---|' * len(given.workers)}")
    parts = [f"{each}, {what}" for what in ("cores", "ms of CPU a batch") for each in (*PARTIES, "who posts")]
    words = (*ROWS, *parts, *REST)
    for place, each in enumerate(words):
        told = (ratios.told([row[place] for row in found[workers]], ".2f") for workers in given.workers)
        print(f"| {each} | {' | '.join(told)} |")
    first, last = given.workers[0], given.workers[-1]
    gains = [many[0] / one[0] for one, many in zip(found[first], found[last], strict=True)]
    print(f"\nbatches a second, {last} workers by {first}, of each round: {ratios.told(gains, '.2f')}")


def measure(database: postgresql.PostgreSQL, workers: int, given: argparse.Namespace) -> Sequence[float]:
    """Return a number for each row of the table."""
    with tempfile.TemporaryDirectory(prefix="gradcanary-workers-") as folder:
        options = ("--workers", str(workers))
        with servers.collector(Path(folder) / "data", database.create_database(), *options) as collector:
            settle(collector, workers)
            parties = dict(zip(PARTIES, (collector.processes, database.processes), strict=True))
            together = given.steps // jobs.STEPS
            load = jobs.Jobs(collector.url, given.trainings, given.layers, seconds=given.seconds, unpaced=together)
            with load:
                with team.Meter(parties) as meter:
                    load.begin()
                    time.sleep(given.seconds)
                acks = load.stop()
            busiest = part_of_busiest(collector.url)
            if acks.problems:
                raise SystemExit("\n".join(acks.problems))
    ack_ms = [team.quantile(acks.ack_s, share) * 1e3 for share in (0.5, 0.99)]
    cores = (*(meter.cores()[each] for each in PARTIES), acks.cpu_s / given.seconds)
    rate = len(acks.ack_s) / given.seconds
    return (rate, *ack_ms, *cores, *(each / rate * 1e3 for each in cores), busiest, os.getloadavg()[0])


def part_of_busiest(url: str) -> float:
    """Return the part of all batches that the busiest worker took."""
    text = httpx.get(f"{url}/metrics").raise_for_status().text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    taken = [each.value for each in samples if each.labels.get("outcome") == "stored"]
    return max(taken) / sum(taken)


def settle(collector: servers.Server, workers: int) -> None:
    """Wait until all processes are there."""
    while len(collector.processes()) < (1 if workers == 1 else workers + 1):
        time.sleep(0.1)


if __name__ == "__main__":
    main()
