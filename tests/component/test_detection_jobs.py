"""Each job whose truth lies in more than the gradient is what it claims to be, read in float64 without the product."""

import re
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from detection import plans, updates
from detection.case import Case
from detection.cases import CASES
from detection.job import run
from detection.truths import TRUTHS, Read
from support.effort import EFFORT

# Each takes a training: some of them here, all of them in a night (support/effort.py).
SOME = slice(None, None, 3 if EFFORT == 1 else 1)
FAULTS = [case for case in CASES if case.build.__module__ == updates.__name__][SOME]
HEALTHY = [case for case in CASES if case.build.__module__ == plans.__name__][SOME]
EXCUSED = [case for case in CASES if case.also and not case.is_fault]

pytestmark = pytest.mark.slow


def read(case: Case, folder: Path) -> Read:
    """Train a job, watched by nothing, and return what was read of it."""
    nobody = SimpleNamespace(log=lambda **_: None)
    run(case.build, lambda _step: nullcontext(nobody), folder / "read.npz")
    return Read.of(folder / "read.npz")


@pytest.mark.parametrize("case", FAULTS, ids=lambda case: case.name)
def test_the_fault_is_in_these_layers_and_in_no_others(case: Case, tmp_path: Path) -> None:
    found = read(case, tmp_path)
    true = TRUTHS[case.truth](found, case.since)
    assert set(true) == {name for name in found.names if re.fullmatch(case.layers, name)}
    assert min(true.values()) >= case.since


@pytest.mark.parametrize("case", HEALTHY, ids=lambda case: case.name)
def test_a_healthy_job_learns(case: Case, tmp_path: Path) -> None:
    loss = read(case, tmp_path).loss
    assert loss[-50:].mean() < 0.75 * loss[:10].mean()


@pytest.mark.parametrize("case", EXCUSED, ids=lambda case: case.name)
def test_what_may_be_said_of_a_healthy_job_is_true_of_most_layers_and_not_of_all(case: Case, tmp_path: Path) -> None:
    found = read(case, tmp_path)
    true = TRUTHS[case.truth](found, case.since)
    assert len(found.names) / 2 < len(true) < len(found.names)
