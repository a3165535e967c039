"""What is foreseen of weights and moments of low precision is what then happens."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

import gradcanary
from gradcanary.facts import NO_SCALER
from gradcanary.stats import weights
from gradcanary.stats.weights import AFTER, AT_LATEST, stuck_share
from support.agent.fixtures import complaints
from support.agent.recorded import Recorded, recording

RATES = [1e-3, 1e-4, 1e-5, 1e-6]


@pytest.fixture
def collector(capsys: pytest.CaptureFixture[str]) -> Iterator[Recorded]:
    with recording() as recorded:
        yield recorded
    assert complaints(capsys.readouterr().err) in ("", f"gradcanary: {NO_SCALER.text}\n")


@pytest.mark.parametrize("lr", RATES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_stuck_elements_do_not_move(dtype: torch.dtype, lr: float) -> None:
    """Adam's first step changes each element by the learning rate, up or down."""
    torch.manual_seed(0)
    weight = nn.Parameter((torch.randn(300, 200) * 0.02).to(dtype))
    optimizer = torch.optim.AdamW([weight], lr=lr, weight_decay=0.0)
    before = weight.detach().clone()
    share = stuck_share(weight, lr)
    weight.grad = torch.randn_like(weight)
    optimizer.step()
    assert float(share) == pytest.approx(float((weight == before).double().mean()), abs=0.01)


def test_a_zero_moves_at_any_rate() -> None:
    assert float(stuck_share(torch.zeros(40, dtype=torch.bfloat16), 1e-9)) == 0.0


def mlp(dtype: torch.dtype) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 24)).to(dtype)


def train(
    collector: Recorded,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: int = AFTER + 2,
    *,
    scheduler: torch.optim.lr_scheduler.LRScheduler | None = None,
    has_closure: bool = False,
) -> None:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.randn(8, 16, dtype=next(model.parameters()).dtype)).float().square().mean()
        loss.backward()
        return loss

    with gradcanary.watch(model, optimizer, url=collector.url, run="forecasts"):
        for _ in range(steps):
            if has_closure:
                optimizer.step(closure)
            else:
                closure()
                optimizer.step()
            if scheduler is not None:
                scheduler.step()


@pytest.mark.parametrize("has_closure", [False, True])
def test_weights_that_a_rate_cannot_move_are_named(collector: Recorded, *, has_closure: bool) -> None:
    model = mlp(torch.bfloat16)
    groups = [{"params": model[0].parameters(), "lr": 1e-3}, {"params": model[2].parameters(), "lr": 1e-6}]
    train(collector, model, torch.optim.AdamW(groups), has_closure=has_closure)
    (fact,) = collector.facts("bf16_weights_lr")
    assert fact["layers"] == ["2.weight", "2.bias"]
    assert f"this learning rate (1e-6 at step {AFTER})" in fact["text"]


def test_a_rate_in_a_tensor_is_not_read_but_given_time(collector: Recorded) -> None:
    model = mlp(torch.bfloat16)
    train(collector, model, torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-6)), steps=AT_LATEST + 2)
    (fact,) = collector.facts("bf16_weights_lr")
    assert f"this learning rate (1e-6 at step {AT_LATEST:,})" in fact["text"]


@pytest.mark.parametrize(("warm_up", "is_told"), [(200, False), (40, True)])
def test_while_the_rate_rises_nothing_is_foreseen(collector: Recorded, warm_up: int, *, is_told: bool) -> None:
    model = mlp(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    rising = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / warm_up))
    train(collector, model, optimizer, steps=100, scheduler=rising)
    assert bool(collector.facts("bf16_weights_lr")) is is_told


def test_a_rate_that_rises_for_long_is_not_foreseen_at_the_last_moment_either(collector: Recorded) -> None:
    model = mlp(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    rising = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (step + 1) / 2000)
    train(collector, model, optimizer, steps=AT_LATEST + 2, scheduler=rising)
    assert not collector.facts("bf16_weights_lr")
    assert collector.facts("bf16_moments")


@pytest.mark.parametrize(
    ("name", "state_of", "is_kept"),
    [
        ("compensation", torch.zeros_like, True),
        ("master", lambda weight: weight.float() * 1.001, True),  # less than the distance of two numbers away
        ("master", lambda weight: weight.float() * 1.02, False),
        ("s", lambda weight: torch.zeros_like(weight, dtype=torch.float32), False),  # of the gradients, as Prodigy's
        ("p0", torch.clone, False),  # no higher precision than the weight has
    ],
)
def test_only_an_optimizer_that_keeps_what_rounding_takes_away_is_left_alone(
    collector: Recorded, name: str, state_of: Callable[[torch.Tensor], torch.Tensor], *, is_kept: bool
) -> None:
    model = mlp(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)

    def keep(*_: object) -> None:
        for each in model.parameters():
            optimizer.state[each][name] = state_of(each.detach())

    optimizer.register_step_post_hook(keep)
    train(collector, model, optimizer, steps=3 * AFTER + 2)
    assert bool(collector.facts("bf16_weights_lr")) is not is_kept
    assert set(collector.stat("frozen_fraction")) == ({AFTER} if is_kept else {AFTER, 2 * AFTER, 3 * AFTER})


def test_an_optimizer_that_comes_later_has_its_own_fifty_steps(collector: Recorded) -> None:
    model = mlp(torch.bfloat16)
    first = torch.optim.AdamW(model[0].parameters(), lr=1e-2)
    second = torch.optim.AdamW(model[2].parameters(), lr=1e-6)
    with gradcanary.watch(model, url=collector.url, run="forecasts"):
        for step in range(2 * AFTER + 8):
            model(torch.randn(8, 16, dtype=torch.bfloat16)).float().square().mean().backward()
            first.step()
            if step >= AFTER + 4:
                second.step()
            model.zero_grad()
    (fact,) = collector.facts("bf16_weights_lr")
    assert fact["layers"] == ["2.weight", "2.bias"]


@pytest.mark.parametrize(
    ("dtype", "kind", "lr"),
    [
        (torch.bfloat16, torch.optim.AdamW, 1e-2),
        (torch.float32, torch.optim.AdamW, 1e-6),
        (torch.bfloat16, torch.optim.SGD, 1e-6),  # its steps go by the gradient
    ],
)
def test_others_are_not(collector: Recorded, dtype: torch.dtype, kind: type[torch.optim.Optimizer], lr: float) -> None:
    model = mlp(dtype)
    train(collector, model, kind(model.parameters(), lr=lr))
    assert not collector.facts("bf16_weights_lr")


@pytest.mark.parametrize(
    ("dtype", "decay", "is_coarse"),
    [
        (torch.bfloat16, 0.999, True),
        (torch.bfloat16, 0.95, False),
        (torch.float16, 0.999, False),
        (torch.float32, 0.999, False),
    ],
)
def test_moments_that_never_come_down_are_told(
    collector: Recorded, dtype: torch.dtype, decay: float, *, is_coarse: bool
) -> None:
    """After gradients fell a thousandfold, the moment of a weight is still what it was, or it is not."""
    model = mlp(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, decay), eps=1e-4)
    train(collector, model, optimizer)
    assert bool(collector.facts("bf16_moments")) is is_coarse
    moments = optimizer.state[model[0].weight]["exp_avg_sq"]
    moments.fill_(0.5)
    for _ in range(50):
        model[0].weight.grad = torch.zeros_like(model[0].weight)
        optimizer.step()
    assert bool((moments == 0.5).all()) is is_coarse


@pytest.mark.parametrize("failing", ["coarse_moments", "forecasts"])
def test_a_look_that_fails_hides_no_other_and_is_named(failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("our own fault")

    monkeypatch.setattr(f"gradcanary.stats.sampler.{failing}", fail)
    model = mlp(torch.float16)
    with recording() as recorded:
        train(recorded, model, torch.optim.AdamW(model.parameters(), lr=1e-6, eps=1e-3, betas=(0.9, 0.9999)))
    found = {fact["code"] for fact in recorded.hellos[-1]["facts"]}
    other = {"coarse_moments": "fp16_weights_lr", "forecasts": "fp16_moments"}[failing]
    assert found == {"agent_fault", "fp16_without_scaler", other}
    (fact,) = recorded.facts("agent_fault")
    part = {"coarse_moments": "moments", "forecasts": "weights"}[failing]
    assert f"forecasting of {part} failed in gradcanary" in fact["text"]


def test_a_large_group_is_told_by_some_of_its_layers(collector: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "MOST_LAYERS", 2)
    model = mlp(torch.bfloat16)
    train(collector, model, torch.optim.AdamW(model.parameters(), lr=1e-6))
    assert collector.facts("bf16_weights_lr")[0]["layers"] == ["0.weight", "2.weight"]


@pytest.mark.parametrize("is_scaled", [False, True])
def test_float16_without_a_scaler_is_told(*, is_scaled: bool) -> None:
    """Fused: of others torch refuses to unscale gradients in float16."""
    model = mlp(torch.float16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with recording() as collector:
        with gradcanary.watch(model, optimizer, url=collector.url, run="scaler"):
            for _ in range(AFTER + 2):
                loss = model(torch.randn(8, 16, dtype=torch.float16)).float().square().mean()
                if is_scaled:
                    scaler.scale(loss).backward()
                    scaler.step(optimizer)
                    scaler.update()
                else:
                    loss.backward()
                    optimizer.step()
                optimizer.zero_grad()
        assert bool(collector.facts("fp16_without_scaler")) is not is_scaled
