"""``make detection``: small real trainings with known truth, faulty and healthy, through the whole product.

Each case is a training in a process of its own under ``gradcanary.watch()``, default rules, one collector for all, and
a webhook receiver that checks signatures. Prints what is true, what was said, the rules of others on the same
gradients, and names what is wrong. Ends with status 1 if a healthy job got a message or a fault was missed, unless
the case says that it is known and why, or if a sentence about a job is false. ``--write`` publishes the tables in
docs/results/detection.md.
"""

import argparse
import os
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from pathlib import Path

from detection.case import Case
from detection.cases import CASES
from detection.page import PAGE, lines, page
from detection.truths import Read
from detection.verdicts import Row, Said, judge, totals
from detection.wording import find_case_flaws
from gradcanary.demo.processes import Collector, new_secret
from gradcanary.demo.story import Receiver
from support import warm
from words.check import Incident
from words.report import read_incident, read_message

AT_ONCE = 16
"""Jobs, which sleep most of the time: 16 take two cores and 6 GiB."""
BUSY = threading.Lock()
"""Held by a job that does not sleep: its interval follows from how long its steps take."""
GATHERED_S = 15.0
"""A message is gathered for 10 s; then it goes out at once."""
QUICK = (
    "a_branch_is_detached",
    "a_bad_example",
    "gates_saturate",
    "the_loss_is_divided_twice",
    "lora_start",
    "stage_freeze",
    "one_step_dips",
)
"""What continuous integration has the time for."""


def train(case: Case, collector: Collector, folder: Path) -> int:
    """Run a job to its end and return its exit status; what it prints of itself goes to stderr if it fails."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GRADCANARY_")}
    env = {**inherited, "OMP_NUM_THREADS": "1", "GRADCANARY_URL": collector.url}
    words = ["-m", "detection.watched", case.name, "--out", str(folder / f"{case.name}.npz")]
    with BUSY if case.every == "auto" else nullcontext():
        ended = warm.run(warm.TRAINING, words, env)
    if ended.returncode:
        sys.stderr.write(ended.stdout + ended.stderr)
    print(f"{case.name} has run", file=sys.stderr, flush=True)
    return ended.returncode


def said(case: Case, collector: Collector) -> tuple[tuple[Said, ...], list[Incident]]:
    """Return the incidents of a job, and what is said of each."""
    found = collector.read(f"/incidents?run={case.name}")["incidents"]
    full = [collector.read(f"/incidents/{each['id']}") for each in found]
    incidents = tuple(
        Said(each["rule"], each["severity"], each["opened_step"], _layers(each), each["likely_cause"]["code"])
        for each in full
    )
    return incidents, [read_incident(each, told=False) for each in full]


def _layers(incident: dict) -> frozenset[str]:
    return frozenset(layer["name"] for layer in incident["layers"])


def measure(cases: tuple[Case, ...]) -> list[Row]:
    """Run all cases on one collector, many at a time."""
    with (
        tempfile.TemporaryDirectory(prefix="gradcanary-detection-") as name,
        closing(Receiver(new_secret(), lambda _message: None)) as receiver,
        closing(Collector(folder := Path(name), 0, receiver.url, receiver.secret)) as collector,
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):
        ahead = sorted(cases, key=lambda case: -case.interval)  # those that are seen rarely take longest
        statuses = dict(zip(ahead, pool.map(lambda case: train(case, collector, folder), ahead), strict=True))
        time.sleep(GATHERED_S)
        rows = []
        for case in cases:
            status = statuses[case]
            file = folder / f"{case.name}.npz"
            messages = [each for each in receiver.messages if each.data["run"] == case.name]
            told = tuple(each.content["type"] for each in messages)
            if status or not file.exists():
                rows.append(judge(case, status, None, (), told))
                continue
            incidents, words = said(case, collector)
            flaws = find_case_flaws(case, [*words, *(read_message(each.data) for each in messages)])
            rows.append(judge(case, status, Read.of(file), incidents, told, flaws))
        return rows


def chosen(quick: bool, names: list[str]) -> tuple[Case, ...]:
    """Return the cases that were asked for."""
    wanted = set(names) or {name.replace("_", "-") for name in QUICK}
    return tuple(case for case in CASES if case.name in wanted) if names or quick else CASES


def main() -> int:
    """Print the tables and return 1 if something is wrong that is not known to be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", nargs="*", help="only these cases")
    parser.add_argument("--quick", action="store_true", help="only the few that continuous integration runs")
    parser.add_argument("--write", action="store_true", help=f"publish all cases in {PAGE.name}")
    arguments = parser.parse_args()
    if arguments.write and (arguments.case or arguments.quick):
        parser.error("--write is for all cases")
    rows = measure(chosen(arguments.quick, arguments.case))
    print("\n".join([*lines(rows), "", *totals(rows)]))
    wrong = [row for row in rows if row.miss]
    named = [f"{'known' if row.is_known else 'WRONG'}: {row.case.name}: {row.miss}" for row in wrong]
    false = [f"FALSE: {row.case.name}: {flaw}" for row in rows for flaw in row.flaws]
    print("\n".join(named + false))
    solved = [row.case.name for row in rows if row.is_known and not row.miss]
    print("\n".join(f"no longer: {name}" for name in solved), end="")
    if arguments.write:
        PAGE.write_text(page(rows), "utf-8")
    return int(bool(false) or any(not row.is_known for row in wrong))


if __name__ == "__main__":
    raise SystemExit(main())
