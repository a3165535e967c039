"""A training that is attached to and left again, as somebody would from another terminal."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradcanary import __version__, notices, wire
from gradcanary.attach import processes, target
from support.agent import attach_soak
from support.agent.attach_targets import Training, Typed, program, training, until
from support.receivers import Receiver

LOW = [f"blocks.{number}.linear.{kind}" for number in (2, 4, 5) for kind in ("weight", "bias")]


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Training]:
    """One training that all tests here come to and leave; the last one compares it with one left alone."""
    with training(tmp_path_factory.mktemp("joined") / "training") as started:
        yield started


@pytest.fixture(scope="module")
def untouched(joined: Training) -> dict[str, object]:
    return joined.seen()


def test_attach_tells_what_it_found_and_what_had_fallen_before(
    joined: Training, untouched: dict[str, object], typed: Typed, module_collector
) -> None:
    status, out, err = typed("attach", joined.pid, "--url", module_collector.url, "--run", "fallen")
    assert (status, err) == (0, "")
    for line in (
        "optimizer    AdamW: 16 tensors, 2,176 elements",
        "parameters   16: 16 float32",
        "micro-steps  K = 2 micro-steps per step, summed in 16 float32",
        (
            f"low          6 of 16 parameters are under 1e-4 now: {', '.join(LOW)} "
            "(--absmax-below 1e-4 makes that an alert)"
        ),
        "run          fallen",
        f"page         {module_collector.url}/runs/fallen",
        f"leave with   gradcanary detach {joined.pid}",
    ):
        assert line in out
    assert re.search(r"stood still  \d\.\d\d s for gdb, \d\.\d\d s to begin", out)
    (step,) = re.findall(r"step         ([\d,]+), as the optimizer counts", out)
    assert 0 < int(step.replace(",", "")) <= joined.steps + 10


def test_the_first_window_is_partial_and_the_launch_late(joined: Training, module_collector) -> None:
    joined.go_on(40)
    run = "/api/v1/runs/fallen"
    first, second, *_ = module_collector.get(f"{run}/export.csv").text.splitlines()[1:]
    (session,) = module_collector.get(run).json()["sessions"]
    assert int(first.split(",")[0]) == session["first_step"] > 0
    assert set(first.split(",")[2:]) == {""}
    assert "" not in second.split(",")[2:]
    losses = module_collector.get(f"{run}/metrics", name="loss", points=4000).json()
    (step, *_), (count, *_) = (
        wire.uncolumn("d", losses["steps"]["data"]),
        wire.uncolumn("i", losses["metrics"][0]["count"]["data"]),
    )
    assert (step, count) == (session["first_step"] + 1, 1), "a sum of some micro-steps would be another loss"
    recording = module_collector.get(f"{run}/recording").text
    assert '"late":true' in recording.replace(" ", "")


def test_layers_collapsed_before_attach_open_an_incident(joined: Training, module_collector) -> None:
    def found() -> list[dict[str, object]]:
        every = module_collector.get("/api/v1/incidents", run="fallen").json()["incidents"]
        return [each for each in every if each["rule"] == "collapse"]

    until(found)
    (incident,) = found()
    told = module_collector.get(f"/api/v1/incidents/{incident['id']}").json()
    assert {layer["name"] for layer in told["layers"]} == set(LOW)
    assert {layer["evidence"] for layer in told["layers"]} <= {"siblings", "joined_late"}
    (session,) = module_collector.get("/api/v1/runs/fallen").json()["sessions"]
    assert told["opened_step"] - session["first_step"] <= 25


def test_a_second_attach_is_refused_and_ps_lists_it(joined: Training, typed: Typed) -> None:
    status, _, err = typed("attach", joined.pid)
    assert status == 1
    assert "is attached already, as run fallen: http" in err
    assert f"gradcanary detach {joined.pid}" in err
    _, out, _ = typed("ps")
    (line,) = [line for line in out.splitlines() if line.startswith(f"{joined.pid} ")]
    assert " fallen " in line
    assert re.search(rf"forked from process {joined.pid}\b", out) is None, "workers that load data"


def test_detach_leaves_nothing_behind(
    joined: Training, untouched: dict[str, object], typed: Typed, module_collector
) -> None:
    assert joined.seen() != untouched
    status, out, err = typed("detach", joined.pid)
    assert (status, out, err) == (0, f"left process {joined.pid}, run fallen: detached\n", "")
    assert joined.is_as(untouched)
    assert module_collector.get("/api/v1/runs/fallen").json()["state"] == "detached"
    status, _, err = typed("detach", joined.pid)
    assert (status, err) == (
        1,
        f"gradcanary detach: process {joined.pid} is not attached. gradcanary ps lists those that are\n",
    )


def test_training_can_be_attached_to_again_and_detaches_itself(
    joined: Training, untouched: dict[str, object], typed: Typed, module_collector
) -> None:
    for _ in range(2):
        status, out, _ = typed("attach", joined.pid, "--url", module_collector.url, "--run", "again", "--for", "1s")
        assert status == 0
        assert f"gradcanary detach {joined.pid}, or wait 1s" in out
        until(lambda: module_collector.get("/api/v1/runs/again").json()["state"] == "detached")
        assert joined.is_as(untouched)
    launches = {each["launch"] for each in module_collector.get("/api/v1/runs/again").json()["sessions"]}
    assert len(launches) == 2


def test_detach_resolves_no_incident_and_the_next_attach_continues_it(
    tmp_path: Path, typed: Typed, collector_factory
) -> None:
    """The one ``ended`` message is that of the training's own end."""
    receiver = Receiver()
    rules = tmp_path / "rules.yaml"
    rules.write_text("version: 1\npace: {wait_s: 0.1, interval_s: 0.1}\n")
    collector = collector_factory("--webhook", f"warning,ended={receiver.url}", "--rules", str(rules))

    def incidents() -> list[tuple[int, str]]:
        every = collector.get("/api/v1/incidents", run="left").json()["incidents"]
        return [(each["id"], each["state"]) for each in every if each["rule"] == "collapse"]

    attach = ("attach", "--url", collector.url, "--run", "left")
    with training(tmp_path / "training") as left:
        assert typed(*attach, left.pid)[0] == 0
        until(lambda: receiver.got)
        ((number, _),) = incidents()
        assert typed("detach", left.pid)[1] == f"left process {left.pid}, run left: detached\n"
        assert incidents() == [(number, "open")]
        assert collector.get("/api/v1/runs", state="detached").json()["runs"][0]["run"] == "left"
        assert typed("runs", "--url", collector.url)[1].splitlines()[1].split()[:2] == ["left", "detached"]
        assert typed(*attach, left.pid)[0] == 0
        assert collector.get("/api/v1/runs/left").json()["state"] == "live"
        left.ended()
    until(lambda: receiver.got[-1].type == "gradient.collapse.ended")
    assert [(message.type, message.data["incident"]) for message in receiver.got] == [
        ("gradient.collapse.opened", number),
        ("gradient.collapse.ended", number),
    ]
    assert (collector.get("/api/v1/runs/left").json()["state"], incidents()) == ("finished", [(number, "ended")])
    receiver.close()


def test_another_version_of_the_agent_is_refused(
    joined: Training, typed: Typed, untouched: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, "__version__", "9.9")
    status, _, err = typed("attach", joined.pid)
    assert status == 1
    assert f"the agent in this process is {__version__}, yours 9.9" in err
    assert f"pip install gradcanary=={__version__}" in err
    assert joined.is_as(untouched)


def test_ctrl_c_after_it_was_let_in_says_so(
    joined: Training, typed: Typed, untouched: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_target: target.Target) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(target.Target, "describe", interrupted)
    status, _, err = typed("attach", joined.pid, "--url", "http://127.0.0.1:9")
    assert status == 130
    assert f"process {joined.pid} is attached already: it goes on being watched, until gradcanary detach" in err
    assert typed("detach", joined.pid)[0] == 0
    assert joined.is_as(untouched)


def test_attach_without_a_collector_is_reported(joined: Training, typed: Typed, untouched: dict[str, object]) -> None:
    status, out, _ = typed("attach", joined.pid, "--url", "http://127.0.0.1:9", "--run", "alone")
    assert status == 0
    assert "collector    http://127.0.0.1:9 does not answer: what is measured is kept by the training's machine" in out
    status, out, _ = typed("detach", joined.pid)
    assert status == 0
    assert re.match(
        f"left process {joined.pid}, run alone: the collector did not take everything in time; "
        "\\d+ sampled steps and the end are kept: gradcanary sync /.*spool\n",
        out,
    )
    assert joined.is_as(untouched)


def test_attach_and_detach_twenty_times(joined: Training, untouched: dict[str, object]) -> None:
    """Found in its loop, in a forward, in a backward pass and in a step; ``attach_soak.py`` does it more often."""
    times = [attach_soak.cycle(joined) for _ in range(20)]
    print(attach_soak.summed(times))
    assert joined.is_as(untouched)


def test_the_training_is_the_same_bit_for_bit(joined: Training, tmp_path: Path) -> None:
    steps, digest, said = joined.ended()
    assert steps > 100
    assert [line for line in said.splitlines() if not line.startswith("gradcanary: ")] == []
    with training(tmp_path / "alone") as alone:
        assert alone.ended(steps)[:2] == (steps, digest)


BY_HAND = """
import torch
weight = torch.ones(2, requires_grad=True)
for step in range(10**9):
    weight.sum().backward()
    weight.data -= 0.1 * weight.grad
    weight.grad = None
    if step == 9:
        print("trains", flush=True)
"""


def test_a_loop_without_an_optimizer_is_described_at_once(
    typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing will step: no line says that a step is waited for."""
    monkeypatch.setattr(target, "PROGRESS_INTERVAL_S", 0.0)
    monkeypatch.setattr(target, "WAITING", "until it is let in")
    (tmp_path / "by_hand.py").write_text(BY_HAND)
    with program(sys.executable, str(tmp_path / "by_hand.py")) as process:
        status, out, err = typed("attach", process.pid, "--url", "http://127.0.0.1:9", "--run", "by-hand")
        assert (status, set(err.splitlines()) - {"until it is let in"}) == (0, set())
        assert f"optimizer    {target.NO_OPTIMIZER}" in out
        assert "page         http://127.0.0.1:9/runs/by-hand (appears with the first step)\n" in out
        assert typed("detach", process.pid)[0] == 0


WATCHED = """
import os, sys, time
import torch
import gradcanary
for run in sys.argv[1:]:
    watch = gradcanary.watch(torch.nn.Linear(2, 2), run=run)
child = os.fork()
if not child:
    time.sleep(600)
print(child, flush=True)
sys.stdin.readline()
if sys.argv[1:]:
    watch.close()
print("closed", flush=True)
sys.stdin.readline()
os.kill(child, 9)
"""


def listed(typed: Typed, pid: int) -> tuple[str, str, str]:
    """Return what ``ps`` says of a process: the run, what watches it, and its page."""
    status, out, _ = typed("ps")
    assert status == 0
    head, *lines = out.splitlines()
    assert re.split(r"  +", head) == ["PID", "PYTHON", "RANK", "SINCE", "WATCHED BY", "RUN", "COMMAND"]
    (row,) = [re.split(r"  +", line) for line in lines if line.startswith(f"{pid} ")]
    (page,) = [line for line in lines if line.startswith(f"Page of {row[5]}: ")] or [""]
    return row[5], row[4], page.partition(": ")[2]


def test_ps_tells_what_watches_a_process_and_its_run(typed: Typed, tmp_path: Path) -> None:
    script, url = tmp_path / "watched.py", "http://127.0.0.1:9"
    script.write_text(WATCHED)
    env = {**os.environ, "GRADCANARY_URL": url}
    by_run = [sys.executable, "-m", "gradcanary.cli", "run", "--run", "launched"]
    options = {"env": env, "stdin": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with (
        program(sys.executable, str(script), "coded", **options) as coded,
        program(*by_run, str(script), **options) as launched,
    ):
        assert listed(typed, coded.pid) == ("coded", "watch()", f"{url}/runs/coded")
        assert listed(typed, launched.pid) == ("launched", "gradcanary run", f"{url}/runs/launched")
        (child,) = [each for each in processes.find_all(os.geteuid()) if each.parent == coded.pid]
        assert listed(typed, child.pid) == ("-", "-", ""), "its parent's watch is none of its own"
        assert coded.stdin is not None
        assert coded.stdout is not None
        coded.stdin.write("\n")
        coded.stdin.flush()
        assert coded.stdout.readline() == "closed\n"
        assert listed(typed, coded.pid) == ("-", "-", "")
        os.kill(child.pid, 9)
        for each in processes.find_all(os.geteuid()):
            if each.parent == launched.pid:
                os.kill(each.pid, 9)


def test_a_file_of_the_script_in_the_place_of_a_notice_stays_open(tmp_path: Path) -> None:
    notice = notices.Notice(run="r", url="u", by="watch()")
    assert [each["run"] for each in notices.read_notices(os.getpid())] == ["r"]
    number = notice._file
    with (tmp_path / "theirs").open("wb") as theirs:
        os.dup2(theirs.fileno(), number)  # as a daemon that closes all its files, and opens others
        notice.withdraw()
        os.write(number, b"still open")
        os.close(number)
    assert (tmp_path / "theirs").read_bytes() == b"still open"
    assert list(notices.read_notices(os.getpid())) == []
