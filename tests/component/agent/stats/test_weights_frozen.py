"""How many low-precision weights stand still over fifty steps, against copies of all of them."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import gradcanary
from gradcanary.facts import NO_SCALER
from gradcanary.stats import weights
from gradcanary.stats.weights import round_robin
from support.agent.fixtures import complaints
from support.agent.recorded import Recorded, recording

EACH = weights.FROZEN_EACH


@pytest.fixture
def collector(capsys: pytest.CaptureFixture[str]) -> Iterator[Recorded]:
    with recording() as recorded:
        yield recorded
    assert complaints(capsys.readouterr().err) in ("", f"gradcanary: {NO_SCALER.text}\n")


def mlp(dtype: torch.dtype, width: int = 32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, width), nn.Tanh(), nn.Linear(width, 24)).to(dtype)


def trained(
    collector: Recorded, model: nn.Module, lr: float, *, steps: int = 2 * EACH + 1, every: int = 1
) -> dict[int, dict[str, float]]:
    """Train, and return the true shares at each step that a turn ends with."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    before: dict[str, torch.Tensor] = {}
    found: dict[int, dict[str, float]] = {}
    span = max(EACH, every)
    with gradcanary.watch(model, optimizer, url=collector.url, run="frozen", every=every):
        for step in range(steps):
            x = torch.randn(8, 16, dtype=next(model.parameters()).dtype)
            model(x).float().square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step % span == 0:
                now = {name: each.detach().clone() for name, each in model.named_parameters()}
                if before:
                    found[step] = {name: float((now[name] == before[name]).double().mean()) for name in now}
                before = now
    return found


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("lr", [1e-3, 1e-5, 1e-6])
def test_shares_are_those_of_all_weights(collector: Recorded, dtype: torch.dtype, lr: float) -> None:
    exact = trained(collector, mlp(dtype), lr)
    assert list(exact) == [EACH, 2 * EACH]
    assert collector.stat("frozen_fraction") == {
        step: pytest.approx(shares, abs=1e-6) for step, shares in exact.items()
    }
    assert collector.phases("frozen_fraction") == {None}


def test_bfloat16_weights_stand_still_at_a_small_learning_rate(collector: Recorded) -> None:
    trained(collector, mlp(torch.bfloat16), 1e-6)
    assert collector.stat("frozen_fraction")[EACH]["0.weight"] > 0.9
    assert min(each["0.weight"] for each in collector.stat("absmax").values()) > 1e-4


def test_large_layers_are_estimated_from_some_elements(collector: Recorded) -> None:
    exact = trained(collector, mlp(torch.bfloat16, width=9_001), 3e-4, steps=EACH + 1)
    told = collector.stat("frozen_fraction")[EACH]
    assert told["0.weight"] == pytest.approx(exact[EACH]["0.weight"], abs=0.01)
    assert 0.05 < told["0.weight"] < 0.95


def test_float32_is_not_looked_at(collector: Recorded) -> None:
    trained(collector, mlp(torch.float32), 1e-3)
    assert not collector.stat("frozen_fraction")


def test_a_wider_interval_has_wider_turns(collector: Recorded) -> None:
    exact = trained(collector, mlp(torch.bfloat16), 1e-5, steps=201, every=100)
    assert collector.stat("frozen_fraction") == {
        step: pytest.approx(shares, abs=1e-6) for step, shares in exact.items()
    }


@given(st.integers(1, 200), st.sampled_from([1, 10, 100, 1000]), st.integers(0, 50))
def test_each_layer_has_its_turn(layers: int, every: int, start: int) -> None:
    span = max(EACH, every)
    numbers = list(range(layers))
    turns = range(start, start - (-layers // weights.FROZEN_PER_TURN) + 1)
    steps = [turn * span for turn in turns]
    assert {layer for step in steps for layer in round_robin(numbers, step // span, weights.FROZEN_PER_TURN)} == set(
        numbers
    )


def test_layers_that_nobody_moves_are_not_called_frozen(collector: Recorded) -> None:
    """One that is unused, one that no optimizer has, and one that got no gradient in the step that is looked at."""
    torch.manual_seed(0)
    model = nn.ModuleDict({name: nn.Linear(16, 4).bfloat16() for name in ("used", "unused", "free", "idle")})
    optimizer = torch.optim.AdamW(
        [*model["used"].parameters(), *model["unused"].parameters(), *model["idle"].parameters()]
    )
    with gradcanary.watch(model, optimizer, url=collector.url, run="frozen"):
        for step in range(EACH + 1):
            x = torch.randn(8, 16, dtype=torch.bfloat16)
            used = [model["used"], model["free"], *([model["idle"]] if step % 10 else [])]
            sum(layer(x).float().square().mean() for layer in used).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert set(collector.stat("frozen_fraction")[EACH]) == {"used.weight", "used.bias"}


def test_an_optimizer_that_steps_more_often_has_its_numbers_too(collector: Recorded) -> None:
    torch.manual_seed(0)
    small, large = nn.Linear(16, 2).bfloat16(), nn.Linear(16, 40).bfloat16()
    often, seldom = (torch.optim.AdamW(each.parameters(), lr=1e-5) for each in (small, large))
    with gradcanary.watch(nn.ModuleList([small, large]), url=collector.url, run="frozen"):
        for step in range(3 * (EACH + 2)):
            layer, optimizer = (large, seldom) if step % 3 == 2 else (small, often)
            layer(torch.randn(8, 16, dtype=torch.bfloat16)).float().square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert set(collector.stat("frozen_fraction")[EACH]) == {"0.weight", "0.bias", "1.weight", "1.bias"}


def test_weights_whose_memory_was_given_back_are_not_read(collector: Recorded) -> None:
    """As wrappers do that shard and offload; such an address may be nobody's."""
    layer = nn.Linear(16, 4).bfloat16()
    optimizer = torch.optim.AdamW(layer.parameters())

    def free(*_: object) -> None:
        for parameter in layer.parameters():
            parameter.data.untyped_storage().resize_(0)

    optimizer.register_step_post_hook(free)
    with gradcanary.watch(layer, optimizer, url=collector.url, run="frozen"):
        for _ in range(EACH + 2):
            for parameter in layer.parameters():
                parameter.data.untyped_storage().resize_(parameter.numel() * 2)
                parameter.data.fill_(0.5)
            layer(torch.randn(8, 16, dtype=torch.bfloat16)).float().square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert len(collector.steps()) == EACH + 2
    assert not collector.stat("frozen_fraction")
