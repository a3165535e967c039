"""Gradients that no part of the loop clears are reported by name; nothing of the kind in any loop that clears them."""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from itertools import pairwise

import pytest
import torch
from torch import nn

import gradcanary
from gradcanary.tracking.never_cleared import WINDOWS
from support.agent.recorded import Recorded

STEPS = 60

Train = Callable[[], None]


def network(*widths: int) -> nn.Sequential:
    layers = [nn.Linear(a, b) for a, b in pairwise(widths)]
    return nn.Sequential(*[part for layer in layers for part in (layer, nn.Tanh())][:-1])


def loss_of(model: nn.Module, width: int = 4) -> torch.Tensor:
    return model(torch.randn(5, width)).square().mean()


def reported(collector: Recorded) -> list[list[str]]:
    return [fact["layers"] for fact in collector.facts("never_cleared")]


def watched(collector: Recorded, step: Train, steps: int = STEPS) -> list[list[str]]:
    with gradcanary.watch(url=collector.url, run="cleared"):
        for _ in range(steps):
            step()
    return reported(collector)


# -- faults ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("micro_steps", [1, 3])
@pytest.mark.parametrize("clips", [True, False], ids=["clips", ""])
def test_a_loop_that_clears_nothing(collector: Recorded, micro_steps: int, *, clips: bool) -> None:
    torch.manual_seed(0)
    model = network(4, 8, 8, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def step() -> None:
        for _ in range(micro_steps):
            loss_of(model).backward()
        if clips:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    assert watched(collector, step) == [[]]
    assert set(collector.per_step("micro_steps")) == {micro_steps}


def test_the_model_that_is_not_cleared_is_named(collector: Recorded) -> None:
    one, other = network(4, 8, 4), nn.Linear(4, 2)
    optimizer = torch.optim.Adam([*one.parameters(), *other.parameters()], lr=1e-4)

    def step() -> None:
        loss_of(nn.Sequential(one, other)).backward()
        optimizer.step()
        one.zero_grad()

    (names,) = watched(collector, step)
    assert names == ["Linear.weight", "Linear.bias"]


def test_the_layers_of_all_optimizers_are_one_fact(collector: Recorded) -> None:
    one, other = network(4, 8, 4), nn.Linear(4, 2)
    optimizers = [torch.optim.SGD(model.parameters(), lr=1e-6) for model in (one, other)]

    def step() -> None:
        loss_of(nn.Sequential(one, other)).backward()
        for optimizer in optimizers:
            optimizer.step()

    assert watched(collector, step) == [[]]


def test_a_closure_that_clears_nothing(collector: Recorded) -> None:
    model = network(4, 8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)

    def closure() -> torch.Tensor:
        loss = loss_of(model)
        loss.backward()
        return loss

    assert watched(collector, lambda: optimizer.step(closure)) == [[]]  # type: ignore[arg-type]


def test_a_loop_that_stops_clearing_before_the_second_search(collector: Recorded) -> None:
    model = network(4, 8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    taken = 0

    def step() -> None:
        nonlocal taken
        taken += 1
        loss_of(model).backward()
        optimizer.step()
        if taken < 80:
            optimizer.zero_grad()

    assert watched(collector, step, steps=150) == [[]]


# -- healthy trainings -------------------------------------------------------------------------------------------------


def plain(*, to_none: bool, begins: bool) -> Train:
    model = network(4, 8, 8, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step() -> None:
        if begins:
            optimizer.zero_grad(set_to_none=to_none)
        loss_of(model).backward()
        if not begins:
            loss_of(model).backward()
        optimizer.step()
        if not begins:
            optimizer.zero_grad(set_to_none=to_none)

    return step


def by_hand(clear: Callable[[nn.Parameter], object]) -> Train:
    model = network(4, 8, 8, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step() -> None:
        loss_of(model).backward()
        optimizer.step()
        for parameter in model.parameters():
            clear(parameter)

    return step


def data_zero() -> Train:
    """Torch does not count such a write: the old way to clear gradients."""
    return by_hand(lambda parameter: parameter.grad.data.zero_())


def carried() -> Train:
    return by_hand(lambda parameter: parameter.grad.mul_(0.9))


def carried_uncounted() -> Train:
    return by_hand(lambda parameter: parameter.grad.data.mul_(0.9))


class Keeping(torch.optim.SGD):
    """Keeps a part of each gradient for the next step, in the gradient itself."""

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        super().step()
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad.mul_(0.5)


def kept_by_the_optimizer() -> Train:
    model = network(4, 8, 2)
    optimizer = Keeping(model.parameters(), lr=1e-3)

    def step() -> None:
        loss_of(model).backward()
        optimizer.step()

    return step


def clears_now_and_then() -> Train:
    """The first search ends late, and the second one has fewer windows than a whole row."""
    model = network(4, 8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    taken = 0

    def step() -> None:
        nonlocal taken
        taken += 1
        loss_of(model).backward()
        optimizer.step()
        if taken == 8 + WINDOWS or taken >= 110:
            optimizer.zero_grad()

    return step


def lbfgs() -> Train:
    model = network(4, 8, 2)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    x, y = torch.randn(16, 4), torch.randn(16, 2)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        return loss

    return lambda: optimizer.step(closure)  # type: ignore[arg-type,return-value]


def gan(*, to_none: bool) -> Train:
    """The generator's pass leaves gradients in the discriminator, which are cleared before its own."""
    generator, discriminator = network(4, 8, 8), network(8, 16, 1)
    of_g = torch.optim.Adam(generator.parameters(), lr=1e-3)
    of_d = torch.optim.Adam(discriminator.parameters(), lr=1e-3)

    def step() -> None:
        fake = generator(torch.randn(5, 4))
        of_d.zero_grad(set_to_none=to_none)
        (discriminator(fake.detach()).mean() - discriminator(torch.randn(5, 8)).mean()).backward()
        of_d.step()
        of_g.zero_grad(set_to_none=to_none)
        discriminator(fake).mean().neg().backward()
        of_g.step()

    return step


def gan_data_zero() -> Train:
    """As :func:`gan`, cleared by writes that torch does not count."""
    generator, discriminator = network(4, 8, 8), network(8, 16, 1)
    of_g = torch.optim.Adam(generator.parameters(), lr=1e-3)
    of_d = torch.optim.Adam(discriminator.parameters(), lr=1e-3)

    def clear(parameters: Iterable[nn.Parameter]) -> None:
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.data.zero_()

    def step() -> None:
        fake = generator(torch.randn(5, 4))
        clear(discriminator.parameters())
        (discriminator(fake.detach()).mean() - discriminator(torch.randn(5, 8)).mean()).backward()
        of_d.step()
        clear(generator.parameters())
        discriminator(fake).mean().neg().backward()
        of_g.step()

    return step


def two_optimizers() -> Train:
    one, other = network(4, 8, 4), network(4, 8, 2)
    optimizers = [torch.optim.SGD(model.parameters(), lr=1e-3) for model in (one, other)]
    taken = 0

    def step() -> None:
        nonlocal taken
        taken += 1
        loss_of(nn.Sequential(one, other)).backward()
        for number, optimizer in enumerate(optimizers):
            if taken % (1 + 2 * number) == 0:
                optimizer.step()
                optimizer.zero_grad()

    return step


def two_heads() -> Train:
    """A head that takes no part in most steps keeps its gradient, and is cleared before its next one."""
    body, heads = network(4, 8), [nn.Linear(8, 2), nn.Linear(8, 2)]
    optimizer = torch.optim.SGD([*body.parameters(), *heads[0].parameters(), *heads[1].parameters()], lr=1e-3)
    taken = 0

    def step() -> None:
        nonlocal taken
        taken += 1
        head = heads[taken % 4 == 0]
        body.zero_grad()
        head.zero_grad()
        loss_of(nn.Sequential(body, head)).backward()
        optimizer.step()

    return step


def optimizer_in_backward() -> Train:
    model = network(4, 8, 8, 2)
    optimizers = {each: torch.optim.SGD([each], lr=1e-3) for each in model.parameters()}

    def update(parameter: torch.Tensor) -> None:
        optimizer = optimizers[parameter]  # type: ignore[index]
        optimizer.step()
        optimizer.zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    return lambda: loss_of(model).backward()


def steps_in_one_batch() -> Train:
    """A step after each micro-step of a batch, and one clear for each batch."""
    model = network(4, 8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        for _ in range(8):
            loss_of(model).backward()
            optimizer.step()

    return step


def scaled() -> Train:
    """Each third step overflows and is skipped."""
    model = network(4, 8, 2)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=1e-3), torch.amp.GradScaler("cpu")
    taken = 0

    def step() -> None:
        nonlocal taken
        taken += 1
        optimizer.zero_grad(set_to_none=False)
        loss = loss_of(model) * (float("inf") if taken % 3 == 0 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def unscaled_sums() -> Train:
    """A scaler divides by 65,536 before each step what is left of the sum before."""
    model = network(4, 8, 2)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=1e-3), torch.amp.GradScaler("cpu")

    def step() -> None:
        scaler.scale(loss_of(model)).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def gradient_penalty() -> Train:
    model = network(4, 8, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        x = torch.randn(5, 4, requires_grad=True)
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        slope.square().sum().backward(retain_graph=True)
        loss_of(model).backward()
        optimizer.step()

    return step


def not_optimized() -> Train:
    """No optimizer holds the head: that it is never cleared is no second fault."""
    body, head = network(4, 8), nn.Linear(8, 2)
    optimizer = torch.optim.SGD(body.parameters(), lr=1e-3)

    def step() -> None:
        loss_of(nn.Sequential(body, head)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@pytest.mark.parametrize(
    "make",
    [
        *(lambda n=n, b=b: plain(to_none=n, begins=b) for n in (True, False) for b in (True, False)),
        data_zero,
        carried,
        carried_uncounted,
        kept_by_the_optimizer,
        clears_now_and_then,
        lbfgs,
        lambda: gan(to_none=True),
        lambda: gan(to_none=False),
        gan_data_zero,
        two_optimizers,
        two_heads,
        optimizer_in_backward,
        steps_in_one_batch,
        scaled,
        unscaled_sums,
        gradient_penalty,
        not_optimized,
    ],
)
def test_a_loop_that_clears_is_not_reported(collector: Recorded, make: Callable[[], Train]) -> None:
    torch.manual_seed(0)
    assert watched(collector, make(), steps=150) == []


# -- no harm -----------------------------------------------------------------------------------------------------------


def trained(url: str | None) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = network(4, 8, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with nullcontext() if url is None else gradcanary.watch(url=url, run="same"):
        for _ in range(STEPS):
            loss_of(model).backward()
            optimizer.step()
    return [each for parameter in model.parameters() for each in (parameter.detach(), parameter.grad)]


def test_the_training_stays_the_same(collector: Recorded) -> None:
    for watched_one, alone in zip(trained(collector.url), trained(None), strict=True):
        assert torch.equal(watched_one, alone)
    assert reported(collector) == [[]]
