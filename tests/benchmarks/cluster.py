"""A Citus cluster beside one PostgreSQL: batches a second, how soon they are acknowledged, and the CPU by node.

python tests/benchmarks/cluster.py --cluster postgresql://USER@COORDINATOR/DATABASE [--trainings 12] [--layers 500]
    [--steps 5] [--seconds 15] [--rounds 3]
The cluster is as ``make test-citus`` needs one, all of its nodes on this machine and used by nothing else. Each round
starts a collector on a new database of each. Each training posts its next batch as soon as the last one is
acknowledged. Medians of the rounds, with their range.
"""

import argparse
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import ratios

ratios.need("psutil", "pytest")

import time

import jobs
import postgresql
import psutil
import psycopg
import servers
import team
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from support import citus

NODES = "SELECT groupid, nodename, nodeport FROM pg_dist_node WHERE isactive ORDER BY groupid"
ROWS = ("batches a second", "acknowledgement, median, ms", "99th percentile, ms")

Processes = Callable[[], list[psutil.Process]]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--trainings", type=int, default=12)
    parser.add_argument("--layers", type=int, default=500)
    parser.add_argument("--steps", type=int, choices=[each * jobs.STEPS for each in jobs.TOGETHER], default=jobs.STEPS)
    parser.add_argument("--seconds", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    parties = ("collector", "PostgreSQL or coordinator", "nodes together", "who posts")
    words = (*ROWS, *(f"{each}, ms of CPU a batch" for each in parties))
    found: dict[str, list[Sequence[float]]] = defaultdict(list)
    with postgresql.running() as plain, citus.using(given.cluster) as cluster:
        nodes = nodes_of(given.cluster)
        stores = {"PostgreSQL": (plain.create_store, plain.processes, list), "Citus": (cluster.create_store, *nodes)}
        stores["Citus, collector at a worker"] = (lambda: cluster.at_worker(cluster.create_store()), *nodes)
        for number in range(given.rounds):
            for name in stores if number % 2 == 0 else reversed(stores):
                create_store, first, others = stores[name]
                found[name].append(measure(create_store(), first, others, given))
                print(f"{name}: {[round(each, 2) for each in found[name][-1]]}", flush=True)
    print(f"\n{given.trainings} trainings of {given.layers} layers, {given.steps} steps a batch, ", end="")
    print(f"{given.seconds} s, {given.rounds} rounds\n\n| | {' | '.join(found)} |\n|---|{'---|' * len(found)}")
    for place, each in enumerate(words):
        told = (ratios.told([row[place] for row in rows], ".2f") for rows in found.values())
        print(f"| {each} | {' | '.join(told)} |")


def nodes_of(url: str) -> tuple[Processes, Processes]:
    """Return the processes of the coordinator, and of all other nodes."""
    with psycopg.connect(url) as connection:
        nodes = connection.execute(NODES).fetchall()
    mains: dict[bool, list[psutil.Process]] = defaultdict(list)
    for group, host, port in nodes:
        with psycopg.connect(make_conninfo(**{**conninfo_to_dict(url), "host": host, "port": port})) as connection:
            mains[group == 0].append(psutil.Process(connection.info.backend_pid).parent())

    def processes(is_coordinator: bool) -> list[psutil.Process]:
        return [each for main in mains[is_coordinator] for each in (main, *main.children(recursive=True))]

    return lambda: processes(True), lambda: processes(False)


def measure(url: str, first: Processes, others: Processes, given: argparse.Namespace) -> Sequence[float]:
    """Return a number for each row of the table."""
    with (
        tempfile.TemporaryDirectory(prefix="gradcanary-cluster-") as folder,
        servers.collector(Path(folder) / "data", url) as collector,
    ):
        together = given.steps // jobs.STEPS
        load = jobs.Jobs(collector.url, given.trainings, given.layers, seconds=given.seconds, unpaced=together)
        parties = {"collector": collector.processes, "first": first, "others": others}
        with load:
            with team.Meter(parties) as meter:
                load.begin()
                time.sleep(given.seconds)
            acks = load.stop()
        if acks.problems:
            raise SystemExit("\n".join(acks.problems))
    rate = len(acks.ack_s) / given.seconds
    cores = (*meter.cores().values(), acks.cpu_s / given.seconds)
    ack_ms = (team.quantile(acks.ack_s, share) * 1e3 for share in (0.5, 0.99))
    return (rate, *ack_ms, *(each / rate * 1e3 for each in cores))


if __name__ == "__main__":
    main()
