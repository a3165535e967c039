"""What the agent costs where it chooses the interval itself, from 10 to 5,000 tensors and 0.1M to 100M parameters.

python tests/benchmarks/agent_budget.py [--rounds 7] [--steps 3] [--only NAME ...]
The first 1,000 steps of a launch are all sampled; what counts is what comes after them. They are not trained here: with
a shorter grace and shorter looks, of ``LOOK`` steps, the same code looks at the same training and settles for an
interval N. Then rounds measure, each turn between two of the training unwatched, steps of which each is sampled and
steps of which none is; a step of the default costs the latter and 1/N of the difference. CPU time is that of the whole
process. Memory is what the resident set grew by from before ``watch()`` to ten sampled steps later.
Exit status 1 where the median of a default is over the budget by more than its own unwatched turns differ.
"""

import argparse
import os
import statistics
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import ratios

ratios.need("torch", "psutil")

import psutil  # noqa: E402 -- once it is known to be there
import torch  # noqa: E402 -- likewise
from servers import collector  # noqa: E402 -- likewise
from torch import Tensor, nn  # noqa: E402 -- likewise
from trainings import Gpt, Loop  # noqa: E402 -- likewise

import gradcanary  # noqa: E402 -- likewise
from gradcanary import meter  # noqa: E402 -- likewise
from gradcanary.budget import INTERVALS  # noqa: E402 -- likewise

NOBODY = "http://127.0.0.1:9"
LOOK = 20
"""Steps of a look at the first interval; ten times as many would take an hour for the larger models."""

AT_DEFAULT, THREADS = 1.01, 1
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


Training = Loop | ChainLoop
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

    cpu_s: list[float] = field(default_factory=list)
    noise: list[float] = field(default_factory=list)
    ratios: dict[str, list[float]] = field(default_factory=dict)
    every: int = 1
    share: float = 0.0
    grown_mib: float = 0.0
    threads: int = 0

    def default(self) -> list[float]:
        """Return the ratios of a step of the default, each from the two turns of a round."""
        pairs = zip(self.ratios[SAMPLED], self.ratios[OTHERS], strict=True)
        return [other + (sampled - other) / self.every for sampled, other in pairs]


@contextmanager
def quick_looks() -> Iterator[None]:
    """Have the agent decide at once, after short looks."""
    kept = meter.GRACE_STEPS, meter.LOOK_STEPS, meter.Look.is_over
    meter.GRACE_STEPS, meter.LOOK_STEPS = 2 * LOOK, LOOK  # the first look has the start in it
    meter.Look.is_over = lambda look, every: look.steps >= max(LOOK, every)
    yield
    meter.GRACE_STEPS, meter.LOOK_STEPS, meter.Look.is_over = kept


def settled(loop: Training, url: str, found: Found) -> None:
    """Have the agent choose its interval, and note what it comes to hold meanwhile."""
    loop.step()
    resident, threads = psutil.Process().memory_info().rss, threading.active_count()
    with quick_looks(), gradcanary.watch(loop.model, loop.optimizer, url=url, run="settles") as watch:
        measured = watch._session.observer.meter
        for number in range(3 * LOOK + 2 * INTERVALS[2]):
            loop.step()
            if number == 10:
                found.grown_mib = (psutil.Process().memory_info().rss - resident) / 2**20
                found.threads = threading.active_count() - threads
            if number >= 4 * LOOK and measured.every <= INTERVALS[1]:
                break
        found.every, found.share = measured.every, measured.share()


def measured(loop: Training, url: str, rounds: int, steps: int) -> Found:
    """Return what watching costs a training."""
    found = Found()
    settled(loop, url, found)

    def way(to: str, every: int) -> Callable[[], gradcanary.Watch]:
        return lambda: gradcanary.watch(loop.model, loop.optimizer, url=to, run="costs", every=every, step=1)

    ways = {SAMPLED: way(url, 1), OTHERS: way(url, 1000), UNHEARD: way(NOBODY, 1)}
    found.ratios = {name: [] for name in ways}
    for _ in range(rounds):
        before = turn(loop, nullcontext, steps)
        for name, begin in ways.items():
            used, after = turn(loop, begin, steps), turn(loop, nullcontext, steps)
            found.ratios[name].append(2 * used / (before + after))
            found.cpu_s.append(after)
            found.noise.append(after / before)
            before = after
    return found


def turn(loop: Training, begin: Callable[[], object], steps: int) -> float:
    """Return the seconds of CPU per step; the first step warms up."""
    with begin():
        loop.step()
        return loop.cpu_s(steps)


def show(name: str, loop: Training, found: Found) -> bool:
    """Print a line of the table; return whether the default keeps to its budget, as far as can be told."""
    trained = [each for each in loop.model.parameters() if each.requires_grad]
    size = f"{len(trained):,} tensors, {sum(map(torch.numel, trained)) / 1e6:.1f}M"
    ways = " | ".join(ratios.told(found.ratios[way]) for way in (SAMPLED, OTHERS, UNHEARD))
    print(
        f"| {name}: {size} | {statistics.median(found.cpu_s) * 1e3:.1f} ms | {ratios.told(found.noise)} | {ways} | "
        f"{found.every} | {found.share:.2%} | {ratios.told(found.default())} | {found.grown_mib:.0f} MiB | "
        f"{found.threads} |",
        flush=True,
    )
    noise = statistics.median(abs(each - 1) for each in found.noise)
    return statistics.median(found.default()) <= AT_DEFAULT + noise and found.threads == THREADS


def main() -> int:
    """Measure each training."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ratios.ROUNDS)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=TRAININGS, default=list(TRAININGS))
    arguments = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} thread(s), {arguments.rounds} rounds\n")
    print(
        f"| training | CPU per step | nothing | {SAMPLED} | {OTHERS} | {UNHEARD} | N | its own share | "
        "default after 1,000 steps | memory | threads |\n|---|---|---|---|---|---|---|---|---|---|---|",
        flush=True,
    )
    are_met = {}
    with tempfile.TemporaryDirectory(prefix="gradcanary-budget-") as folder:
        os.environ["GRADCANARY_SPOOL"] = f"{folder}/spool"
        with collector(Path(folder) / "data") as receiver:
            for name in arguments.only:
                loop = TRAININGS[name]()
                are_met[name] = show(name, loop, measured(loop, receiver.url, arguments.rounds, arguments.steps))
                del loop
    print()
    for name, is_met in are_met.items():
        print(f"- {name}: at most {AT_DEFAULT} and one thread: {'met' if is_met else 'MISSED'}")
    return int(not all(are_met.values()))


if __name__ == "__main__":
    raise SystemExit(main())
