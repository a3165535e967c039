"""``python -m detection.watched CASE``: run one case under the agent's eyes, as a user's script does."""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch

import gradcanary
from detection.case import Case
from detection.cases import CASES
from detection.job import run

STEP_S = 0.1
"""A step takes this long at least, so that the 10 s for which a message is gathered are no more than 100 steps."""
PAUSE_STEPS, PAUSE_S = 1000, 12.0
"""Where the agent chooses the interval by the time of a step, steps are as short as they are: such a job waits now and
then, for longer than a message is gathered, so that what is open then is told."""


def pace(case: Case) -> Callable[[int], None]:
    """Return what waits after each step."""
    due = time.monotonic()

    def wait(_step: int) -> None:
        nonlocal due
        due = max(due + STEP_S, now := time.monotonic())
        time.sleep(due - now)

    def pause(step: int) -> None:
        if step % PAUSE_STEPS == PAUSE_STEPS - 1:
            time.sleep(PAUSE_S)

    return pause if case.every == "auto" else wait


def main() -> None:
    """Train, and write what was read of the gradients."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    case = next(each for each in CASES if each.name == arguments.case)

    def watched(first_step: int) -> gradcanary.Watch:
        return gradcanary.watch(run=case.name, every=case.every, step=first_step or None)

    run(case.build, watched, arguments.out, pace(case))


if __name__ == "__main__":
    main()
