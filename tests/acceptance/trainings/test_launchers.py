"""``gradcanary run``: any way to start a training, its children and its end, against a real collector."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gradcanary import facts
from support import PROGRAMS, warm
from support.agent.launched import Workplace
from support.collectors import Collector

SCRIPTS = Path(sys.executable).parent
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py")


@pytest.fixture
def workplace(tmp_path: Path, module_collector: Collector, request: pytest.FixtureRequest) -> Workplace:
    return Workplace(tmp_path, module_collector, re.sub(r"[^a-z0-9-]+", "-", request.node.name)[:100])


@pytest.mark.parametrize(
    "words",
    [
        ("-m", "train", "a", "--run", "b"),
        ("sh", "-c", f"{sys.executable} train.py a --run b"),
        (SCRIPTS / "accelerate", "launch", "--cpu", "train.py", "a", "--run", "b"),
    ],
    ids=["module", "shell", "accelerate"],
)
def test_a_training_is_watched_without_a_change(workplace: Workplace, words: tuple[object, ...]) -> None:
    ended = workplace.launch(*words)
    assert ended.stdout == "trained a --run b\n"
    page = f"{workplace.url}/runs/{workplace.name}"
    found = "watching AdamW, 4 parameters (4 float32), K = 2 micro-steps per step, summed in 4 float32"
    lines = [line for line in ended.stderr.splitlines() if "gradcanary" in line]
    appears = f"gradcanary: the page appears at the first optimizer step: {page}"
    assert lines == [appears, f"gradcanary: {found}: {page}"]
    stored = workplace.stored()
    assert (stored["state"], stored["step"], stored["layers"]) == ("finished", 3, 4)
    assert [(each["rank"], each["first_step"], each["last_step"]) for each in stored["sessions"]] == [(0, 0, 3)]
    losses = {metric["name"]: metric["last"] for metric in stored["metrics"]}
    assert losses["loss"] > 0


@pytest.mark.parametrize(
    "words",
    [("show.py",), ("--", "show.py"), ("-m", "show"), (sys.executable, "show.py"), ("--", sys.executable, "show.py")],
)
def test_options_after_the_command_belong_to_the_command(workplace: Workplace, words: tuple[str, ...]) -> None:
    workplace.write("show.py", "import sys; print(sys.argv[1:])")
    assert workplace.launch(*words, "a", "--run", "b").stdout == "['a', '--run', 'b']\n"


def test_ranks_share_run_and_launch_and_the_first_one_speaks(workplace: Workplace) -> None:
    ended = workplace.launch(*TORCHRUN)
    assert ended.stdout.count("trained") == 2
    assert ended.stderr.count("gradcanary: watching AdamW, 4 parameters") == 1
    stored = workplace.stored()
    assert (stored["state"], stored["step"]) == ("finished", 3)
    assert [(each["rank"], each["world_size"]) for each in stored["sessions"]] == [(0, 2), (1, 2)]
    assert len({each["launch"] for each in stored["sessions"]}) == 1
    assert [each["every"] for each in stored["sessions"]] == [1, None], "the second one sends no batch"


# Starts ranks with the environment and the words that deepspeed's launcher gives them. Over several machines it passes
# on only variables of some names: the second rank is as of another machine.
LIKE_DEEPSPEED = """
import os, socket, subprocess, sys

with socket.create_server(("127.0.0.1", 0)) as free:
    port = str(free.getsockname()[1])
ranks = []
for rank in range(2):
    kept = {name: value for name, value in os.environ.items() if not rank or name.startswith(("PYTHON", "MV2", "UCX"))}
    own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_SIZE": "2"}
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    words = [sys.executable, "-u", "train.py", f"--local_rank={rank}", *sys.argv[1:]]
    ranks.append(subprocess.Popen(words, env={**kept, **own, **meeting}))
sys.exit(max(rank.wait() for rank in ranks))
"""


def test_launchers_that_pass_on_few_variables(workplace: Workplace) -> None:
    """Tried once with deepspeed 0.19.8 itself, too: on one machine, without a GPU."""
    workplace.write("launcher.py", LIKE_DEEPSPEED)
    ended = workplace.launch("launcher.py", "--lr", 3)
    # Nothing is buffered: lines of two ranks may lie within each other.
    assert [ended.stdout.count(word) for word in ("trained", "--local_rank=0", "--local_rank=1", "--lr")] == [
        2,
        1,
        1,
        2,
    ]
    stored = workplace.stored()
    assert sorted((each["rank"], each["world_size"]) for each in stored["sessions"]) == [(0, 2), (1, 2)]
    assert len({each["launch"] for each in stored["sessions"]}) == 1


def test_a_run_that_nobody_named_is_called_after_its_script(workplace: Workplace) -> None:
    ended = workplace.run("-m", "gradcanary.cli", "run", "--url", workplace.url, "sh", "-c", "python3 -m this; : x.py")
    assert re.search(r"/runs/x-\d{8}-[0-9a-f]{4}\n", ended.stderr)


CHILDREN = """
import gc, multiprocessing
import torch
from torch.utils.data import DataLoader
from train import train


def differentiate():
    weight = torch.ones(2, requires_grad=True)
    torch.optim.SGD([weight], lr=0.1)
    weight.sum().backward()


if __name__ == "__main__":
    gc.freeze()  # or each child frees the modules that its parent imported, one by one
    list(DataLoader(range(8), num_workers=1, multiprocessing_context="fork"))
    for method in ("fork", "spawn"):
        child = multiprocessing.get_context(method).Process(target=differentiate)
        child.start()
        child.join()
    train()
    gc.freeze()
    list(DataLoader(range(8), num_workers=1, multiprocessing_context="fork"))
"""


def test_children_that_do_not_train_have_no_session(workplace: Workplace) -> None:
    workplace.write("children.py", CHILDREN)
    ended = workplace.launch("children.py")
    assert (ended.stderr.count("gradcanary"), ended.stderr.count("gradcanary: watching AdamW, 4 parameters")) == (2, 1)
    sessions = workplace.stored()["sessions"]
    assert [(each["state"], each["last_step"]) for each in sessions] == [("finished", 3)]


def test_a_process_without_an_optimizer_step_says_nothing(workplace: Workplace) -> None:
    workplace.write("differentiate.py", "import torch; torch.ones(2, requires_grad=True).sum().backward()")
    workplace.launch("differentiate.py")
    assert not workplace.is_stored()


BY_HAND = """
import torch

weight = torch.ones(2, requires_grad=True)
for _ in range({passes}):
    weight.sum().backward()
    weight.data -= 0.1 * weight.grad
    weight.grad = None
{last}
"""


@pytest.mark.parametrize(("passes", "last", "is_reported"), [(3, "", True), (3, "1 / 0", False), (1, "", False)])
def test_a_loop_without_an_optimizer_ends_with_what_it_lacks(
    workplace: Workplace, passes: int, last: str, is_reported: bool
) -> None:
    """Not after an error, which is the reason itself, and not for a single pass, which is no loop."""
    workplace.write("by_hand.py", BY_HAND.format(passes=passes, last=last))
    ended = workplace.launch("by_hand.py", status=1 if last else 0)
    assert ended.stderr.count(f"gradcanary: {facts.NO_STEP.text}\n") == is_reported
    assert not workplace.is_stored()


TRAINING_CHILDREN = """
import multiprocessing
import torch
from train import train


def work(fails):
    train()
    if fails:
        raise RuntimeError("out of memory")


if __name__ == "__main__":
    for method, fails in (("fork", True), ("spawn", False), ("forkserver", True)):
        child = multiprocessing.get_context(method).Process(target=work, args=(fails,))
        child.start()
        child.join()
"""


def test_children_that_train_are_watched_to_their_ends(workplace: Workplace) -> None:
    workplace.write("parent.py", TRAINING_CHILDREN)
    workplace.launch("parent.py")
    ends = [(each["state"], each["last_step"]) for each in workplace.stored()["sessions"]]
    assert ends == [("crashed", 3), ("finished", 3), ("crashed", 3)]


SPAWNED = """
import os
import torch
from torch import distributed
from train import train


def work(rank):
    distributed.init_process_group("gloo", f"file://{os.getcwd()}/meeting", rank=rank, world_size=2)
    train()


if __name__ == "__main__":
    torch.multiprocessing.start_processes(work, nprocs=2, start_method="fork")
"""


def test_ranks_without_a_launcher_are_told_apart_by_their_process_group(workplace: Workplace) -> None:
    workplace.write("spawned.py", SPAWNED)
    workplace.launch("spawned.py")
    stored = workplace.stored()
    assert [each["rank"] for each in stored["sessions"]] == [0, 1]
    assert stored["step"] == 3


OWN_WATCHES = """
import gc, os

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


gc.freeze()  # or each child frees the modules that its parent imported, one by one
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
    assert (ended.stderr.count("gradcanary"), ended.stderr.count("gradcanary: watching ")) == (9, 8), "once per launch"
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


def test_a_crash_after_one_step_is_a_crash_that_step_is_whole_and_the_status_the_commands(workplace: Workplace) -> None:
    workplace.write("crash.py", "from train import train\ntrain(steps=1)\nraise RuntimeError('out of memory')")
    assert "RuntimeError: out of memory" in workplace.launch("--every", "10", "crash.py", status=1).stderr
    assert workplace.stored()["state"] == "crashed"
    assert [each["micro_steps"] for each in workplace.stored(f"{workplace.name}/layers")["layers"]] == [2] * 4
    assert [each["every"] for each in workplace.stored()["sessions"]] == [10], "the interval was passed on"


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
    script = PROGRAMS / "identical_training.py"
    alone = warm.Process(warm.TRAINING, [str(script), "bare", "", "20"], os.environ)
    with alone.stdout as lines:
        expected = lines.read()
    assert alone.wait(60) == 0
    assert workplace.launch(script, "bare", "", 20).stdout == expected
    assert workplace.stored()["step"] == 19
