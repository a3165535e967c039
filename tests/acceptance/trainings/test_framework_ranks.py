"""Two ranks of a framework under DistributedDataParallel: the first one sends what is left when both were averaged.

All frameworks are run by one pair of processes, watched and unwatched, which also compares the weights bit for bit.
"""

import contextlib
import json

import pytest
import torch

from support import PROGRAMS, warm
from support.agent.fixtures import complaints
from support.agent.ranks import finish
from support.agent.recorded import Recorded, recording, spooling
from support.collectors import Collector
from support.ports import free_port

SCRIPT = PROGRAMS / "framework_ranks.py"
KINDS = ("transformers", "accelerate", "lightning")
RANKS, COUNTS, CUT_SHORT = 2, [2, 2, 1, 2, 2, 1], {2, 5}
MODULES = (
    "accelerate",
    "lightning.pytorch",
    "pytest",
    "transformers.models.llama.modeling_llama",
    "transformers.trainer",
)
EXACT = 1e-5
"""Relative: of a float32 mean of two float32 sums."""

Windows = list[dict[str, torch.Tensor]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, list[Recorded]], list[dict[str, Windows]]]:
    """What each rank sent, by framework, and its own gradients."""
    folder = tmp_path_factory.mktemp("ranks")
    with contextlib.ExitStack() as stack:
        sent = {kind: [stack.enter_context(recording()) for _ in range(RANKS)] for kind in KINDS}
        port = str(free_port())
        words = [[str(SCRIPT), str(rank), port, str(folder)] for rank in range(RANKS)]
        ranks = [
            warm.Process(warm.TRAINING + MODULES, [*mine, *(sent[kind][rank].url for kind in KINDS)], spooling(folder))
            for rank, mine in enumerate(words)
        ]
        said = "".join(finish(ranks))
    assert "gradcanary" not in complaints(said)
    return sent, [torch.load(folder / f"{rank}.pt") for rank in range(RANKS)]


@pytest.mark.loop(
    "DDP by Hugging Face Trainer, Accelerate or Lightning",
    late="short last windows, but for Lightning's",
    caveat="as of DDP, verified with two processes: the first rank sends the mean of all",
)
@pytest.mark.parametrize("kind", KINDS)
def test_the_first_rank_of_a_framework_sends_the_mean_of_all(
    trained: tuple[dict[str, list[Recorded]], list[dict[str, Windows]]], kind: str
) -> None:
    sent, own = trained
    first, second = sent[kind]
    assert [(each.hellos[-1]["rank"], each.hellos[-1]["world_size"]) for each in (first, second)] == [(0, 2), (1, 2)]
    assert not second.batches
    assert [each.ends[-1]["state"] for each in (first, second)] == ["finished"] * 2
    assert first.hellos[-1]["framework"] == kind
    assert first.names == list(own[0][kind][0])
    assert first.per_step("micro_steps") == COUNTS
    late = CUT_SHORT if kind != "lightning" else set()
    assert first.phase_of("norm") == {
        step: "post_clip" if step in late else "accumulated" for step in range(len(COUNTS))
    }
    for step, windows in enumerate(zip(*(each[kind] for each in own), strict=True)):
        means = {name: sum(window[name] for window in windows) / RANKS for name in windows[0]}
        norms = {name: float(mean.norm()) for name, mean in means.items()}
        absmax = {name: float(mean.abs().max()) for name, mean in means.items()}
        assert first.stat("norm")[step] == pytest.approx(norms, rel=EXACT), step
        assert first.stat("absmax")[step] == pytest.approx(absmax, rel=EXACT), step


def test_an_incident_stops_both_ranks_after_the_same_step(
    module_collector: Collector, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A rank that stopped alone would leave the other in a collective. If one has no callback, none stops."""
    folder = tmp_path_factory.mktemp("stopping")
    port = str(free_port())
    words = [[str(PROGRAMS / "stopping_ranks.py"), str(rank), port, str(folder)] for rank in range(RANKS)]
    ranks = [
        warm.Process(warm.TRAINING + MODULES, [*mine, module_collector.url], spooling(folder / mine[1]))
        for mine in words
    ]
    said = finish(ranks)
    first, second = (json.loads(text[text.rindex('{"trans') :].splitlines()[0]) for text in said)
    for kind in ("transformers", "lightning", "documented"):
        assert first[kind]["step"] == second[kind]["step"], kind
        assert 0 < first[kind]["step"] < 10_000
    assert first["transformers"]["is_saved"]
    assert second["transformers"]["is_saved"]
    assert (first["transformers"]["verdicts"], second["transformers"]["verdicts"]) == (1, 0)
    assert said[0].count("stop_on: the training is to end after this step, because of collapse (critical") == 2
    assert "stop_on" not in said[1]
    assert first["only rank 0"]["step"] == second["only rank 0"]["step"] == 80
    assert "stop_on: the training goes on for now, because 1 of 2 ranks do not take part" in said[0]
