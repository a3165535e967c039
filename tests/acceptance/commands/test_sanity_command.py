"""``gradcanary sanity`` as a person calls it: one page, a status, and nothing left behind."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAD = """
import sys
import torch
from torch import nn
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
x = torch.randn(64, 4)
y = x.sum(1, keepdim=True)
def backward(): nn.functional.mse_loss(model(x), y).backward()
"""
HEALTHY = """
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
while True:
    backward(); optimizer.step(); optimizer.zero_grad()
"""
HEAD_ONLY = """
optimizer = torch.optim.AdamW(model[2].parameters(), lr=0.01)
while True:
    backward(); optimizer.step(); optimizer.zero_grad()
"""
UNUSED = """
model.spare = nn.Linear(3, 3)
model.forward = lambda x: model[2](model[1](model[0](x)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
while True:
    backward(); optimizer.step(); optimizer.zero_grad()
"""
LOSSY = """
model = model.bfloat16(); x = x.bfloat16(); y = y.bfloat16()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
while True:
    for _ in range(512):
        (nn.functional.mse_loss(model(x), y) / 512).backward()
    optimizer.step(); optimizer.zero_grad()
"""
CRASH = """
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for step in range(40):
    backward(); optimizer.step(); optimizer.zero_grad()
raise OSError("the disk is full")
"""
NO_OPTIMIZER = """
for step in range(40):
    backward()
print("trained", *sys.argv[1:])
"""
RANKS = """
from torch import distributed
distributed.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
while True:
    backward(); optimizer.step(); optimizer.zero_grad()
"""


def sanity(folder: Path, text: str, *words: str, steps: int = 120) -> tuple[int, str, str]:
    (folder / "train.py").write_text(HEAD + text)
    (folder / "temporary").mkdir()
    environ = {**os.environ, "TMPDIR": str(folder / "temporary"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "gradcanary.cli", "sanity", "--steps", str(steps), *words]
    ended = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert [path.name for path in (folder / "temporary").iterdir() if "gradcanary" in path.name] == []
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.smoke
def test_a_healthy_training_is_0_and_all_in_one_page(tmp_path: Path) -> None:
    status, out, _ = sanity(tmp_path, HEALTHY, "train.py", "--", "--lr", "3")
    assert status == 0, out
    lines = out.splitlines()
    assert lines[0] == "train.py --lr 3, 120 steps asked for"
    assert lines[2] == "ok          run            120 optimizer steps, then ended as by Ctrl-C"
    assert lines[-1] == "Healthy in these 120 steps."


@pytest.mark.parametrize(
    ("text", "steps", "code", "named"),
    [
        (HEAD_ONLY, 160, "optimizer", "0.*"),
        (UNUSED, 120, "gradients", "spare"),
        (LOSSY, 8, "sums", "lost"),
    ],
    ids=["in no optimizer", "never used", "a sum in bfloat16"],
)
def test_a_sick_training_is_1_with_the_parameters_and_what_to_do(
    tmp_path: Path, text: str, steps: int, code: str, named: str
) -> None:
    status, out, _ = sanity(tmp_path, text, "train.py", "--json", steps=steps)
    report = json.loads(out)
    wrong = {each["code"]: each for each in report["checks"] if each["verdict"] == "not ok"}
    assert (status, report["is_healthy"], report["steps"]) == (1, False, steps)
    assert named in wrong[code]["text"]
    assert wrong[code]["do_first"]


def test_a_script_that_crashes_is_1_with_the_end_of_its_output(tmp_path: Path) -> None:
    status, out, _ = sanity(tmp_path, CRASH, "train.py")
    assert status == 1
    assert "the command ended with status 1 after 40 optimizer steps. OSError" in out
    assert "    OSError: the disk is full" in out.splitlines()


def test_a_script_without_a_step_is_1_and_says_so(tmp_path: Path) -> None:
    status, out, err = sanity(tmp_path, NO_OPTIMIZER, "--verbose", "-m", "train", "--", "a")
    assert status == 1
    assert "the command ended, and made no optimizer step" in out
    assert "gradcanary.step()" in out
    assert "trained a" in err


def test_both_ranks_of_torchrun_end_at_the_step(tmp_path: Path) -> None:
    torchrun = ("-m", "torch.distributed.run", "--", "--standalone", "--nproc-per-node", "2", "train.py")
    status, out, _ = sanity(tmp_path, RANKS, *torchrun)
    assert status == 0, out
    assert "120 optimizer steps, then ended as by Ctrl-C" in out


def test_wrong_arguments_are_2(tmp_path: Path) -> None:
    assert sanity(tmp_path, HEALTHY, "missing.py")[0] == 2
