"""``python -m detection.sanity``: each case as a script under ``gradcanary sanity``, and a table of what it says.

Each runs twice: with all steps of the case, and with the default 200, because many faults begin later than that. A
faulty case should give status 1, a healthy one 0; a fault that has not begun counts as none. Prints a line per case,
the counts, and what each wrong one said.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from detection.case import Case
from detection.cases import CASES
from detection.job import Job
from gradcanary.demo.processes import Collector

DEFAULT_STEPS, MANY_STEPS = 200, 10_000


@dataclass(frozen=True)
class Outcome:
    """The status of one call, and the checks that are not ok."""

    case: Case
    steps: int
    has_all: bool
    status: int
    wrong: dict[str, str]

    @property
    def is_begun(self) -> bool:
        """True if a fault began 20 steps before the end, or earlier."""
        return self.case.since <= self.steps - 20 or self.has_all

    @property
    def is_right(self) -> bool:
        return self.status == int(self.case.is_fault)


def judged(case: Case, steps: int, has_all: bool, url: str) -> Outcome:
    """Run a case under ``gradcanary sanity``."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GRADCANARY_")}
    command = ["-m", "gradcanary.cli", "sanity", "--steps", str(steps), "--json", "--url", url, "-m", "detection.plain"]
    ended = subprocess.run(
        [sys.executable, *command, "--", case.name],
        env={**inherited, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if not ended.stdout:
        return Outcome(case, steps, has_all, ended.returncode, {"error": ended.stderr[-300:]})
    report = json.loads(ended.stdout)
    wrong = {each["code"]: each["text"] for each in report["checks"] if each["verdict"] == "not ok"}
    return Outcome(case, report["steps"], has_all, ended.returncode, wrong)


def total_steps(case: Case) -> int:
    """Return the steps of a case; of one with several launches, more than all have."""
    built = case.build()
    return built.steps if isinstance(built, Job) else MANY_STEPS


def main() -> int:
    """Print the table; return 1 if a case got the wrong status with all its steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", nargs="*", help="only these cases")
    parser.add_argument("--at-once", type=int, default=2, help="cases that run at the same time (default: %(default)s)")
    parser.add_argument("--all-steps-only", action="store_true", help="leave out the 200 steps")
    arguments = parser.parse_args()
    cases = [case for case in CASES if not arguments.case or case.name in arguments.case]
    calls = [(case, total_steps(case), True) for case in cases]
    if not arguments.all_steps_only:
        calls += [(case, min(DEFAULT_STEPS, steps), False) for case, steps, _ in calls]
    with (
        tempfile.TemporaryDirectory(prefix="gradcanary-sanity-table-") as folder,
        closing(Collector(Path(folder), 0)) as collector,
        ThreadPoolExecutor(arguments.at_once) as pool,
    ):
        outcomes = []
        for outcome in pool.map(lambda call: judged(*call, collector.url), calls):
            outcomes.append(outcome)
            kind = "fault" if outcome.case.is_fault else "healthy"
            said = ", ".join(outcome.wrong) or "healthy"
            mark = "" if outcome.is_right else "  WRONG" if outcome.is_begun else "  not begun"
            since = f" since {outcome.case.since}" if outcome.case.since else ""
            print(
                f"{kind:8}{outcome.case.name:34}{outcome.steps:6} steps{since:12}  {outcome.status}  {said}{mark}",
                flush=True,
            )
    print_counts(outcomes)
    wrong = [each for each in outcomes if each.is_begun and not each.is_right]
    print("\n".join(f"{each.case.name}, {each.steps} steps: {each.status} {each.wrong}" for each in wrong))
    return int(any(each.has_all for each in wrong))


def print_counts(outcomes: list[Outcome]) -> None:
    """Print the right answers of faults and healthy cases, with all steps and with the default."""
    for name, of in (("all steps", True), ("200 steps", False)):
        some = [each for each in outcomes if each.has_all is of]
        faults = [e for e in some if e.case.is_fault and e.is_begun]
        healthy = [e for e in some if not e.case.is_fault]
        right = sum(e.is_right for e in faults), sum(e.is_right for e in healthy)
        print(
            f"{name}: status 1 on {right[0]} of {len(faults)} faults, 0 on {right[1]} of {len(healthy)} healthy cases"
        )


if __name__ == "__main__":
    raise SystemExit(main())
