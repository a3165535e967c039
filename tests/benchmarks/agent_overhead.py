"""What watching costs a training on the CPU: the agent beside nothing, wandb, Lightning's norms and ``.item()`` hooks.

python tests/benchmarks/agent_overhead.py [--rounds 7] [--steps 3]      (pip install --group benchmarks)
A round is one turn for each way to watch, with a turn of nothing before and after it: a ratio is that of a turn to the
mean of those two. The agent's default is that after its first 1,000 steps: with the interval N that it settles for
(``settling.py``) a step costs what one costs that is not sampled, which is a turn of its own, with hooks as they are by
then, and 1/N of what ``every=1`` adds to that, round by round. CPU time is that of the whole process, all threads
included, over the steps of a turn but its first two; the collector that takes the agent's batches and the service of
wandb are processes of their own and are not counted.
Exit status 1 where a target is missed by the median.
"""

import argparse
import statistics
import tempfile
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import ratios

ratios.need("torch", "wandb", "lightning", "psutil")

import torch  # noqa: E402 -- once it is known to be there
from servers import collector  # noqa: E402 -- likewise
from settling import AT_DEFAULT, Settled, settle, turn  # noqa: E402 -- likewise
from trainings import Gpt, Loop, Lora  # noqa: E402 -- likewise
from watchers import EVERY_STEP, NOTHING, UNSAMPLED, WANDB, Ways, all_ways  # noqa: E402 -- likewise

DEFAULT = "gradcanary, default after 1,000 steps"
AT_EVERY_STEP, CHEAPER_THAN_WANDB = 1.03, 10.0


@dataclass
class Cost:
    """Seconds of CPU per step of one way, and their ratios to nothing, one each round."""

    cpu_s: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)

    @property
    def added(self) -> float:
        """The part of a step that watching adds."""
        return statistics.median(self.ratios) - 1


def measure(loop: Loop, ways: Ways, rounds: int, steps: int) -> dict[str, Cost]:
    """Return what each way costs."""
    costs = {way: Cost() for way in ways}
    for way in ways:
        turn(loop, partial(ways[way], loop), 1)  # imports, first connections, caches of torch: not measured
    for number in range(rounds):
        before = turn(loop, nullcontext, steps)
        others = [way for way in ways if way != NOTHING]
        for way in others if number % 2 else reversed(others):
            used, after = turn(loop, partial(ways[way], loop), steps), turn(loop, nullcontext, steps)
            costs[way].cpu_s.append(used)
            costs[way].ratios.append(2 * used / (before + after))
            costs[NOTHING].cpu_s.append(after)
            costs[NOTHING].ratios.append(after / before)
            before = after
    return costs


def of_default(costs: dict[str, Cost], settled: Settled) -> Cost:
    """Return what a step of the default costs, from the turns of those that are sampled and those that are not."""
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
    parser.add_argument("--rounds", type=int, default=ratios.ROUNDS)
    parser.add_argument("--steps", type=int, default=3)
    arguments = parser.parse_args()
    are_met = []
    for kind in (Gpt, Lora):
        loop = Loop(kind)
        elements = sum(map(torch.numel, loop.trained))
        print(f"\n{kind.__name__}: {elements:,} parameters in {len(loop.trained)} tensors")
        print(
            f"torch {torch.__version__}, {torch.get_num_threads()} thread(s), {arguments.rounds} rounds\n", flush=True
        )
        with (
            tempfile.TemporaryDirectory(prefix="gradcanary-cost-") as folder,
            collector(Path(folder) / "data") as receiver,
        ):
            settled = settle(loop, receiver.url)
            with all_ways(receiver.url, settled) as ways:
                costs = measure(loop, ways, arguments.rounds, arguments.steps)
        rest = "some hooks at rest" if settled.rests else "no hook at rest"
        print(f"N = {settled.every}, {rest}; own share {settled.share:.2%}\n", flush=True)
        costs = {DEFAULT: of_default(costs, settled), **costs}
        are_met.append(show(costs))
    return int(not all(are_met))


if __name__ == "__main__":
    raise SystemExit(main())
