"""Two ranks under DistributedDataParallel: the first one sends what is left when both have been averaged.

All kinds are trained by one pair of processes, watched and unwatched, which also compares the weights bit for bit.
"""

import contextlib
import json
import os
import socket
from pathlib import Path

import data_parallel
import pytest
import warm
from recorded import Recorded, recording

SCRIPT = Path(__file__).parent / "data_parallel.py"
SICK = data_parallel.SICK
Norms = list[dict[str, float]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Recorded, Norms]]:
    """What the ranks sent and what the reference says, by kind."""
    out, port = tmp_path_factory.mktemp("ranks") / "read.json", str(free_port())
    with contextlib.ExitStack() as stack:
        recorded = {kind: stack.enter_context(recording()) for kind in data_parallel.KINDS}
        urls = [each.url for each in recorded.values()]
        ranks = [
            warm.Process(warm.TRAINING, [str(SCRIPT), str(rank), port, str(out), *urls], dict(os.environ))
            for rank in range(data_parallel.RANKS)
        ]
        said = [said_by(rank) for rank in ranks]
        assert [rank.wait(60) for rank in ranks] == [0, 0], said
    assert "gradcanary" not in "".join(said)
    read = json.loads(out.read_text())
    return {kind: (recorded[kind], read[kind]) for kind in data_parallel.KINDS}


def said_by(rank: warm.Process) -> str:
    with rank.stdout as lines:
        return lines.read()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.mark.loop(
    "DDP, with `no_sync`, bucket views, a static graph, unused parameters",
    caveat="verified with two processes; the first rank sends the mean of all. A NaN shows in it; which rank it came "
    "from is not told",
)
@pytest.mark.parametrize("kind", [kind for kind in data_parallel.KINDS if kind != "nan"])
def test_the_first_rank_sends_the_mean_of_all(trained: dict[str, tuple[Recorded, Norms]], kind: str) -> None:
    recorded, read = trained[kind]
    steps = list(range(data_parallel.STEPS))
    assert {hello["rank"] for hello in recorded.hellos} == {0, 1}
    assert recorded.steps() == steps, "the second rank sends no batch"
    sent, states = recorded.stat("norm"), recorded.states()
    for step in steps:
        measured = {name: value for name, value in sent[step].items() if states[step][name] == "measured"}
        assert measured == pytest.approx(read[step], rel=1e-5), step
        assert {states[step][name] for name in states[step].keys() - read[step].keys()} <= {"no_gradient"}
    assert recorded.per_step("micro_steps") == [data_parallel.micro_steps(kind)] * len(steps)
    assert recorded.per_step("skipped") == [0] * len(steps)
    assert recorded.phases("norm") == {"accumulated"}
    assert recorded.names[0] == "first.weight"


@pytest.mark.loop("DDP, with `no_sync`, bucket views, a static graph, unused parameters")
def test_a_nan_of_the_second_rank_is_seen_by_the_first(trained: dict[str, tuple[Recorded, Norms]]) -> None:
    recorded, read = trained["nan"]
    assert recorded.steps() == list(range(data_parallel.STEPS))
    assert recorded.per_step("skipped") == [2 * (step == SICK) for step in recorded.steps()]
    for step, states in recorded.states().items():
        assert set(states.values()) == {"nonfinite" if step == SICK else "measured"}
        if step != SICK:
            assert recorded.stat("norm")[step] == pytest.approx(read[step], rel=1e-5)
