"""``gradcanary sanity`` with several ways of a real training: what it says of them, and its status."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "support" / "programs" / "chosen_training.py"
MICRO_STEPS = ("--accumulate", "{accumulate}", "--batch", "{batch}")


def ways(*words: str, steps: int = 60) -> tuple[int, dict[str, Any]]:
    """Return the status, and the report."""
    command = [sys.executable, "-m", "gradcanary.cli", "sanity", str(SCRIPT), "--steps", str(steps), "--json", *words]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert ended.stdout, ended.stderr
    return ended.returncode, json.loads(ended.stdout)


def told(report: dict[str, Any], way: str) -> str:
    return "\n".join(finding["text"] for finding in report["findings"] if finding["way"] == way)


@pytest.mark.smoke
def test_dtypes_are_compared_as_they_were_measured() -> None:
    status, report = ways("--compare", "fp32,bf16,fp16", "--", "--dtype", "{precision}")
    first, second, third = (each["report"] for each in report["ways"])
    lower, upper = second["step_time_quartiles_s"], first["step_time_quartiles_s"]
    expected = (
        "slower here than fp32"
        if lower[0] > upper[1]
        else ("faster here than fp32" if lower[1] < upper[0] else "not distinguishable from that of fp32")
    )
    assert expected in told(report, "bf16")
    assert "its losses agree with those of fp32" in told(report, "bf16")
    assert (status, third["steps"]) == (1, 0)
    assert "made no step (status 2)" in told(report, "fp16")
    assert "invalid choice: 'fp16'" in told(report, "fp16")


def test_micro_steps_at_one_effective_batch_agree_if_the_loss_is_divided() -> None:
    words = ("--accumulate", "1,4", "--effective-batch", "64", "--", *MICRO_STEPS)
    status, report = ways(*words)
    assert status == 0, report["findings"]
    assert "its losses agree with those of 1" in told(report, "4")
    assert [each["report"]["command"][-1] for each in report["ways"]] == ["64", "16"]
    status, report = ways(*words, "--undivided")
    assert status == 1
    assert "divide the loss by the micro-steps before backward()" in told(report, "4")


def test_checkpointing_keeps_the_loss_unless_it_forgets_the_random_state() -> None:
    words = ("--checkpointing", "--", "--checkpointing", "{checkpointing}")
    status, report = ways(*words)
    assert status == 0, report["findings"]
    assert "its losses are those of 0 to the last bit" in told(report, "1")
    status, report = ways(*words, "--forgets-masks")
    assert status == 1
    assert "part from those of 0 at step 1" in told(report, "1")
    assert "preserve_rng_state=False" in told(report, "1")


def test_stress_names_the_first_step_beyond_the_range() -> None:
    status, report = ways("--stress", "lr=1e-3,3e-3,1e3", "--", "--lr", "{lr}")
    assert status == 1
    assert "none leaves it in 60 steps" in told(report, "1e-3")
    assert "none leaves it in 60 steps" in told(report, "3e-3")
    assert "its gradients leave the range at step 1: the largest is" in told(report, "1e3")


def test_a_script_that_does_not_get_the_value_is_2_and_shows_what_to_write() -> None:
    command = [sys.executable, "-m", "gradcanary.cli", "sanity", str(SCRIPT), "--compare", "fp32,bf16"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert "-- --dtype {precision}" in ended.stderr
