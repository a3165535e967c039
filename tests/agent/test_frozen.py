"""How many low-precision weights stand still over fifty steps, against copies of all of them."""

from collections.abc import Iterator

import pytest
import torch
from recorded import Recorded, recording
from torch import nn

import gradcanary
from gradcanary import frozen

EACH = frozen.EACH


@pytest.fixture
def collector(capsys: pytest.CaptureFixture[str]) -> Iterator[Recorded]:
    with recording() as recorded:
        yield recorded
    assert capsys.readouterr().err == ""


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


def test_at_a_small_learning_rate_bfloat16_stands_still_and_gradients_look_healthy(collector: Recorded) -> None:
    trained(collector, mlp(torch.bfloat16), 1e-6)
    assert collector.stat("frozen_fraction")[EACH]["0.weight"] > 0.9
    assert min(each["0.weight"] for each in collector.stat("absmax").values()) > 1e-4


def test_of_a_large_layer_some_elements_are_enough(collector: Recorded) -> None:
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


def test_each_layer_has_its_turn(collector: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen, "EACH", 5)
    monkeypatch.setattr(frozen, "PER_TURN", 3)
    trained(collector, mlp(torch.bfloat16), 1e-5, steps=21)
    layers = {step: set(values) for step, values in collector.stat("frozen_fraction").items()}
    assert [len(each) for each in layers.values()] == [3, 3, 3, 3]
    assert set().union(*layers.values()) == {"0.weight", "0.bias", "2.weight", "2.bias"}
