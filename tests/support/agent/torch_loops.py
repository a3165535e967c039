"""Small models, and what their gradients are, read in float64."""

import contextlib
from collections.abc import Callable

import pytest
import torch
from torch import nn

import gradcanary
from support.agent.recorded import Recorded

EXACT = 1e-6


Read = dict[str, float]


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))


def loss_of(model: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return model(torch.randn(8, 16, dtype=dtype)).float().square().mean()


def reading(model: nn.Module) -> tuple[Read, Read]:
    """Return absmax and norm by name, in float64."""
    gradients = {n: p.grad.to_dense().double() for n, p in model.named_parameters() if p.grad is not None}
    return (
        {name: float(each.abs().max()) for name, each in gradients.items()},
        {name: float(each.norm()) for name, each in gradients.items()},
    )


def assert_sent(collector: Recorded, read: list[tuple[Read, Read]], steps: range | None = None) -> None:
    """Compare all that was sent with what was read at each step."""
    steps = range(len(read)) if steps is None else steps
    assert collector.steps() == list(steps)
    for position, stat in enumerate(("absmax", "norm")):
        sent = collector.stat(stat)
        assert {step: sent[step] for step in steps} == {
            step: pytest.approx(read[step][position], rel=EXACT, abs=0) for step in steps
        }


def weights(model: nn.Module) -> list[torch.Tensor]:
    return [each.detach().clone() for each in model.parameters()]


def assert_identical(first: nn.Module, second: nn.Module) -> None:
    assert all(map(torch.equal, weights(first), weights(second)))


def watching(
    collector: Recorded, *given: object, is_watched: bool, **words: object
) -> contextlib.AbstractContextManager:
    if not is_watched:
        return contextlib.nullcontext()
    return gradcanary.watch(*given, url=collector.url, run="loop", **words)


class Loop:
    """A training in bfloat16 with two micro-steps, so that every kind of hook has its turn."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).bfloat16()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, constant)

    def pass_(self, model: nn.Module | None = None) -> None:
        (model or self.model)(torch.ones(2, 4, dtype=torch.bfloat16)).float().square().mean().backward()

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.pass_()
            self.pass_()
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()


def constant(_step: int) -> float:
    return 1.0
