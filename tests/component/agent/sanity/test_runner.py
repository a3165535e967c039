"""A training is run for some steps, and ended: exactly there, by any means that it leaves, with nothing behind it."""

import os
import sys
from pathlib import Path

import pytest

from gradcanary.attach import processes
from gradcanary.cli.sanity import training_environment
from gradcanary.sanity import runner
from gradcanary.sanity.report import Report
from gradcanary.sanity.runner import Source, run_watched
from support.collectors import Collector

HEAD = """
import sys, time
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
x = torch.randn(32, 4)
def step():
    torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
SAVES = """
try:
    while True:
        step()
except KeyboardInterrupt:
    torch.save([each.detach() for each in model.parameters()], sys.argv[1])
"""
ALONE = """
for _ in range(40):
    step()
torch.save([each.detach() for each in model.parameters()], sys.argv[1])
"""
STUBBORN = """
while True:
    try:
        step()
        time.sleep(0.01)
    except BaseException as error:
        print("ignored", type(error).__name__, flush=True)
"""
TWO_OPTIMIZERS = """
other = torch.nn.Linear(4, 1)
second = torch.optim.SGD(other.parameters(), lr=0.01)
while True:
    step()
    other(x).square().mean().backward()
    second.step()
    second.zero_grad()
"""
SCALED = """
scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
while True:
    scaler.scale(model(x).square().mean()).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""


def run(folder: Path, collector: Collector, text: str, steps: int = 40, *words: str) -> Report:
    script = folder / "train.py"
    script.write_text(HEAD + text)
    program = [sys.executable, str(script), *words]
    source = Source(collector.url)
    return run_watched(program, steps, source, environ=training_environment(program, source, every="1"))


def test_it_ends_at_the_step_with_the_weights_of_a_run_alone(tmp_path: Path, module_collector: Collector) -> None:
    import subprocess

    import torch

    report = run(tmp_path, module_collector, SAVES, 40, str(tmp_path / "watched.pt"))
    assert (report.steps, report.ending, report.exit_status) == (40, "stopped", 0)
    assert [step for step, _ in report.losses] == list(range(40)) == [step for step, _ in report.absmax]
    assert report.is_healthy
    assert report.step_time_s is not None
    (tmp_path / "alone.py").write_text(HEAD + ALONE)
    subprocess.run([sys.executable, str(tmp_path / "alone.py"), str(tmp_path / "alone.pt")], check=True)
    watched, alone = (torch.load(tmp_path / name) for name in ("watched.pt", "alone.pt"))
    assert all(map(torch.equal, watched, alone))


@pytest.mark.parametrize("text", [TWO_OPTIMIZERS, SCALED], ids=["two optimizers", "a scaler"])
def test_it_ends_at_the_step_in_other_loops(tmp_path: Path, module_collector: Collector, text: str) -> None:
    report = run(tmp_path, module_collector, text)
    assert (report.steps, report.ending) == (40, "stopped")
    assert [each for each in report.checks if each.verdict == "not ok"] == []


def test_one_that_ignores_ctrl_c_is_terminated_then_killed(
    tmp_path: Path, module_collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "SAVE_S", 0.5)
    monkeypatch.setattr(runner, "TERM_S", 0.5)
    text = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + STUBBORN
    report = run(tmp_path, module_collector, text)
    assert report.ending == "stopped"
    assert report.exit_status == -9
    assert "ignored KeyboardInterrupt" in report.output_tail
    assert "terminated" in report.checks[0].text
    assert not any("train.py" in " ".join(each.command) and str(tmp_path) in " ".join(each.command) for each in alive())


def alive() -> list[processes.Process]:
    return list(processes.find_all(os.getuid()))


def test_children_of_the_training_end_with_it(tmp_path: Path, module_collector: Collector) -> None:
    text = f"""
import subprocess
child = subprocess.Popen([sys.executable, "-c", "import torch, time; time.sleep(600)"], start_new_session=True)
open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
for _ in range(10):
    step()
time.sleep(3)
"""
    report = run(tmp_path, module_collector, text)
    assert (report.steps, report.ending) == (10, "finished")
    child = processes.find(int((tmp_path / "pid").read_text()))
    assert child is None or child.state == "Z"


def test_a_run_that_the_script_names_is_found(tmp_path: Path, module_collector: Collector) -> None:
    report = run(
        tmp_path, module_collector, "import gradcanary\ngradcanary.watch(run='my-own')\n" + SAVES, 20, "/dev/null"
    )
    assert (report.run, report.steps) == ("my-own", 20)
