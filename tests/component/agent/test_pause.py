"""``Watch.pause()``: what happens meanwhile leaves no number behind, and what comes after it is right or not there."""

from collections.abc import Iterable

import pytest
import torch
from torch import nn

import gradcanary
from gradcanary import api
from support.agent.recorded import Recorded

STEPS, MICRO_STEPS = 6, 4


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


class ByHand:
    """A model that is trained without an optimizer, and what was in its gradients at each update."""

    def __init__(self, set_to_none: bool) -> None:
        torch.manual_seed(0)
        self.model, self.set_to_none = nn.Linear(8, 4), set_to_none
        self.read: list[dict[str, float]] = []

    def clear(self) -> None:
        self.model.zero_grad(set_to_none=self.set_to_none)

    def update(self) -> None:
        self.read.append({name: float(each.grad.double().norm()) for name, each in self.model.named_parameters()})
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter -= 0.1 * parameter.grad

    def sent(self, steps: Iterable[int]) -> dict[int, object]:
        return {step: pytest.approx(self.read[step], rel=1e-6) for step in steps}


@pytest.mark.loop("updates by hand, without an optimizer")
@pytest.mark.parametrize("evaluations", [1, 2])
@pytest.mark.parametrize("paused_after", [0, 2, MICRO_STEPS])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_without_an_optimizer_a_pause_ends_with_the_step_by_hand(
    collector: Recorded, set_to_none: bool, paused_after: int, evaluations: int
) -> None:
    """Each evaluation is announced, and has gradients of its own that it takes away again."""
    by_hand, losses = ByHand(set_to_none), {}

    def evaluate() -> None:
        kept = [each.grad for each in by_hand.model.parameters()]
        for _ in range(evaluations):
            watched.pause()
            by_hand.model.zero_grad()
            (100 * loss_of(by_hand.model)).backward()
        for parameter, gradient in zip(by_hand.model.parameters(), kept, strict=True):
            parameter.grad = gradient

    with gradcanary.watch(by_hand.model, url=collector.url, run="hand") as watched:
        for step in range(STEPS):
            losses[step] = 0.0
            for micro_step in range(MICRO_STEPS + 1):
                if (step, micro_step) == (3, paused_after):
                    evaluate()
                if micro_step < MICRO_STEPS:
                    loss = loss_of(by_hand.model)
                    losses[step] += float(loss.detach())
                    loss.backward()
            by_hand.update()
            gradcanary.step()
            by_hand.clear()
    seen = [step for step in range(STEPS) if step != 3]
    assert collector.steps() == list(range(STEPS))
    assert collector.per_step("skipped") == [0] * STEPS
    assert collector.per_step("micro_steps") == [MICRO_STEPS * (step in seen) for step in range(STEPS)]
    assert {step: collector.stat("norm")[step] for step in seen} == by_hand.sent(seen)
    assert collector.metric("loss") == pytest.approx({step: losses[step] for step in seen}, rel=1e-6)
    assert set(collector.states()[3].values()) == {"partial"}


@pytest.mark.loop("sums in tensors of the script's own")
@pytest.mark.parametrize("has_passes", [True, False])
def test_without_an_optimizer_a_pause_ends_with_the_step_of_the_sums(collector: Recorded, has_passes: bool) -> None:
    model, totals = nn.Linear(8, 4), []
    parameters = dict(model.named_parameters())

    def add(sums: dict[str, torch.Tensor]) -> None:
        if has_passes:
            loss_of(model).backward()
            gradients = [parameter.grad for parameter in parameters.values()]
        else:
            gradients = torch.autograd.grad(loss_of(model), list(parameters.values()))
        for name, gradient in zip(parameters, gradients, strict=True):
            sums[name] = sums.get(name, 0) + gradient
        model.zero_grad()

    with gradcanary.watch(model, url=collector.url, run="sums") as watched:
        for name, parameter in parameters.items():
            watched.observe_accumulator(name, torch.zeros_like(parameter))
        for step in range(STEPS):
            if step == 3:
                watched.pause()
                add({})
            sums: dict[str, torch.Tensor] = {}
            for _ in range(MICRO_STEPS):
                add(sums)
            for name, each in sums.items():
                watched.observe_accumulator(name, each)
            totals.append({name: float(each.double().norm()) for name, each in sums.items()})
            watched.step()
    seen = [step for step in range(STEPS) if step != 3]
    assert collector.steps() == list(range(STEPS))
    assert {step: collector.stat("norm")[step] for step in seen} == {
        step: pytest.approx(totals[step], rel=1e-6) for step in seen
    }
    assert set(collector.states()[3].values()) == {"partial"}
    assert collector.per_step("micro_steps") == [MICRO_STEPS * (has_passes and step != 3) for step in range(STEPS)]


@pytest.mark.parametrize("paused_after", [0, 2])
@pytest.mark.parametrize("first", [0, 1])
def test_a_pause_in_the_micro_steps_of_two_optimizers(collector: Recorded, first: int, paused_after: int) -> None:
    """What was complete before keeps its numbers; whichever steps first, no part is taken for a whole."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4))
    optimizers = [torch.optim.SGD(model[layer].parameters(), lr=0.1) for layer in (0, 1)]
    losses, read = {}, {}
    with gradcanary.watch(model, url=collector.url, run="two") as watched:
        for step in range(STEPS):
            losses[step] = 0.0
            for micro_step in range(MICRO_STEPS):
                if (step, micro_step) == (3, paused_after):
                    watched.pause()
                loss = loss_of(model)
                losses[step] += float(loss.detach())
                loss.backward()
            read[step] = {name: float(each.grad.double().norm()) for name, each in model.named_parameters()}
            for optimizer in (optimizers[first], optimizers[1 - first]):
                optimizer.step()
            model.zero_grad()
    del losses[3]
    assert collector.per_step("micro_steps") == [0 if step == 3 else MICRO_STEPS for step in range(STEPS)]
    assert collector.metric("loss") == pytest.approx(losses, rel=1e-6)
    for step, sent in collector.stat("norm").items():
        measured = {name: value for name, value in sent.items() if value == value}  # nobody knows whose pass it was
        assert measured == {name: pytest.approx(read[step][name], rel=1e-6) for name in measured}
        assert measured.keys() == read[step].keys() or (step == 3 and "0.weight" in measured)


@pytest.mark.parametrize("first", [0, 1])
def test_a_pause_between_the_steps_of_two_optimizers(collector: Recorded, first: int) -> None:
    """As in a GAN: the window that has its step and waits to be closed loses nothing."""
    torch.manual_seed(0)
    models = nn.ModuleList([nn.Linear(8, 16), nn.Linear(8, 4)])
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    losses = {}
    with gradcanary.watch(models, url=collector.url, run="gan") as watched:
        for step in range(STEPS):
            for number in (first, 1 - first):
                if (step, number) == (3, 1):
                    watched.pause()
                    loss_of(models[1]).backward()
                    models.zero_grad()
                loss = loss_of(models[number])
                loss.backward()
                if number == 0:
                    losses[step] = float(loss.detach())
                optimizers[number].step()
                models.zero_grad()
    unknown = 4 if first == 0 else None  # the main one's window that was not open meanwhile, but may have begun
    assert collector.steps() == list(range(STEPS))
    kept = {step: loss for step, loss in losses.items() if collector.per_step("micro_steps")[step]}
    assert collector.metric("loss") == pytest.approx(kept, rel=1e-6)
    assert set(losses) - set(kept) <= {unknown, 3}
    assert 3 in kept or first == 1
    assert all("0.weight" in values for values in collector.stat("norm").values())


@pytest.mark.loop("`torch.compile` of `optimizer.step`, or of a function with it")
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning")
@pytest.mark.parametrize("paused_after", [0, 2])
def test_a_pause_ends_with_a_compiled_step(
    collector: Recorded, capsys: pytest.CaptureFixture[str], paused_after: int
) -> None:
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch._dynamo.reset()
    step_ = torch.compile(optimizer.step, backend="eager")
    with gradcanary.watch(model, optimizer, url=collector.url, run="compiled") as watched:
        for step in range(STEPS):
            for micro_step in range(MICRO_STEPS):
                if (step, micro_step) == (3, paused_after):
                    watched.pause()
                loss_of(model).backward()
            step_()
            optimizer.zero_grad()
    capsys.readouterr()
    assert [step for step in collector.steps() if step != 3] == [0, 1, 2, 4, 5]
    counts = dict(zip(collector.steps(), collector.per_step("micro_steps"), strict=True))
    assert counts.pop(3, 0) == 0
    assert set(counts.values()) == {MICRO_STEPS}
    assert sorted(collector.metric("loss")) == [0, 1, 2, 4, 5]


def test_a_pause_before_the_first_step_of_a_process_that_waits_is_kept(
    monkeypatch: pytest.MonkeyPatch, collector: Recorded
) -> None:
    monkeypatch.setenv("GRADCANARY_URL", collector.url)
    api.watch_when_training()
    (watch,) = api.open_watches()
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch:
        for step in range(2):
            for _ in range(2):
                loss_of(model).backward()
                if step == 0:
                    watch.pause()
            optimizer.step()
            optimizer.zero_grad()
    assert collector.per_step("micro_steps") == [0, 2]
    assert sorted(collector.metric("loss")) == [1]
