"""The end of a training by an exception, in real processes: what is a crash, what is none, and what is told of it."""

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.agent.launched import NOBODY, Workplace
from support.agent.spooled_trainings import synced
from support.collectors import Collector
from support.waiting import eventually

STEPS = """
import os, signal, sys
import torch
from torch import nn

model = nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters())


def steps(count):
    for _ in range(count):
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def fail():
    raise ValueError("bad batch of " + os.path.expanduser("~/data") + ", api_key=abcd1234efgh")

"""
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.fixture
def workplace(tmp_path: Path, module_collector: Collector, request: pytest.FixtureRequest) -> Workplace:
    return Workplace(tmp_path, module_collector, re.sub(r"[^a-z0-9-]+", "-", request.node.name)[:100])


def crashes(workplace: Workplace) -> list[dict[str, Any]]:
    """Return the incidents of the run, which are all crashes."""
    assert workplace.collector is not None
    found = workplace.collector.get("/api/v1/incidents", run=workplace.name).json()["incidents"]
    assert {each["rule"] for each in found} <= {"crash"}
    return found


def test_an_exception_in_the_loop_is_a_crash_with_the_scripts_own_traceback(workplace: Workplace) -> None:
    script = STEPS + "steps(3)\nfail()\n"
    lines = script.splitlines()
    workplace.write("job.py", script)
    ended = workplace.launch("job.py", status=1)
    assert "ValueError: bad batch of" in ended.stderr
    (found,) = crashes(workplace)
    called = lines.index("fail()") + 1
    raised = lines.index("def fail():") + 2
    assert found["crash"]["frames"] == [f"job.py:{raised} in fail", f"job.py:{called} in <module>"]
    assert found["crash"]["message"] == "bad batch of ~/data, api_key=***"
    assert (found["crash"]["type"], found["crash"]["rank"], found["crash"]["memory"]) == ("ValueError", None, None)
    assert (found["severity"], found["resolution"], found["since_step"]) == ("critical", "run_finished", 3)
    assert found["summary"].startswith("ValueError at step 3 ended the training: bad batch")
    assert workplace.stored()["state"] == "crashed"


@pytest.mark.parametrize(
    ("last", "status"),
    [
        ("try:\n    fail()\nexcept ValueError:\n    steps(2)", 0),
        ("sys.exit(0)", 0),
        ("os.kill(os.getpid(), signal.SIGINT)", 130),
        ("signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\nos.kill(os.getpid(), signal.SIGTERM)", 143),
        ("signal.signal(signal.SIGTERM, lambda *_: fail())\nos.kill(os.getpid(), signal.SIGTERM)", 1),
    ],
    ids=["caught", "exit", "interrupt", "sigterm", "sigterm-raises"],
)
def test_what_the_script_survives_or_a_person_does_is_no_crash(workplace: Workplace, last: str, status: int) -> None:
    watched = f"import gradcanary\ngradcanary.watch(url={workplace.url!r}, run={workplace.name!r})\nsteps(3)\n"
    workplace.write("job.py", STEPS + watched + last)
    workplace.run("job.py", status=-signal.SIGINT if status == 130 else status)
    assert crashes(workplace) == []
    assert workplace.stored()["state"] == "finished"


def test_a_scheduler_that_kills_leaves_no_crash(workplace: Workplace) -> None:
    watched = f"import gradcanary\ngradcanary.watch(url={workplace.url!r}, run={workplace.name!r})\nsteps(3)\n"
    workplace.write("job.py", STEPS + watched + "print('ready', flush=True)\nsys.stdin.read()")
    with subprocess.Popen(
        [sys.executable, "job.py"], cwd=workplace.folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        eventually(workplace.is_stored)
        process.terminate()
        assert process.wait(30) == -signal.SIGTERM
    assert crashes(workplace) == []


@pytest.mark.parametrize(
    ("body", "status", "summary"),
    [
        ("    fail()", 1, "ValueError at step 3 ended"),
        ("    sys.exit(3)", 3, "SystemExit at step 3 ended the training: exit status 3"),
        ("    try:\n        fail()\n    except ValueError:\n        sys.exit(4)", 4, "ValueError at step 3 ended"),
    ],
    ids=["exception", "status", "caught"],
)
def test_what_leaves_the_block_of_a_watch(workplace: Workplace, body: str, status: int, summary: str) -> None:
    block = f"import gradcanary\nwith gradcanary.watch(url={workplace.url!r}, run={workplace.name!r}):\n    steps(3)\n"
    workplace.write("job.py", STEPS + block + body)
    workplace.run("job.py", status=status)
    (found,) = crashes(workplace)
    assert found["summary"].startswith(summary)
    assert found["crash"]["frames"][0].startswith("job.py:")


def test_host_that_refuses_memory_is_told_by_its_name(workplace: Workplace) -> None:
    workplace.write("job.py", STEPS + "steps(3)\nnn.functional.linear(torch.empty(2**45), torch.empty(1))\n")
    assert "can't allocate memory" in workplace.launch("job.py", status=1).stderr
    (found,) = crashes(workplace)
    assert found["crash"]["memory"] == "cpu"
    assert found["crash"]["peak_bytes"] > 50 * 2**20
    assert re.match(r"Out of memory at step 3 \(peak [\d.]+ MiB\) ended the training: RuntimeError: ", found["summary"])


def test_an_exception_hook_of_others_is_theirs(workplace: Workplace) -> None:
    """It may be set before and after: the agent has none."""
    hooks = "sys.excepthook = lambda kind, error, stack: print('own hook', kind.__name__)\n"
    workplace.write("job.py", STEPS + "steps(3)\n" + hooks + "fail()\n")
    ended = workplace.launch("job.py", status=1)
    assert ended.stdout == "own hook ValueError\n"
    assert "Traceback" not in ended.stderr
    assert len(crashes(workplace)) == 1


THREAD = """
import threading
thread = threading.Thread(target=lambda: (steps(3), fail()))
thread.start()
thread.join()
"""


def test_an_exception_that_ends_the_thread_that_trains_is_a_crash(workplace: Workplace) -> None:
    workplace.write("job.py", STEPS + THREAD)
    ended = workplace.launch("job.py")
    assert "Exception in thread" in ended.stderr
    (found,) = crashes(workplace)
    assert found["summary"].startswith("ValueError at step 3 ended")


@pytest.mark.parametrize("last", ["steps(2)", "threading.Thread(target=lambda: steps(2)).start()"])
def test_a_training_that_goes_on_after_a_thread_failed_has_no_crash(workplace: Workplace, last: str) -> None:
    workplace.write("job.py", STEPS + THREAD + last)
    workplace.launch("job.py")
    assert crashes(workplace) == []
    assert workplace.stored()["state"] == "finished"


def test_an_exception_of_a_rank_names_it(workplace: Workplace) -> None:
    """torchrun kills the other rank, or that one loses its connection."""
    lines = "from train import *\ntrain(steps=2)\nif os.environ['RANK'] == '1':\n    raise ValueError('bad shard')\n"
    workplace.write("job.py", lines + "import time\ntime.sleep(60)")
    workplace.launch(*TORCHRUN, "job.py", status=1)
    (found,) = crashes(workplace)
    assert found["summary"] == "ValueError in rank 1 at step 2 ended the training: bad shard."
    assert found["crash"]["rank"] == 1


def test_a_crash_without_a_collector_comes_with_sync(
    tmp_path: Path, module_collector: Collector, spool_folder: Path
) -> None:
    workplace = Workplace(tmp_path, None, "crashed-alone")
    workplace.write("job.py", STEPS + "steps(3)\nfail()\n")
    environment = {"GRADCANARY_SPOOL": str(spool_folder)}
    assert "gradcanary sync" in workplace.launch("job.py", status=1, env=environment).stderr
    assert workplace.url == NOBODY
    assert synced(spool_folder, "--url", module_collector.url).returncode == 0
    (found,) = module_collector.get("/api/v1/incidents", run="crashed-alone").json()["incidents"]
    assert found["summary"].startswith("ValueError at step 3 ended the training")
    assert module_collector.get("/api/v1/runs/crashed-alone").json()["state"] == "crashed"
    assert list(spool_folder.iterdir()) == []
