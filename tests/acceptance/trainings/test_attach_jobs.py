"""A job of several processes, as torchrun starts it."""

import os
from pathlib import Path

from gradcanary.attach import processes
from support import PROGRAMS, warm
from support.agent.attach_targets import WAIT_S, Typed, until

SCRIPT = str(PROGRAMS / "joined_rank.py")
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", SCRIPT]


def ended(process: warm.Process) -> list[list[str]]:
    with process.stdout as lines:
        said = lines.readlines()
    assert process.wait(WAIT_S) == 0, said
    return sorted(line.split() for line in said if line[:2] in ("0 ", "1 "))


def left_alone(folder: Path, steps: str) -> list[list[str]]:
    """Return how a job ends that nobody attached to."""
    folder.mkdir()
    (folder / "stop").write_text(steps)
    words = [SCRIPT, str(folder), f"file://{folder}/meeting"]
    ranks = [
        warm.Process(warm.TRAINING, words, {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2"}) for rank in range(2)
    ]
    return [line for rank in ranks for line in ended(rank)]


def test_every_rank_of_torchrun_is_attached_to_and_left(typed: Typed, tmp_path: Path, module_collector) -> None:
    """By the launcher's id, and by any rank's."""
    folder = tmp_path / "joined"
    folder.mkdir()
    steps = [folder / f"step-{rank}" for rank in range(2)]
    launcher = warm.Process(warm.TRAINING, [*TORCHRUN, str(folder)], dict(os.environ))
    try:
        until(lambda: all(file.exists() for file in steps) or launcher.poll() is not None)
        itself = processes.find(launcher.pid)
        assert itself is not None
        first, second = (rank.pid for rank in processes.ranks_of(itself))
        status, out, err = typed("attach", launcher.pid, "--url", module_collector.url)
        assert (status, err) == (0, "")
        told = [line.split("process ")[1].split(",")[0] for line in out.splitlines() if line.startswith("attached to")]
        assert told == [str(first), str(second)]
        assert "rank         0 of 2\n" in out
        assert "rank         1 of 2; sends only what is not finite" in out
        (run,) = {line.split()[1] for line in out.splitlines() if line.startswith("  run ")}
        assert run.startswith("joined_rank-")
        sessions = module_collector.get(f"/api/v1/runs/{run}").json()["sessions"]
        assert [(each["rank"], each["world_size"]) for each in sessions] == [(0, 2), (1, 2)]
        assert len({each["launch"] for each in sessions}) == 1
        status, out, err = typed("detach", second)
        assert (status, err) == (0, "")
        assert out == "".join(f"left process {pid}, run {run}: detached\n" for pid in (first, second))
        (folder / "stop").write_text(str(max(int(file.read_text()) for file in steps) + 5))
        both = ended(launcher)
        assert both == left_alone(tmp_path / "alone", both[0][1])
    finally:
        launcher.send_signal(9)
