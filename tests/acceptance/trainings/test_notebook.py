"""A cell that is run again, in a real IPython: the same run, its next launch, and the old watch ends as finished."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support import PROGRAMS, warm
from support.agent.recorded import Recorded, recording

NOTEBOOK = PROGRAMS / "notebook.py"
SETUP = "import torch, gradcanary; from torch import nn"
MAKE = """
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
TRAIN = """
for _ in range(3):
    model(torch.randn(2, 4)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
RunCells = Callable[..., list[str]]


@pytest.fixture
def collector() -> Iterator[Recorded]:
    with recording() as recorded:
        yield recorded


@pytest.fixture
def run_cells(collector: Recorded, tmp_path: Path) -> RunCells:
    """Run cells in one notebook, which then ends; return their errors."""

    def run(*cells: str) -> list[str]:
        environ = {**os.environ, "GRADCANARY_URL": collector.url, "IPYTHONDIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
        process = warm.Process(warm.TRAINING, [str(NOTEBOOK)], environ, is_told=True)
        assert process.stdin is not None
        assert process.stderr is not None
        said = threading.Thread(target=process.stderr.read)
        with process.stderr, process.stdout:
            said.start()
            with process.stdin:
                errors = []
                for cell in cells:
                    print(json.dumps(cell), file=process.stdin, flush=True)
                    errors.append(process.stdout.readline().strip())
            status = process.wait(60)
            said.join()
        assert status == 0
        return errors

    return run


def launches(collector: Recorded) -> list[str]:
    return list(dict.fromkeys(hello["launch"] for hello in collector.hellos))


@pytest.mark.parametrize(
    "cell",
    [
        MAKE + "gradcanary.watch(model, optimizer)" + TRAIN,
        MAKE + "gradcanary.watch(model, optimizer, run='mine')" + TRAIN,
        "gradcanary.watch()" + MAKE + TRAIN,
        "watch = gradcanary.watch()" + MAKE + TRAIN + "watch.log(accuracy=0.5)",
    ],
    ids=["given", "named", "found", "kept"],
)
def test_a_cell_run_again_is_the_next_launch_of_the_same_run(
    run_cells: RunCells, collector: Recorded, cell: str
) -> None:
    assert run_cells(SETUP, cell, cell, cell) == [""] * 4
    assert len(collector.runs) == 1
    first, second, third = launches(collector)
    assert (second, third) == (f"{first}.2", f"{first}.3")
    assert [end["state"] for end in collector.ends] == ["finished"] * 3
    assert [end["last_step"] for end in collector.ends] == [2] * 3
    assert collector.steps() == [0, 1, 2] * 3
    assert set(collector.per_step("micro_steps")) == {1}
    assert set(collector.per_step("skipped")) == {0}
    assert set(collector.states()) == {0, 1, 2}


def test_only_the_cell_that_trains_is_run_again(run_cells: RunCells, collector: Recorded) -> None:
    """The watch goes on: it is the same model and the same optimizer."""
    errors = run_cells(SETUP + MAKE, "watch = gradcanary.watch(model, optimizer, run='mine')", TRAIN, TRAIN)
    assert errors == [""] * 4
    assert len(launches(collector)) == 1
    assert collector.steps() == list(range(6))


SHOW = """
from IPython.utils.capture import capture_output
with capture_output() as shown:
    watch.show(height=500)
[output] = shown.outputs
page, url = output.data["text/html"], output.data["text/plain"]
assert url == watch.url and f'<iframe src="{url}"' in page and "height:500px" in page and f'<a href="{url}"' in page
assert not shown.stdout
"""


def test_the_live_page_is_shown_in_a_cell(run_cells: RunCells) -> None:
    assert run_cells(SETUP + MAKE, "watch = gradcanary.watch(model, optimizer, run='mine')" + TRAIN, SHOW) == [""] * 3


def test_a_collector_that_is_away_is_a_sentence_and_no_traceback() -> None:
    """In IPython, which asks the error what it shows."""
    cell = "import gradcanary; gradcanary.Client('http://127.0.0.1:9').run('lora')"
    ended = subprocess.run(
        [sys.executable, "-m", "IPython", "--no-banner", "--colors=NoColor", "-c", cell],
        capture_output=True,
        text=True,
        timeout=120,
    )
    said = ended.stdout + ended.stderr
    assert ended.returncode == 1
    assert "UnreachableError: the collector at http://127.0.0.1:9 does not answer" in said
    assert "start it with 'gradcanary up'" in said
    assert "Traceback" not in said
    assert ".py" not in said


def test_a_cell_that_fails_does_not_end_the_run_as_crashed(run_cells: RunCells, collector: Recorded) -> None:
    errors = run_cells(SETUP + MAKE, "gradcanary.watch(model, optimizer)" + TRAIN, "1 / 0")
    assert errors[:2] == ["", ""]
    assert "ZeroDivisionError" in errors[2]
    assert [end["state"] for end in collector.ends] == ["finished"]
