"""A part of ``make detection``: one training with falls of many sizes, through the whole product, its misses named.

Every row is a real LoRA training under ``gradcanary.watch()`` on default rules, a collector of its own schedule, and
a webhook receiver that checks signatures. What is true comes from the same training read in float64 without
gradcanary. A fall is caught if one collapse names exactly the layers that fell, at most 30 steps late, and one message
says so; a fall that stays over 1e-4 must be quiet. The delay of a slow fall may be negative: its gradients cross 1e-4
to and fro before they stay under it, and the rule counts from the first crossing; before that it must be quiet. A row
whose truth is not the fall that it is about is a miss, too: it would prove nothing. Ends with status 1 on a miss.
"""

import argparse
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch

from detection.truth import collapsed, meets_condition, read_gradients
from gradcanary.demo.processes import Collector, new_secret
from gradcanary.demo.story import Receiver
from gradcanary.demo.training import Fault
from gradcanary.demo.verdict import COLLAPSED
from support import warm

WIDTH = 64
MAX_DELAY = 30
MESSAGE_WAIT_S = 25.0
ONE_TOO_MANY_S = 12.0
"""A false message would be gathered for 10 s, too, before it shows."""
AT_ONCE = 2
SUDDEN, SLOW = 1, 1000


@dataclass(frozen=True)
class Case:
    """A fall by a factor over some steps from a step on, and the seed of the training."""

    by: float
    over: int
    start: int
    seed: int

    @property
    def name(self) -> str:
        return f"fall-{self.by:g}x-over-{self.over}-at-{self.start}-seed-{self.seed}"

    @property
    def is_fault(self) -> bool:
        return self.by > 10

    @property
    def steps(self) -> int:
        return self.start + self.over + 150


@dataclass(frozen=True)
class Row:
    """What was true and what was caught; ``status`` is the training's own."""

    case: Case
    status: int
    fell: dict[str, int]
    first_bad_step: int | None
    opened_step: int | None
    layers_right: bool
    rules: tuple[str, ...]
    messages: tuple[str, ...]

    @property
    def true_step(self) -> int | None:
        return min(self.fell.values(), default=None)

    @property
    def delay(self) -> int | None:
        return None if self.opened_step is None or self.true_step is None else self.opened_step - self.true_step

    @property
    def miss(self) -> str:
        """Return what is wrong with this row, empty if nothing is."""
        if self.status:
            return f"the training ended with status {self.status}"
        if set(self.fell) != (COLLAPSED if self.case.is_fault else set()):
            return f"in truth {sorted(self.fell) or 'nothing'} fell"
        if not self.case.is_fault:
            return "not quiet" if self.rules or self.messages else ""
        if self.rules != ("collapse",):
            return f"rules {', '.join(self.rules) or 'none'}"
        if not self.layers_right:
            return "other layers"
        if self.opened_step is None or self.first_bad_step is None or self.opened_step < self.first_bad_step:
            return "opened before anything fell"
        if self.delay is None or self.delay > MAX_DELAY:
            return f"{self.delay} steps late"
        return "" if self.messages == ("gradient.collapse.opened",) else f"messages {self.messages}"


SEEDS_AND_STARTS = ((0, 200), (1, 260), (2, 330))

CASES = tuple(
    Case(by, over, start, seed)
    for seed, start in SEEDS_AND_STARTS
    for over in (SUDDEN, SLOW)
    for by in (1000, 300, 100, 10)
)

SUBSET = (Case(100, SLOW, 200, 0), Case(100, SUDDEN, 200, 0), Case(1000, SUDDEN, 260, 1), Case(10, SUDDEN, 330, 2))
"""What continuous integration has the time for."""


def watch(case: Case, collector: Collector) -> int:
    """Run the training under the agent's eyes, as a process of its own, and return its exit status."""
    arguments = ["--run", case.name, "--steps", str(case.steps), "--seed", str(case.seed), "--width", str(WIDTH)]
    fault = ["--shrink", str(case.by), "--over", str(case.over), "--fault-step", str(case.start)]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GRADCANARY_")}
    environment = {**inherited, "OMP_NUM_THREADS": "1", "GRADCANARY_URL": collector.url}
    ended = warm.run(warm.TRAINING, ["-m", "gradcanary.demo.training", *arguments, *fault], environment)
    if ended.returncode:
        sys.stderr.write(ended.stderr)
    print(f"{case.name} has run", file=sys.stderr, flush=True)
    return ended.returncode


def truth(case: Case) -> tuple[dict[str, int], int | None]:
    """Return the layers that fell and when, and the first step that any was low, read without gradcanary."""
    fault = Fault.shrinking(case.by, case.over, case.start)
    names, absmax, _ = read_gradients(case.steps, fault, case.seed, WIDTH)
    low = meets_condition(absmax).any(axis=1).nonzero()[0]
    fell = {names[layer]: step for layer, step in collapsed(absmax).items()}
    return fell, int(low[0]) if len(low) else None


def judge(
    case: Case, status: int, true: tuple[dict[str, int], int | None], collector: Collector, receiver: Receiver
) -> Row:
    """Compare what is true with what the API and the webhooks say."""
    incidents = collector.read(f"/incidents?run={case.name}")["incidents"]
    alarms = [collector.read(f"/incidents/{each['id']}") for each in incidents if each["severity"] != "information"]
    fell, first_bad_step = true
    named = {layer["name"] for alarm in alarms for layer in alarm["layers"]}
    return Row(
        case=case,
        status=status,
        fell=fell,
        first_bad_step=first_bad_step,
        opened_step=min((alarm["opened_step"] for alarm in alarms), default=None),
        layers_right=named == set(fell),
        rules=tuple(sorted(alarm["rule"] for alarm in alarms)),
        messages=tuple(each.content["type"] for each in receiver.messages if each.data["run"] == case.name),
    )


def measure(cases: tuple[Case, ...]) -> list[Row]:
    """Run all cases on one collector, two at a time, and read the truth meanwhile."""
    with (
        tempfile.TemporaryDirectory(prefix="gradcanary-detection-") as folder,
        closing(Receiver(new_secret(), lambda _message: None)) as receiver,
        closing(Collector(Path(folder), 0, receiver.url, receiver.secret)) as collector,
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):
        watched = [pool.submit(watch, case, collector) for case in cases]
        true = [truth(case) for case in cases]
        ended = [training.result() for training in watched]
        wait_for_messages(sum(bool(fell) for fell, _ in true), receiver)
        return [
            judge(case, status, each, collector, receiver)
            for case, status, each in zip(cases, ended, true, strict=True)
        ]


def wait_for_messages(expected: int, receiver: Receiver) -> None:
    """Wait until so many messages came, and then long enough for one too many to show."""
    deadline = time.monotonic() + MESSAGE_WAIT_S
    while len(receiver.messages) < expected and time.monotonic() < deadline:
        time.sleep(0.5)
    time.sleep(ONE_TOO_MANY_S)


def show(rows: list[Row]) -> None:
    """Print the table."""
    print(f"{'case':42} {'true':>6} {'opened':>7} {'delay':>6} {'layers':>7} {'rule':>10} {'messages':>9}  verdict")
    for row in rows:
        numbers = ["-" if each is None else str(each) for each in (row.true_step, row.opened_step, row.delay)]
        right = ("right" if row.layers_right else "wrong") if row.case.is_fault else "-"
        print(
            f"{row.case.name:42} {numbers[0]:>6} {numbers[1]:>7} {numbers[2]:>6} {right:>7} "
            f"{','.join(row.rules) or 'quiet':>10} {len(row.messages):>9}  {f'MISS: {row.miss}' if row.miss else 'ok'}"
        )
    faults = [row for row in rows if row.case.is_fault]
    controls = [row for row in rows if not row.case.is_fault]
    caught = sum(not row.miss for row in faults)
    quiet = sum(not row.miss for row in controls)
    print(f"\n{caught} of {len(faults)} faults caught, {quiet} of {len(controls)} controls quiet")
    print("misses:", ", ".join(row.case.name for row in rows if row.miss) or "none")


def main() -> int:
    """Print the table and return 1 if it has a miss."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--subset", type=int, choices=[len(SUBSET)], help="only these few cases")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = measure(SUBSET if arguments.subset else CASES)
    show(rows)
    return int(any(row.miss for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
