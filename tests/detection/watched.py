"""``python -m detection.watched CASE``: run one case under the agent's eyes, as a user's script does."""

import argparse
from pathlib import Path

import torch

import gradcanary
from detection.cases import CASES
from detection.job import run


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

    run(case.build, watched, arguments.out)


if __name__ == "__main__":
    main()
