"""``Watch.pause()``: what happens meanwhile leaves no number behind, and what comes after it is right or not there."""

from collections.abc import Iterator

import pytest
import torch
from recorded import Recorded, recording
from torch import nn

import gradcanary

STEPS, MICRO_STEPS = 6, 4


@pytest.fixture
def collector(capsys: pytest.CaptureFixture[str]) -> Iterator[Recorded]:
    with recording() as recorded:
        yield recorded
    assert capsys.readouterr().err == ""


def loss_of(model: nn.Module) -> torch.Tensor:
    return model(torch.randn(4, 8)).square().mean()


@pytest.mark.parametrize("paused_after", [0, 2, MICRO_STEPS])
@pytest.mark.parametrize("step_paused", [0, 3])
def test_an_evaluation_that_runs_backward(collector: Recorded, paused_after: int, step_paused: int) -> None:
    """Between two steps, or in the middle of one's micro-steps, with gradients of its own that it takes away again."""
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    probed = nn.Parameter(torch.ones(8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    read, losses = {}, {}

    def evaluate() -> None:
        watched.pause()
        model(probed * torch.randn(4, 8)).sum().backward(inputs=[probed])
        kept = [each.grad for each in model.parameters()]
        model.zero_grad()
        (100 * loss_of(model)).backward()
        for parameter, gradient in zip(model.parameters(), kept, strict=True):
            parameter.grad = gradient

    with gradcanary.watch(model, optimizer, url=collector.url, run="pause") as watched:
        for step in range(STEPS):
            losses[step] = 0.0
            for micro_step in range(MICRO_STEPS):
                if (step, micro_step) == (step_paused, paused_after):
                    evaluate()
                loss = loss_of(model)
                losses[step] += float(loss.detach())
                loss.backward()
            if (step, MICRO_STEPS) == (step_paused, paused_after):
                evaluate()
            read[step] = {name: float(each.grad.double().norm()) for name, each in model.named_parameters()}
            optimizer.step()
            optimizer.zero_grad()
    del losses[step_paused]
    assert collector.steps() == list(range(STEPS))
    assert collector.per_step("skipped") == [0] * STEPS
    assert collector.per_step("micro_steps") == [0 if step == step_paused else MICRO_STEPS for step in range(STEPS)]
    assert collector.stat("norm") == {step: pytest.approx(each, rel=1e-6) for step, each in read.items()}
    assert collector.metric("loss") == pytest.approx(losses, rel=1e-6)
    assert sorted(collector.metric("total_norm")) == sorted(losses)  # post_clip promises none
