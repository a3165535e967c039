"""What watching costs a training on the CPU: the agent beside nothing, wandb, Lightning's norms and ``.item()`` hooks.

python tests/benchmarks/agent_overhead.py [--rounds 8] [--pairs 10]      (pip install --group benchmarks)
Two equal trainings in one process, one of them watched, a step of each in turns (``pairs.py``); torch has one thread.
A round is so many pairs of steps for each way to watch, few for those that cost 30 times as much. The agent's
default is that after its first 1,000 steps: with the interval N that it settles for (``settling.py``) a step costs
what one costs that is not sampled, which is measured with hooks as they are by then, and 1/N of what ``every=1`` adds
to that, round by round. The collector that takes the agent's batches and the service of wandb are processes of their
own and are not counted.
Exit status 1 where a target is missed by the median.
"""

import argparse
import statistics
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import ratios

ratios.need("torch", "wandb", "lightning", "psutil")

import torch
from pairs import alone, paired
from servers import collector
from settling import AT_DEFAULT, Settled, settle
from trainings import Gpt, Loop, Lora
from watchers import EVERY_STEP, NOTHING, UNSAMPLED, WANDB, Ways, all_ways

DEFAULT = "gradcanary, default after 1,000 steps"
AT_EVERY_STEP, CHEAPER_THAN_WANDB = 1.03, 10.0
CLOSE, DEAR_PART = (NOTHING, UNSAMPLED, EVERY_STEP), 5
"""Ways that have to be told from nothing; of the others one pair in so many is enough."""


@dataclass
class Cost:
    """Seconds of CPU per step of one way, and their ratios to nothing, one each round."""

    cpu_s: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)

    @property
    def added(self) -> float:
        """The part of a step that watching adds."""
        return statistics.median(self.ratios) - 1


def measure(loops: tuple[Loop, Loop], ways: Ways, rounds: int, pairs: int) -> dict[str, Cost]:
    """Return what each way costs."""
    costs = {way: Cost() for way in ways}
    for way in ways:
        paired(loops, ways[way], 1)  # imports, first connections, caches of torch: not measured
    for number in range(rounds):
        for way in ways if number % 4 < 2 else reversed(ways):
            used, ratio = paired(loops, ways[way], pairs if way in CLOSE else max(pairs // DEAR_PART, 1))
            costs[way].cpu_s.append(used)
            costs[way].ratios.append(ratio)
        loops = loops[::-1]
    return costs


def of_default(costs: dict[str, Cost], settled: Settled) -> Cost:
    """Return what a step of the default costs, from those that are sampled and those that are not."""
    sampled, others = costs[EVERY_STEP], costs[UNSAMPLED]
    return Cost(settled.default(sampled.cpu_s, others.cpu_s), settled.default(sampled.ratios, others.ratios))


def show(costs: dict[str, Cost]) -> bool:
    """Print the table and the targets; return whether all were met."""
    print("| watched by | CPU per step | ratio: median (range) |\n|---|---|---|")
    for way, cost in costs.items():
        print(f"| {way} | {statistics.median(cost.cpu_s) * 1e3:.1f} ms | {ratios.told(cost.ratios)} |")
    print()
    default, every_step = statistics.median(costs[DEFAULT].ratios), statistics.median(costs[EVERY_STEP].ratios)
    cheaper = costs[WANDB].added / max(costs[EVERY_STEP].added, 1e-4)
    return all(
        [
            ratios.judged("default", default, AT_DEFAULT),
            ratios.judged("`every=1`", every_step, AT_EVERY_STEP),
            ratios.judged("wandb adds, times `every=1`", cheaper, CHEAPER_THAN_WANDB, at_least=True),
        ]
    )


def main() -> int:
    """Measure both trainings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--pairs", type=int, default=10)
    arguments = parser.parse_args()
    alone()
    are_met = []
    for kind in (Gpt, Lora):
        loops = Loop(kind), Loop(kind)
        trained = loops[0].trained
        print(f"\n{kind.__name__}: {sum(map(torch.numel, trained)):,} parameters in {len(trained)} tensors")
        print(f"torch {torch.__version__}, {arguments.rounds} rounds of {arguments.pairs} pairs\n", flush=True)
        with (
            tempfile.TemporaryDirectory(prefix="gradcanary-cost-") as folder,
            collector(Path(folder) / "data") as receiver,
        ):
            settled = settle(loops[0], receiver.url)
            with all_ways(receiver.url, settled) as ways:
                costs = measure(loops, ways, arguments.rounds, arguments.pairs)
        print(f"N = {settled.every}; own share {settled.share:.2%}\n", flush=True)
        costs = {DEFAULT: of_default(costs, settled), **costs}
        are_met.append(show(costs))
    return int(not all(are_met))


if __name__ == "__main__":
    raise SystemExit(main())
