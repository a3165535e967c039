"""What the agent costs where it chooses the interval itself, from 10 to 5,000 tensors and 0.1M to 100M parameters.

python tests/benchmarks/agent_budget.py [--rounds 7] [--steps 3] [--look 20] [--only NAME ...]
What counts is what comes after the first 1,000 steps of a launch, with the interval N that the agent settles for
(``settling.py``). Rounds measure, each turn between two of the training unwatched, steps of which each is sampled and
steps of which none is, with most hooks disabled; a step of the default costs the latter and 1/N of
the difference. CPU time is that of the whole process. Memory is what the resident set grew by from
before ``watch()`` to ten sampled steps later.
Exit status 1 where its own share is over the budget, or the median of a default by more than its own unwatched turns
differ. Without rounds there is the share alone: all that a machine can tell that does other work.
"""

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import ratios

ratios.need("torch", "psutil")

import torch
from servers import collector
from settling import AT_DEFAULT, LOOK, Settled, Training, settle, turn
from torch import Tensor, nn
from trainings import Gpt, Loop

import gradcanary

NOBODY = "http://127.0.0.1:9"
THREADS = 1
SAMPLED, OTHERS, UNHEARD = "each step sampled", "none sampled", "each sampled, no collector"


class Chain(nn.Module):
    """Linear layers of one width, each added to what comes in."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.scale = layers**-0.5

    def forward(self, inputs: Tensor) -> Tensor:
        for layer in self.layers:
            inputs = inputs + self.scale * layer(inputs)
        return inputs


class ChainLoop:
    """A plain training of a chain, with the interface of ``trainings.Loop``."""

    cpu_s = Loop.cpu_s

    def __init__(self, layers: int, width: int, batch: int) -> None:
        torch.manual_seed(0)
        self.model = Chain(layers, width)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self._inputs = torch.randn(batch, width)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(self._inputs).square().mean().backward()
        self.optimizer.step()


TRAININGS: dict[str, Callable[[], Training]] = {
    "small": lambda: ChainLoop(5, 140, 2048),
    "wide": lambda: ChainLoop(5, 4472, 64),
    "gpt": lambda: Loop(Gpt),
    "many-small": lambda: ChainLoop(2500, 6, 64),
    "many-wide": lambda: ChainLoop(2500, 199, 64),
}


@dataclass
class Found:
    """Ratios of CPU time to that of the training unwatched, by way, one each round; and what was settled for."""

    settled: Settled
    noise: list[float] = field(default_factory=list)
    ratios: dict[str, list[float]] = field(default_factory=dict)

    def default(self) -> list[float]:
        """Return the ratios of a step of the default."""
        return self.settled.default(self.ratios[SAMPLED], self.ratios[OTHERS])


def measured(loop: Training, url: str, rounds: int, steps: int, look_steps: int) -> Found:
    """Return what watching costs a training."""
    settled = settle(loop, url, look_steps)
    found = Found(settled)
    ways: dict[str, Callable[[], gradcanary.Watch]] = {
        SAMPLED: lambda: settled.watch(loop, url, 1),
        OTHERS: lambda: settled.watch(loop, url, 1000),
        UNHEARD: lambda: settled.watch(loop, NOBODY, 1),
    }
    found.ratios = {name: [] for name in ways}
    for _ in range(rounds):
        before = turn(loop, nullcontext, steps)
        for name, begin in ways.items():
            used, after = turn(loop, begin, steps), turn(loop, nullcontext, steps)
            found.ratios[name].append(2 * used / (before + after))
            found.noise.append(after / before)
            before = after
    return found


def show(name: str, loop: Training, found: Found) -> bool:
    """Print a line of the table; return whether the default keeps to its budget, as far as can be told."""
    trained = [each for each in loop.model.parameters() if each.requires_grad]
    size = f"{len(trained):,} tensors, {sum(map(torch.numel, trained)) / 1e6:.1f}M"
    settled = found.settled
    told = [ratios.told(each) if each else "" for each in (found.noise, *found.ratios.values(), found.default())]
    others = f"{settled.hooks_s * 1e3:.2f} + {settled.sender_s * 1e3:.2f}"
    print(
        f"| {name}: {size} | {settled.step_s * 1e3:.1f} ms | {settled.every} | "
        f"{settled.share:.2%} | {settled.sample_s * 1e3:.1f} ms | {others} ms | {' | '.join(told)} | "
        f"{settled.grown_mib:.0f} MiB | {settled.threads} |",
        flush=True,
    )
    noise = statistics.median(abs(each - 1) for each in found.noise) if found.noise else 0.0
    is_kept = statistics.median(found.default() or [1.0]) <= AT_DEFAULT + noise
    return is_kept and settled.share <= AT_DEFAULT - 1 and settled.threads == THREADS


def main() -> int:
    """Measure each training."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ratios.ROUNDS)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--look", type=int, default=LOOK)
    parser.add_argument("--only", nargs="+", choices=TRAININGS, default=list(TRAININGS))
    arguments = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} thread(s), {arguments.rounds} rounds\n")
    print(
        "| training | a step | N | its own share | a sample | hooks of another step + sender | nothing | "
        f"{SAMPLED} | {OTHERS} | {UNHEARD} | default after 1,000 steps | memory | threads |\n{'|---' * 13}|",
        flush=True,
    )
    are_met = {}
    with tempfile.TemporaryDirectory(prefix="gradcanary-budget-") as folder:
        os.environ["GRADCANARY_SPOOL"] = f"{folder}/spool"
        with collector(Path(folder) / "data") as receiver:
            for name in arguments.only:
                loop = TRAININGS[name]()
                are_met[name] = show(
                    name, loop, measured(loop, receiver.url, arguments.rounds, arguments.steps, arguments.look)
                )
                del loop
    print()
    for name, is_met in are_met.items():
        print(f"- {name}: at most {AT_DEFAULT} and one thread: {'met' if is_met else 'MISSED'}")
    return int(not all(are_met.values()))


if __name__ == "__main__":
    raise SystemExit(main())
