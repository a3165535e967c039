"""Months of a healthy job: how noisy it may be before anybody is told of something.

python tests/benchmarks/healthy_months.py [--months 9] [--every 100] [--seeds 3]
Forty layers of synthetic noise, described in tests/support/healthy_job.py, folded with default rules on a virtual
clock. ``noise``
multiplies the spread of all of it: at 1 a layer wanders by 0.1 decades beside batches that differ by 0.12, and all
layers together by 0.1. Exit status 1 where noise of 1 is told of.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent.parent)]

from support.healthy_job import STEP_S, Job, told

MONTH_S = 30.4 * 86_400
NOISES = (1.0, 1.5, 2.0, 3.0)


def main() -> int:
    """Print the messages of each noise, by rule."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--months", type=float, default=9)
    parser.add_argument("--every", type=int, choices=(1, 10, 100, 1000), default=100)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    steps, is_quiet = int(given.months * MONTH_S / STEP_S), True
    print(f"{given.seeds} jobs of {steps:,} steps, seen each {given.every}\n\n| noise | incidents told of | messages |")
    print("|---|---|---|")
    for noise in NOISES:
        rules, messages = Counter[str](), 0
        for seed in range(given.seeds):
            job = Job(steps=steps, every=given.every, launch_steps=500_000, noise=noise, seed=seed)
            people, _ = told(job)
            messages += len(people.messages)
            rules.update(people.cases[number].incident.rule for number in {each.incident for each in people.messages})
        names = ", ".join(f"{count} {rule}" for rule, count in sorted(rules.items()))
        print(f"| {noise:g} | {names or 'none'} | {messages} |", flush=True)
        is_quiet &= noise > 1 or messages == 0
    return int(not is_quiet)


if __name__ == "__main__":
    raise SystemExit(main())
