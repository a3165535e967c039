"""What it takes to keep a series: the collector through HTTP beside trackio, MLflow and TensorBoard.

python tests/benchmarks/ingest_cost.py [--rounds 7] [--steps 8192] [--layers 500]     (pip install --group benchmarks)
Each is given absmax and norm of the same layers; the slow ones get fewer steps, and all is told per million points.
CPU is that of the process that takes the points, with all that follows: the rules, compaction, the pyramid; without
what it uses at rest, which is measured before. Those who ask for them are not counted, but for TensorBoard, which has
no server. Our runs have 8,192 steps: what a run costs once, by its layers, its first batch and its end, is 40 ms, a
seventh of all at 2,048 steps. trackio, which has no such part, gets 1,024, the others fewer. Bytes are those of all
files, once a server has ended. A request holds 64 steps, the most the agent sends, or 5, those of half a second of a
training of ten steps a second. Exit status 1 where a target is missed.
"""

import argparse
import statistics
import tempfile
from pathlib import Path

import ratios

ratios.need("torch", "trackio", "mlflow", "tensorboard", "psutil")

from trackers import Series, Tracker, all_trackers

CUTS = (64, 5)
TIMES_TRACKIO = {64: 10.0, 5: 8.0}
TIMES_MLFLOW, BYTES_PER_POINT = 500.0, 4.0
STATS = 2


def measure(trackers: dict[str, Tracker], rounds: int, layers: int) -> dict[str, list[float]]:
    """Return the seconds of CPU per million points of each round."""
    found: dict[str, list[float]] = {name: [] for name in trackers}
    for number in range(-1, rounds):
        for name in trackers if number % 2 else reversed(trackers):
            tracker = trackers[name]
            tracker.prepare(f"{name.replace(', ', '-').replace(' ', '-')}-{number + 1}")
            used = tracker.send() / (tracker.steps * layers * STATS) * 1e6
            if number >= 0:  # the first time is that of first connections, imports and empty tables
                found[name].append(used)
    return found


def show(found: dict[str, list[float]], bytes_per_point: dict[str, float]) -> bool:
    """Print the table and the targets; return whether all were met."""
    ours = found[f"gradcanary, {CUTS[0]} steps"]
    print("| taken by, in a request | CPU per 1M points | times the first: median (range) | B per point |")
    print("|---|---|---|---|")
    for name, used in found.items():
        times = ratios.told([theirs / mine for theirs, mine in zip(used, ours, strict=True)], ".1f")
        print(f"| {name} | {statistics.median(used):.2f} s | {times} | {bytes_per_point[name]:.1f} |")
    print()
    return all(
        [*judgements(found), ratios.judged("B per point", next(iter(bytes_per_point.values())), BYTES_PER_POINT)]
    )


def judgements(found: dict[str, list[float]]) -> list[bool]:
    """Hold the collector against trackio, request for request, and against MLflow."""
    are_met = []
    for cut in CUTS:
        ours = found[f"gradcanary, {cut} steps"]
        for other, name, target in (
            ("trackio", f"trackio, {cut} steps", TIMES_TRACKIO[cut]),
            ("MLflow", "MLflow, 1 step", TIMES_MLFLOW),
        ):
            times = statistics.median(theirs / mine for theirs, mine in zip(found[name], ours, strict=True))
            are_met.append(ratios.judged(f"{other}, times {cut} steps in a request", times, target, at_least=True))
    return are_met


def main() -> int:
    """Measure all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ratios.ROUNDS)
    parser.add_argument("--steps", type=int, default=8192)
    parser.add_argument("--layers", type=int, default=500)
    arguments = parser.parse_args()
    series = Series.made(arguments.steps, arguments.layers)
    with tempfile.TemporaryDirectory(prefix="gradcanary-ingest-") as name:
        with all_trackers(Path(name), series, CUTS) as trackers:
            found = measure(trackers, arguments.rounds, arguments.layers)
        runs = {each: sum(other.split(",")[0] == each.split(",")[0] for other in found) for each in found}
        points = {each: tracker.steps * arguments.layers * STATS for each, tracker in trackers.items()}
        turns = arguments.rounds + 1
        sizes = {each: tracker.disk() / (points[each] * runs[each] * turns) for each, tracker in trackers.items()}
    print(f"{arguments.layers} layers, {arguments.rounds} rounds\n")
    return int(not show(found, sizes))


if __name__ == "__main__":
    raise SystemExit(main())
