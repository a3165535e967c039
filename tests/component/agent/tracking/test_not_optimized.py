"""Parameters that receive gradients and that no optimizer holds are reported by name; nothing of the kind elsewhere."""

import copy
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn import functional

import gradcanary
from gradcanary.tracking.not_optimized import NotOptimized
from support.agent.recorded import Recorded

STEPS = 60

Train = Callable[[], None]


def network(*widths: int) -> nn.Sequential:
    layers = [nn.Linear(a, b) for a, b in pairwise(widths)]
    return nn.Sequential(*[part for layer in layers for part in (layer, nn.Tanh())][:-1])


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = network(4, 8, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


def loss_of(model: nn.Module) -> torch.Tensor:
    return model(torch.randn(5, 4)).square().mean()


def reported(collector: Recorded) -> list[list[str]]:
    return [fact["layers"] for fact in collector.facts("not_optimized")]


def groups(collector: Recorded) -> dict[str, int | None]:
    """Return the group of each layer of the last layer set."""
    return {layer["name"]: layer["group"] for layer in list(collector.sets().values())[-1]}


# -- faults ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clears", ["model", "optimizer"])
@pytest.mark.parametrize("is_given", [True, False], ids=["model given", "nothing given"])
def test_a_head_that_was_replaced_after_the_optimizer_was_made(
    collector: Recorded, clears: str, *, is_given: bool
) -> None:
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model.head = nn.Linear(8, 3)
    with gradcanary.watch(*(model, optimizer) if is_given else (), url=collector.url, run="head"):
        for _ in range(STEPS):
            loss_of(model).backward()
            optimizer.step()
            (model if clears == "model" else optimizer).zero_grad()
    assert reported(collector) == [["head.weight", "head.bias"]]
    found = groups(collector)
    assert (found["head.weight"], found["head.bias"], found["body.0.weight"]) == (None, None, 0)
    assert set(collector.per_step("micro_steps")) == {1}
    if not is_given:
        assert collector.states()[STEPS - 1]["head.weight"] == "partial"


def gan(collector: Recorded, *, is_right: bool, steps: int = STEPS) -> None:
    generator, discriminator = network(4, 8, 8), network(8, 16, 1)
    of_d = torch.optim.Adam(discriminator.parameters(), lr=1e-3)
    of_g = torch.optim.Adam((generator if is_right else discriminator).parameters(), lr=1e-3)
    with gradcanary.watch(url=collector.url, run="gan"):
        for step in range(steps):
            fake = generator(torch.randn(5, 4))
            discriminator.zero_grad()
            (discriminator(fake.detach()).mean() - discriminator(torch.randn(5, 8)).mean()).backward()
            of_d.step()
            if step % 3 == 0:  # as a critic that steps more often
                discriminator.zero_grad()
                generator.zero_grad()
                discriminator(fake).mean().neg().backward()
                of_g.step()


def test_a_gan_whose_second_optimizer_holds_the_discriminator(collector: Recorded) -> None:
    gan(collector, is_right=False, steps=2 * STEPS)
    (names,) = reported(collector)
    assert len(names) == 4
    assert [name for name, group in groups(collector).items() if group is None] == names


def test_an_optimizer_that_comes_later_takes_them(collector: Recorded) -> None:
    model = Model()
    first = torch.optim.SGD(model.body.parameters(), lr=1e-3)
    with gradcanary.watch(url=collector.url, run="later"):
        for step in range(2 * STEPS):
            if step == STEPS:
                second = torch.optim.SGD(model.head.parameters(), lr=1e-3)
            loss_of(model).backward()
            first.step()
            if step >= STEPS:
                second.step()
            model.zero_grad()
    assert reported(collector) == [["head.weight", "head.bias"]]
    assert groups(collector)["head.weight"] == 1
    assert collector.states()[2 * STEPS - 1]["head.weight"] == "measured"


# -- healthy trainings -------------------------------------------------------------------------------------------------


def plain() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = Model()
    return model, torch.optim.SGD(model.parameters(), lr=1e-3)


def frozen_base() -> Train:
    model = Model()
    model.body.requires_grad_(False)
    optimizer = torch.optim.Adam(model.head.parameters(), lr=1e-3)

    def step() -> None:
        loss_of(model).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def tied_weights() -> Train:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh(), nn.Linear(4, 4, bias=False))
    model[2].weight = model[0].weight
    optimizer = torch.optim.Adam(model[2].parameters(), lr=1e-3)

    def step() -> None:
        loss_of(model).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def moving_average() -> Train:
    """The average is trainable by its flags, and no gradient reaches it."""
    model, optimizer = plain()
    teacher = copy.deepcopy(model)

    def step() -> None:
        x = torch.randn(5, 4)
        with torch.no_grad():
            target = teacher(x)
        functional.mse_loss(model(x), target + 1).backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for slow, fast in zip(teacher.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, 0.1)

    return step


def updated_by_hand() -> Train:
    model, optimizer = Model(), None
    optimizer = torch.optim.SGD(model.body.parameters(), lr=1e-3)

    def step() -> None:
        loss_of(model).backward()
        optimizer.step()
        for parameter in model.head.parameters():
            parameter.data -= 1e-2 * parameter.grad
        model.zero_grad()

    return step


def master_copies() -> Train:
    """A step of 1e-7 moves no bfloat16 weight, and the float32 copy of it."""
    model = Model().to(torch.bfloat16)
    masters = [parameter.detach().float() for parameter in model.parameters()]
    optimizer = torch.optim.Adam([nn.Parameter(each) for each in masters], lr=1e-7)

    def step() -> None:
        model(torch.randn(5, 4, dtype=torch.bfloat16)).square().mean().backward()
        held = optimizer.param_groups[0]["params"]
        for master, parameter in zip(held, model.parameters(), strict=True):
            master.grad = parameter.grad.float()
        optimizer.step()
        with torch.no_grad():
            for master, parameter in zip(held, model.parameters(), strict=True):
                parameter.copy_(master)
        model.zero_grad()

    return step


def some_master_copies() -> Train:
    """As Megatron's: float32 copies of the bfloat16 weights, and the float32 ones themselves, in one optimizer."""
    model = Model().to(torch.bfloat16)
    model.head.float()
    masters = [nn.Parameter(parameter.detach().float()) for parameter in model.body.parameters()]
    optimizer = torch.optim.Adam([*masters, *model.head.parameters()], lr=1e-7)

    def step() -> None:
        hidden = model.body(torch.randn(5, 4, dtype=torch.bfloat16))
        model.head(hidden.float()).square().mean().backward()
        for master, parameter in zip(masters, model.body.parameters(), strict=True):
            master.grad = parameter.grad.float()
        optimizer.step()
        model.zero_grad()

    return step


def analysed_model() -> Train:
    """Gradients of another model are looked at, in passes of their own."""
    model, optimizer = plain()
    other = Model()

    def step() -> None:
        loss_of(other).backward()
        loss_of(model).backward()
        optimizer.step()
        model.zero_grad()
        other.zero_grad()

    return step


def late_optimizer() -> Train:
    """Both optimizers exist; the head's begins to step at the 40th step."""
    model = Model()
    first = torch.optim.SGD(model.body.parameters(), lr=1e-3)
    second = torch.optim.SGD(model.head.parameters(), lr=1e-3)
    taken = 0

    def step() -> None:
        nonlocal taken
        taken += 1
        loss_of(model).backward()
        first.step()
        if taken > 40:
            second.step()
        model.zero_grad()

    return step


@pytest.mark.parametrize(
    "make",
    [
        frozen_base,
        tied_weights,
        moving_average,
        updated_by_hand,
        master_copies,
        some_master_copies,
        analysed_model,
        late_optimizer,
    ],
)
def test_a_healthy_training_is_not_reported(collector: Recorded, make: Callable[[], Train]) -> None:
    torch.manual_seed(0)
    step = make()
    with gradcanary.watch(url=collector.url, run="healthy"):
        for _ in range(2 * STEPS):
            step()
    assert reported(collector) == []


def test_a_gan_trained_right_is_not_reported(collector: Recorded) -> None:
    gan(collector, is_right=True, steps=2 * STEPS)
    assert reported(collector) == []


def test_a_loop_that_updates_by_hand_is_not_reported(collector: Recorded) -> None:
    model = Model()
    with gradcanary.watch(model, url=collector.url, run="by-hand") as watch:
        for _ in range(STEPS):
            loss_of(model).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 1e-2 * parameter.grad
            watch.step()
            model.zero_grad()
    assert reported(collector) == []


# -- no harm -----------------------------------------------------------------------------------------------------------


def test_a_search_that_fails_is_not_repeated_and_leaves_no_hook(
    collector: Recorded, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hooks = []

    def fail(search: NotOptimized, *_: object) -> None:
        hooks.extend(candidate.hook for candidate in search._candidates)
        raise RuntimeError("no elements")

    monkeypatch.setattr(NotOptimized, "_select", fail)
    model = Model()
    optimizer = torch.optim.Adam(model.body.parameters(), lr=1e-3)
    with gradcanary.watch(model, optimizer, url=collector.url, run="fails"):  # of no model of another test
        for _ in range(STEPS):
            loss_of(model).backward()
            optimizer.step()
            model.zero_grad()
        assert len(hooks) == 2
        assert not any(hook.is_registered_on(each) for hook in hooks for each in model.head.parameters())
    assert "gradcanary failed 1 time;" in capsys.readouterr().err


def trained(url: str | None) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.Adam(model.body.parameters(), lr=1e-3)
    watch = None if url is None else gradcanary.watch(url=url, run="same")
    for _ in range(STEPS):
        loss_of(model).backward()
        optimizer.step()
        model.zero_grad()
    if watch is not None:
        watch.close()
    assert all(not parameter._post_accumulate_grad_hooks for parameter in model.parameters())
    return [parameter.detach() for parameter in model.parameters()]


def test_the_training_stays_the_same_bit_for_bit_and_no_hook_is_left(collector: Recorded) -> None:
    watched, alone = trained(collector.url), trained(None)
    assert all(torch.equal(one, other) for one, other in zip(watched, alone, strict=True))
    assert reported(collector) == [["head.weight", "head.bias"]]
