"""What the agent costs where it chooses the interval itself, from 10 to 5,000 tensors and 0.1M to 100M parameters.

python tests/benchmarks/agent_budget.py [--rounds 7] [--steps 3] [--look 20] [--only NAME ...]
The first 1,000 steps of a launch are all sampled; what counts is what comes after them. They are not trained here: with
a shorter grace and shorter looks the same code looks at the same training, at each step and at each tenth, until it
knows whether hooks are to rest; what a sample and another step took in the last of these looks tells the interval N
that it would settle for. Then rounds measure, each turn between two of the training unwatched, steps of which each is
sampled and steps of which none is, with hooks at rest if that is what it came to; a step of the default costs the
latter and 1/N of the difference. CPU time is that of the whole process. Memory is what the resident set grew by from
before ``watch()`` to ten sampled steps later.
Exit status 1 where its own share is over the budget, or the median of a default by more than its own unwatched turns
differ. Without rounds there is the share alone: all that a machine can tell that does other work.
"""

import argparse
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import ratios

ratios.need("torch", "psutil")

import psutil  # noqa: E402 -- once it is known to be there
import torch  # noqa: E402 -- likewise
from servers import collector  # noqa: E402 -- likewise
from torch import Tensor, nn  # noqa: E402 -- likewise
from trainings import Gpt, Loop  # noqa: E402 -- likewise

import gradcanary  # noqa: E402 -- likewise
from gradcanary import meter, resting  # noqa: E402 -- likewise
from gradcanary.budget import INTERVALS, Look, Pace, paced  # noqa: E402 -- likewise

NOBODY = "http://127.0.0.1:9"
LOOK = 20
"""Steps of a look; ten times as many would take an hour for the larger models."""

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

    noise: list[float] = field(default_factory=list)
    ratios: dict[str, list[float]] = field(default_factory=dict)
    every: int = 1
    rests: bool = False
    share: float = 0.0
    step_s: float = 0.0
    sample_s: float = 0.0
    hooks_s: float = 0.0
    sender_s: float = 0.0
    grown_mib: float = 0.0
    threads: int = 0

    def default(self) -> list[float]:
        """Return the ratios of a step of the default, each from the two turns of a round."""
        pairs = zip(self.ratios[SAMPLED], self.ratios[OTHERS], strict=True)
        return [other + (sampled - other) / self.every for sampled, other in pairs]


@contextmanager
def quick_looks(steps: int, looks: list[Look]) -> Iterator[None]:
    """Have the agent decide at once, after short looks that are kept, and sample each tenth step at the least.

    By the CPU's clock of the thread, in place of the wall's: what else the machine does is not in so few steps.
    """

    def paced_(pace: Pace, look: Look, budget: float) -> Pace:
        looks.append(look)
        found = paced(pace, look, budget)
        return replace(found, every=min(found.every, INTERVALS[1]))

    kept = meter.GRACE_STEPS, meter.LOOK_STEPS, meter.Look.is_over, meter.paced, resting.SEEN
    clock, meter.time = meter.time, SimpleNamespace(perf_counter=time.thread_time)
    meter.GRACE_STEPS, meter.LOOK_STEPS, resting.SEEN = 2 * steps, steps, 1  # the first look has the start in it
    meter.Look.is_over, meter.paced = lambda look, every: look.steps >= max(steps, every), paced_
    yield
    meter.GRACE_STEPS, meter.LOOK_STEPS, meter.Look.is_over, meter.paced, resting.SEEN = kept
    meter.time = clock


def at_interval(look: Look, every: int) -> Look:
    """Return a look at another interval, where a sample and a step take what they took in this one."""
    others = look.steps - look.samples
    step_s = look.other_s / others if others else 0.0
    sample_s = (look.sampled_s + look.sender_s) / look.samples - step_s
    plain_s = look.elapsed_s - look.sampled_s - look.other_s
    return Look(
        steps=INTERVALS[-1],
        samples=INTERVALS[-1] // every,
        elapsed_s=INTERVALS[-1] * (plain_s / look.steps + step_s + sample_s / every),
        sampled_s=INTERVALS[-1] // every * (sample_s + step_s),
        other_s=(INTERVALS[-1] - INTERVALS[-1] // every) * step_s,
        rounds=look.rounds,
    )


def settled(loop: Training, url: str, look_steps: int, found: Found) -> None:
    """Find out what the agent would settle for, and note what it comes to hold meanwhile."""
    loop.step()
    resident, threads = psutil.Process().memory_info().rss, threading.active_count()
    looks: list[Look] = []
    with (
        quick_looks(look_steps, looks),
        gradcanary.watch(loop.model, loop.optimizer, url=url, run="settles") as watch,
    ):
        measured, number = watch._session.observer.meter, 0
        while not looks or (measured.every > 1 and len(looks) < 2 + measured.rests):
            loop.step()
            number += 1
            if number == 10:
                found.grown_mib = (psutil.Process().memory_info().rss - resident) / 2**20
                found.threads = threading.active_count() - threads
        pace = Pace(measured.every, rests=measured.rests)
    last = looks[-1]
    found.step_s = (last.elapsed_s - last.sampled_s - last.other_s) / last.steps
    found.sample_s, found.sender_s = last.sampled_s / last.samples, last.sender_s / last.steps
    found.hooks_s = last.other_s / max(last.steps - last.samples, 1)
    for _ in range(2 * len(INTERVALS)):
        pace = paced(pace, at_interval(last, pace.every), AT_DEFAULT - 1)
    found.every, found.rests, found.share = pace.every, pace.rests, at_interval(last, pace.every).share


def measured(loop: Training, url: str, rounds: int, steps: int, look_steps: int) -> Found:
    """Return what watching costs a training."""
    found = Found()
    settled(loop, url, look_steps, found)

    def way(to: str, every: int) -> Callable[[], gradcanary.Watch]:
        def begin() -> gradcanary.Watch:
            watch = gradcanary.watch(loop.model, loop.optimizer, url=to, run="costs", every=every, step=1)
            watch._session.observer.meter._pace = Pace(every, rests=found.rests)
            return watch

        return begin

    ways = {SAMPLED: way(url, 1), OTHERS: way(url, 1000), UNHEARD: way(NOBODY, 1)}
    found.ratios = {name: [] for name in ways}
    resting.SEEN = 1
    for _ in range(rounds):
        before = turn(loop, nullcontext, steps)
        for name, begin in ways.items():
            used, after = turn(loop, begin, steps), turn(loop, nullcontext, steps)
            found.ratios[name].append(2 * used / (before + after))
            found.noise.append(after / before)
            before = after
    return found


def turn(loop: Training, begin: Callable[[], object], steps: int) -> float:
    """Return the seconds of CPU per step; the first two steps warm up, and hooks rest after them."""
    with begin():
        loop.step()
        loop.step()
        return loop.cpu_s(steps)


def show(name: str, loop: Training, found: Found) -> bool:
    """Print a line of the table; return whether the default keeps to its budget, as far as can be told."""
    trained = [each for each in loop.model.parameters() if each.requires_grad]
    size = f"{len(trained):,} tensors, {sum(map(torch.numel, trained)) / 1e6:.1f}M"
    told = [ratios.told(each) if each else "" for each in (found.noise, *found.ratios.values(), found.default())]
    others = f"{found.hooks_s * 1e3:.2f} + {found.sender_s * 1e3:.2f}"
    print(
        f"| {name}: {size} | {found.step_s * 1e3:.1f} ms | {found.every}{', at rest' if found.rests else ''} | "
        f"{found.share:.2%} | {found.sample_s * 1e3:.1f} ms | {others} ms | {' | '.join(told)} | "
        f"{found.grown_mib:.0f} MiB | {found.threads} |",
        flush=True,
    )
    noise = statistics.median(abs(each - 1) for each in found.noise) if found.noise else 0.0
    is_kept = statistics.median(found.default() or [1.0]) <= AT_DEFAULT + noise
    return is_kept and found.share <= AT_DEFAULT - 1 and found.threads == THREADS


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
