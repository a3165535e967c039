"""``fp32_masters()`` beside a watch, and behind DistributedDataParallel."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import gradcanary
from gradcanary.stats.weights import AFTER
from support import PROGRAMS, warm
from support.agent.exact_sums import assert_same
from support.agent.ranks import finish
from support.agent.recorded import Recorded, recording, spooling
from support.ports import free_port

BF16 = torch.bfloat16
NAMES = ["0.weight", "0.bias", "2.weight", "2.bias"]


@pytest.fixture
def collector() -> Iterator[Recorded]:
    with recording() as recorded:
        yield recorded


def train(url: str | None, *, has_masters: bool, is_watched_first: bool = True) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)).to(BF16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    opened = []
    for is_watch in (is_watched_first, not is_watched_first):
        if is_watch and url is not None:
            opened.append(gradcanary.watch(model, optimizer, url=url, run="masters"))
        elif not is_watch and has_masters:
            opened.append(gradcanary.fp32_masters(optimizer))
    generator = torch.Generator().manual_seed(1)
    for _ in range(3 * AFTER + 2):
        inputs = torch.randn(8, 16, generator=generator).to(BF16)
        model(inputs).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    for each in reversed(opened):
        each.close()
    return [each.detach() for each in model.parameters()]


@pytest.mark.loop(
    "bfloat16 weights with `fp32_masters`",
    late="",
    caveat="names and dtypes are the model's; weights are not called too coarse, and have no `frozen_fraction`",
)
@pytest.mark.parametrize("is_watched_first", [True, False])
def test_a_watch_sees_the_model_and_calls_no_weight_too_coarse(collector: Recorded, *, is_watched_first: bool) -> None:
    watched = train(collector.url, has_masters=True, is_watched_first=is_watched_first)
    assert_same(watched, train(None, has_masters=True))
    assert collector.names == NAMES
    assert {layer["param_dtype"] for layer in collector.layers} == {"bfloat16"}
    assert collector.stored() == dict.fromkeys(NAMES, "bfloat16")
    assert collector.stat("frozen_fraction") == {}
    found = {fact["code"] for fact in collector.hellos[-1]["facts"]}
    assert not found & {"bf16_weights_lr", "bf16_moments", "agent_fault"}
    assert set(collector.stat("update_ratio")[AFTER]) <= set(NAMES)
    assert len(collector.steps()) == 3 * AFTER + 2


def test_without_copies_the_same_training_is_warned_of(collector: Recorded) -> None:
    train(collector.url, has_masters=False)
    assert collector.facts("bf16_weights_lr")
    assert collector.facts("bf16_moments")
    assert collector.stat("frozen_fraction")


def test_behind_data_parallel_each_rank_steps_the_same_copies(tmp_path: Path) -> None:
    """Gradients are reduced in bfloat16, as without copies, and the step is each rank's own."""
    port = str(free_port())
    script = str(PROGRAMS / "data_parallel_masters.py")
    ranks = [warm.Process(warm.TRAINING, [script, str(rank), port], spooling(tmp_path)) for rank in range(2)]
    assert "gradcanary" not in "".join(finish(ranks))
