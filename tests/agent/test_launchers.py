"""``gradcanary run``: any way to start a training, its children and its end, against a real collector."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import warm
from collectors import Collector
from launched import Workplace

SCRIPTS = Path(sys.executable).parent
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py")


@pytest.fixture
def workplace(tmp_path: Path, module_collector: Collector, request: pytest.FixtureRequest) -> Workplace:
    return Workplace(tmp_path, module_collector, re.sub(r"[^a-z0-9-]+", "-", request.node.name)[:100])


@pytest.mark.parametrize(
    "words",
    [
        ("train.py", "a", "--run", "b"),
        ("-m", "train", "a", "--run", "b"),
        ("sh", "-c", f"{sys.executable} train.py a --run b"),
        (SCRIPTS / "accelerate", "launch", "--cpu", "train.py", "a", "--run", "b"),
    ],
    ids=["script", "module", "shell", "accelerate"],
)
def test_a_training_is_watched_without_a_change(workplace: Workplace, words: tuple[object, ...]) -> None:
    ended = workplace.launch(*words)
    assert ended.stdout == "trained a --run b\n"
    assert ended.stderr.startswith(f"gradcanary: {workplace.url}/runs/{workplace.name}\n")
    assert ended.stderr.count("gradcanary") == 1
    stored = workplace.stored()
    assert (stored["state"], stored["step"], stored["layers"]) == ("finished", 3, 4)
    assert [(each["rank"], each["first_step"], each["last_step"]) for each in stored["sessions"]] == [(0, 0, 3)]
    losses = {metric["name"]: metric["last"] for metric in stored["metrics"]}
    assert losses["loss"] > 0


@pytest.mark.parametrize(
    "words",
    [("show.py",), ("--", "show.py"), ("-m", "show"), (sys.executable, "show.py"), ("--", sys.executable, "show.py")],
)
def test_what_follows_the_command_is_the_commands(workplace: Workplace, words: tuple[str, ...]) -> None:
    workplace.write("show.py", "import sys; print(sys.argv[1:])")
    assert workplace.launch(*words, "a", "--run", "b").stdout == "['a', '--run', 'b']\n"


def test_ranks_share_run_and_launch_and_the_first_one_speaks(workplace: Workplace) -> None:
    assert workplace.launch(*TORCHRUN).stdout.count("trained") == 2
    stored = workplace.stored()
    assert (stored["state"], stored["step"]) == ("finished", 3)
    assert [(each["rank"], each["world_size"]) for each in stored["sessions"]] == [(0, 2), (1, 2)]
    assert len({each["launch"] for each in stored["sessions"]}) == 1
    assert [each["every"] for each in stored["sessions"]] == [1, None], "the second one sends no batch"


def test_a_run_that_nobody_named_is_called_after_its_script(workplace: Workplace) -> None:
    ended = workplace.run("-m", "gradcanary.cli", "run", "--url", workplace.url, "sh", "-c", "python3 -m this; : x.py")
    assert re.search(r"/runs/x-\d{8}-[0-9a-f]{4}\n", ended.stderr)


def test_the_first_step_is_whole_and_the_interval_passed_on(workplace: Workplace) -> None:
    workplace.write("once.py", "from train import train; train(steps=1)")
    workplace.launch("--every", "10", "once.py")
    layers = workplace.stored(f"{workplace.name}/layers")["layers"]
    assert [each["micro_steps"] for each in layers] == [2] * 4
    assert workplace.stored()["sessions"][0]["every"] == 10


CHILDREN = """
import multiprocessing, subprocess, sys
import torch
from torch.utils.data import DataLoader
from train import train


def differentiate():
    weight = torch.ones(2, requires_grad=True)
    torch.optim.SGD([weight], lr=0.1)
    weight.sum().backward()


if __name__ == "__main__":
    list(DataLoader(range(8), num_workers=2, multiprocessing_context="fork"))
    for method in ("fork", "spawn"):
        child = multiprocessing.get_context(method).Process(target=differentiate)
        child.start()
        child.join()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    train()
    list(DataLoader(range(8), num_workers=2, multiprocessing_context="fork"))
"""


def test_children_that_do_not_train_have_no_session(workplace: Workplace) -> None:
    workplace.write("children.py", CHILDREN)
    ended = workplace.launch("children.py")
    assert ended.stderr.count("gradcanary") == 1
    sessions = workplace.stored()["sessions"]
    assert [(each["state"], each["last_step"]) for each in sessions] == [("finished", 3)]


def test_a_process_without_an_optimizer_step_says_nothing(workplace: Workplace) -> None:
    workplace.write("differentiate.py", "import torch; torch.ones(2, requires_grad=True).sum().backward()")
    workplace.launch("differentiate.py")
    assert not workplace.is_stored()


TRAINING_CHILD = """
import multiprocessing, sys
import torch
from train import train


def work():
    train()
    if sys.argv[2:]:
        raise RuntimeError("out of memory")


if __name__ == "__main__":
    child = multiprocessing.get_context(sys.argv[1]).Process(target=work)
    child.start()
    child.join()
"""


@pytest.mark.parametrize(
    ("words", "state"),
    [
        (("fork", "fail"), "crashed"),
        (("spawn",), "finished"),
        (("forkserver", "fail"), "crashed"),
    ],
    ids=["fork-fails", "spawn", "forkserver-fails"],
)
def test_a_child_that_trains_is_watched_to_its_end(workplace: Workplace, words: tuple[str, ...], state: str) -> None:
    workplace.write("parent.py", TRAINING_CHILD)
    workplace.launch("parent.py", *words)
    assert [(each["state"], each["last_step"]) for each in workplace.stored()["sessions"]] == [(state, 3)]


SPAWNED = """
import os
import torch
from torch import distributed
from train import train


def work(rank):
    distributed.init_process_group("gloo", f"file://{os.getcwd()}/meeting", rank=rank, world_size=2)
    train()


if __name__ == "__main__":
    torch.multiprocessing.spawn(work, nprocs=2)
"""


def test_ranks_without_a_launcher_are_told_apart_by_their_process_group(workplace: Workplace) -> None:
    workplace.write("spawned.py", SPAWNED)
    workplace.launch("spawned.py")
    stored = workplace.stored()
    assert [each["rank"] for each in stored["sessions"]] == [0, 1]
    assert stored["step"] == 3


OWN_WATCHES = """
import os

import torch._dynamo  # what each child would import at its first optimizer

import gradcanary
from train import nn, torch

SCRIPTS = [
    lambda: (gradcanary.watch(model, optimizer, every=10), steps(11)),
    lambda: (same(lambda: gradcanary.watch(model)), steps(3)),
    lambda: (steps(3), same(gradcanary.watch), steps(3)),
    lambda: (steps(3), gradcanary.watch(every=10), steps(8)),
    lambda: (steps(3), gradcanary.watch(on_alert=print), steps(3)),
    lambda: (named(), steps(3)),
]


def steps(count):
    for _ in range(count):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def same(watch):
    assert watch() is watch()


def named():
    with gradcanary.watch(run="theirs"):
        steps(3)


for script in SCRIPTS:
    if os.fork():
        assert os.wait()[1] == 0
        continue
    model = nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    script()
    break  # and ends as any script does
"""


def test_a_watch_of_the_scripts_own_is_the_only_one(workplace: Workplace) -> None:
    workplace.write("own.py", OWN_WATCHES)
    ended = workplace.launch("own.py")
    assert ended.stderr.count("gradcanary") == 1
    stored, theirs = workplace.stored(), workplace.stored("theirs")
    assert [(each["every"], each["last_step"]) for each in stored["sessions"]] == [
        (10, 10),
        (1, 2),
        (1, 5),
        *((1, 2), (10, 10)),  # with arguments of its own it follows the one that began without it
        *((1, 2), (1, 5)),
    ]
    assert [each["last_step"] for each in theirs["sessions"]] == [2], "its name counts, and nothing follows its end"
    assert {each["state"] for each in (*stored["sessions"], *theirs["sessions"])} == {"finished"}


def test_a_crash_is_a_crash_and_its_status_is_the_commands(workplace: Workplace) -> None:
    workplace.write("crash.py", "from train import train\ntrain()\nraise RuntimeError('out of memory')")
    assert "RuntimeError: out of memory" in workplace.launch("crash.py", status=1).stderr
    assert workplace.stored()["state"] == "crashed"


@pytest.mark.parametrize(
    ("command", "status"),
    [("exit 3", 3), ("kill -TERM $$", -15), ("kill -KILL $$", -9), ("(kill -PIPE $BASHPID); exit $?", 141)],
)
def test_the_command_ends_as_it_would_alone(workplace: Workplace, command: str, status: int) -> None:
    workplace.launch("bash", "-c", command, status=status)


def test_a_signal_reaches_the_command_itself(workplace: Workplace) -> None:
    command = "trap 'echo trapped; exit 7' TERM; echo ready; while :; do sleep 0.05; done"
    words = ["-m", "gradcanary.cli", "run", "bash", "-c", command]
    with subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.stdout.read() == "trapped\n"
        assert process.wait(30) == 7


def test_stdin_and_stdout_are_the_commands_own(workplace: Workplace) -> None:
    assert workplace.launch(shutil.which("cat"), input="a\nb").stdout == "a\nb"


def test_training_is_the_same_bit_for_bit(workplace: Workplace) -> None:
    script = Path(__file__).with_name("identical_training.py")
    alone = warm.Process(warm.TRAINING, [str(script), "bare", "", "20"], os.environ)
    with alone.stdout as lines:
        expected = lines.read()
    assert alone.wait(60) == 0
    assert workplace.launch(script, "bare", "", 20).stdout == expected
    assert workplace.stored()["step"] == 19
