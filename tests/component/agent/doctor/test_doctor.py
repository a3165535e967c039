"""``gradcanary doctor`` as a person and as the ranks of a job see it; real processes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gradcanary.doctor import network
from support.collectors import Collector

NOBODY = "http://127.0.0.1:9"
COMMAND = (sys.executable, "-m", "gradcanary.cli", "doctor")


def run(*words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    given = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    return subprocess.run(words, env=given, capture_output=True, text=True, timeout=120, check=False)


def test_a_person_gets_a_line_for_each_check_and_a_sum(module_collector: Collector) -> None:
    done = run(*COMMAND, "--url", module_collector.url)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    checks = [line.split()[1] for line in lines[:-1] if not line.startswith(" ")]
    wanted = ["process", "settings", "collector", "token", "clock", "spool", "waiting", "gdb", "ptrace", "torch", "cpu"]
    assert checks[: len(wanted)] == wanted
    assert re.fullmatch(r"no fault, \d notes?, \d+ checks", lines[-1])


def test_ranks_of_torchrun_each_report_although_the_first_fault_ends_the_job() -> None:
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python")
    done = run(*torchrun, *COMMAND, GRADCANARY_URL=NOBODY)
    assert done.returncode == 1
    lines = [line for line in done.stdout.splitlines() if " on " in line and line.startswith("[rank")]
    faults = [line.partition("]")[0] for line in lines if "fault  collector  nothing listens" in line]
    assert sorted(each.split()[1] for each in faults) == ["0", "1"]
    assert all(not line.split("]")[1].startswith((" ok", " note")) for line in lines if line.startswith("[rank 1"))


@pytest.mark.parametrize("number", ["0", "1"])
def test_a_rank_of_srun_without_a_fault(module_collector: Collector, tmp_path: Path, number) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(name='torch')")
    slurm = {"SLURM_PROCID": number, "SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": "77"}
    done = run(*COMMAND, "--url", module_collector.url, PYTHONPATH=str(tmp_path), **slurm)
    assert done.returncode == 0
    text = done.stdout.splitlines()
    assert all(line.startswith(f"[rank {number} on ") for line in text)
    assert len(text) == 1 or number == "0"
    assert ("Slurm job 77" in done.stdout) == (number == "0")


def test_a_check_that_fails_itself_is_a_note_and_the_others_go_on(monkeypatch, typed, tmp_path) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(name='torch')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(network, "check_collector", lambda *_: iter([1 / 0]))
    status, out, _ = typed("doctor")
    assert status == 0
    assert "note   collector  could not be checked (ZeroDivisionError: division by zero)" in out
    assert "torch" in out
