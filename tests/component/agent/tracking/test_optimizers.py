"""Several optimizers in one training: each layer's numbers are those of its own optimizer's step.

The reference reads ``.grad`` in float64 right before each step.
"""

import pytest
import torch
from torch import nn

import gradcanary
from gradcanary.hooks import grad_scaler
from gradcanary.model import parameters
from gradcanary.tracking.optimizers import LEADS_AFTER
from support.agent.micro_gradients import launched
from support.agent.recorded import Recorded

EXACT = 1e-6
STEPS = 6


def norms(model: nn.Module, prefix: str = "") -> dict[str, float]:
    return {
        prefix + name: float(parameter.grad.double().square().sum().sqrt())
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def sent(collector: Recorded, prefix: str) -> dict[int, dict[str, float]]:
    """The norms of one model's layers by step, of steps in which they were measured."""
    found = {
        step: {name: value for name, value in values.items() if name.startswith(prefix) and value == value}
        for step, values in collector.stat("norm").items()
    }
    return {step: values for step, values in found.items() if values}


class Pair(nn.Module):
    """A generator and a discriminator."""

    def __init__(self, generator: int, discriminator: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.g = nn.Sequential(nn.Linear(4, generator), nn.Tanh(), nn.Linear(generator, 8))
        self.d = nn.Sequential(nn.Linear(8, discriminator), nn.Tanh(), nn.Linear(discriminator, 1))


@pytest.mark.loop(
    "several optimizers: a GAN, two of one backward pass",
    late="the first window where `watch()` was given nothing",
    k="right, the main optimizer's",
    caveat="steps are counted by the optimizer with most elements (while that one does not step, after 64 steps by "
    "another); what the others step between two of its steps belongs to the second; K and loss are its own",
)
@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("is_detached", [True, False], ids=["detached", "through"])
@pytest.mark.parametrize(("critics", "micro_steps"), [(1, 1), (3, 2)])
@pytest.mark.parametrize("leads", ["generator", "discriminator"])
def test_a_gan(
    collector: Recorded, leads: str, micro_steps: int, critics: int, is_detached: bool, set_to_none: bool
) -> None:
    """The optimizer of more elements leads; a step of the other one is recorded under the step that comes next."""
    pair = Pair(*((64, 16) if leads == "generator" else (16, 64)))
    of_g = torch.optim.Adam(pair.g.parameters(), lr=1e-3)
    of_d = torch.optim.SGD(pair.d.parameters(), lr=1e-2)
    read: dict[str, list[dict[str, float]]] = {"g": [], "d": []}
    with gradcanary.watch(pair, url=collector.url, run="gan"):
        for _ in range(STEPS):
            for _ in range(critics):
                of_d.zero_grad(set_to_none=set_to_none)
                for _ in range(micro_steps):
                    fake = pair.g(torch.randn(5, 4))
                    (
                        pair.d(fake.detach() if is_detached else fake).mean() - pair.d(torch.randn(5, 8)).mean()
                    ).backward()
                read["d"].append(norms(pair.d, "d."))
                of_d.step()
            of_g.zero_grad(set_to_none=set_to_none)
            for _ in range(micro_steps):
                pair.d(pair.g(torch.randn(5, 4))).mean().neg().backward()
            read["g"].append(norms(pair.g, "g."))
            of_g.step()
    main, other = ("g", "d") if leads == "generator" else ("d", "g")
    steps = range(len(read[main]))
    assert collector.steps() == list(steps)
    assert set(collector.per_step("skipped")) == {0}
    assert set(collector.per_step("micro_steps")) == {micro_steps}
    assert sent(collector, main) == {step: pytest.approx(read[main][step], rel=EXACT) for step in steps}
    if main == "g":
        expected = {step: read["d"][(step + 1) * critics - 1] for step in steps}
    else:
        expected = {
            number * critics: each for number, each in enumerate(read["g"], start=1) if number * critics in steps
        }
    assert sent(collector, other) == {step: pytest.approx(each, rel=EXACT) for step, each in expected.items()}
    states = collector.states()
    for step in steps:
        found = {state for name, state in states[step].items() if name.startswith(other)}
        assert found - {"zero"} == ({"measured"} if step in expected else {"partial"})
    assert collector.phases("absmax") == {"accumulated"}


@pytest.mark.loop("several optimizers: a GAN, two of one backward pass")
@pytest.mark.parametrize("is_watched", [True, False], ids=["model given", "found by themselves"])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_optimizers_of_one_backward(collector: Recorded, order: tuple[int, int], is_watched: bool) -> None:
    """As Muon for the matrices and AdamW for the rest; one clip takes all."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    matrices = [each for each in model.parameters() if each.ndim == 2]
    rest = [each for each in model.parameters() if each.ndim == 1]
    optimizers = [torch.optim.SGD(matrices, lr=0.1), torch.optim.AdamW(rest, lr=1e-3)]
    read, totals, losses = [], [], []
    with gradcanary.watch(*([model] if is_watched else []), url=collector.url, run="two"):
        for _ in range(STEPS):
            for _ in range(2):
                loss = model(torch.randn(8, 8)).square().mean()
                loss.backward()
                losses.append(float(loss.detach()))
            read.append(norms(model))
            totals.append(float(nn.utils.clip_grad_norm_(model.parameters(), 1e-3)))
            for number in order:
                optimizers[number].step()
            model.zero_grad()
    assert collector.steps() == list(range(STEPS))
    first = 0 if is_watched else 1  # before the first step nobody knew of the optimizers
    for step in range(first, STEPS):
        assert collector.stat("norm")[step] == pytest.approx(read[step], rel=EXACT), step
        assert collector.metric("total_norm")[step] == pytest.approx(totals[step], rel=1e-5)
        assert collector.metric("clip_factor")[step] == pytest.approx(1e-3 / totals[step], rel=1e-3)
        assert collector.metric("loss")[step] == pytest.approx(losses[2 * step] + losses[2 * step + 1])
        assert set(collector.states()[step].values()) == {"measured"}
    assert collector.facts("own_loss") == []


@pytest.mark.parametrize("critics", [1, 3])
@pytest.mark.parametrize("is_detached", [True, False], ids=["detached", "through"])
def test_parameters_whose_loss_is_not_recorded_are_reported(
    collector: Recorded, critics: int, *, is_detached: bool
) -> None:
    """Those of the smaller optimizer of a GAN."""
    pair = Pair(generator=64, discriminator=8)
    optimizers = torch.optim.Adam(pair.g.parameters()), torch.optim.Adam(pair.d.parameters())
    with gradcanary.watch(pair, url=collector.url, run="gan"):
        for _ in range(5 * STEPS):
            for _ in range(critics):
                fake = pair.g(torch.randn(8, 4))
                pair.d.zero_grad()
                (pair.d(fake.detach() if is_detached else fake).mean() - pair.d(torch.randn(8, 8)).mean()).backward()
                optimizers[1].step()
            pair.g.zero_grad()
            (-pair.d(pair.g(torch.randn(8, 4))).mean()).backward()
            optimizers[0].step()
    names = [f"d.{name}" for name, _ in pair.d.named_parameters()]
    # A pass that goes on through the generator is one of the main optimizer's, too.
    assert [fact["layers"] for fact in collector.facts("own_loss")] == ([names] if is_detached else [])


def test_an_optimizer_that_stops_says_nothing_more(collector: Recorded) -> None:
    pair = Pair(64, 16)
    of_g, of_d = torch.optim.SGD(pair.g.parameters(), lr=0.1), torch.optim.SGD(pair.d.parameters(), lr=0.1)
    with gradcanary.watch(pair, url=collector.url, run="stops"):
        for step in range(STEPS):
            pair.d(pair.g(torch.randn(5, 4))).mean().backward()
            if step < 3:
                of_d.step()
            of_g.step()
            pair.zero_grad()
    assert collector.steps() == list(range(STEPS))
    assert sorted(sent(collector, "g.")) == list(range(STEPS))
    assert sorted(sent(collector, "d.")) == [0, 1, 2]
    assert {state for name, state in collector.states()[5].items() if name.startswith("d.")} == {"partial"}


class Wrapper(torch.optim.Optimizer):
    """Shows the parameters of another optimizer and has it step, as Accelerate's does."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner

    @property
    def param_groups(self) -> list[dict[str, object]]:
        return self.inner.param_groups

    def step(self) -> None:
        self.inner.step()


@pytest.mark.parametrize("kind", ["wrapper", "left over"])
def test_an_optimizer_of_the_same_layers_that_never_steps_is_none(collector: Recorded, kind: str) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    if kind == "wrapper":
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        others = [Wrapper(inner), Wrapper(inner)]
        stepping: torch.optim.Optimizer = others[1]
    else:
        others = [torch.optim.SGD(model.parameters(), lr=0.1)]
        stepping = torch.optim.SGD(model.parameters(), lr=0.1)
    read = []
    with gradcanary.watch(model, url=collector.url, run="idle"):
        for _ in range(STEPS):
            model(torch.randn(2, 4)).square().mean().backward()
            read.append(norms(model))
            stepping.step()
            model.zero_grad()
    assert others
    assert collector.steps() == list(range(STEPS))
    assert collector.stat("norm") == {step: pytest.approx(each, rel=EXACT) for step, each in enumerate(read)}


def test_a_second_stage_with_a_new_optimizer_goes_on(collector: Recorded) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    stages = [torch.optim.Adam(model.parameters()), torch.optim.SGD(model.parameters(), lr=0.1)]
    read = []
    with gradcanary.watch(model, url=collector.url, run="stages"):
        for optimizer in stages:
            for _ in range(3):
                model(torch.randn(2, 4)).square().mean().backward()
                read.append(norms(model))
                optimizer.step()
                model.zero_grad()
    assert collector.stat("norm") == {step: pytest.approx(each, rel=EXACT) for step, each in enumerate(read)}


@pytest.mark.loop("several optimizers: a GAN, two of one backward pass")
def test_while_the_largest_waits_another_one_counts(collector: Recorded) -> None:
    """A discriminator is trained alone at first; the steps that nobody counted are none of the page's."""
    pair = Pair(64, 16)
    of_g, of_d = torch.optim.SGD(pair.g.parameters(), lr=0.1), torch.optim.SGD(pair.d.parameters(), lr=0.1)
    with gradcanary.watch(pair, url=collector.url, run="alone"):
        for _ in range(LEADS_AFTER + 10):
            pair.d(pair.g(torch.randn(5, 4)).detach()).square().mean().backward()
            of_d.step()
            pair.zero_grad()
        for _ in range(STEPS):
            pair.d(pair.g(torch.randn(5, 4))).square().mean().backward()
            of_d.step()
            of_g.step()
            pair.zero_grad()
    alone = list(range(LEADS_AFTER - 1, LEADS_AFTER + 10))
    both = list(range(alone[-1] + 1, alone[-1] + 1 + STEPS))
    assert collector.steps() == alone + both
    assert sorted(sent(collector, "d.")) == alone + both
    assert sorted(sent(collector, "g.")) == both


@pytest.mark.loop(
    "one optimizer per layer that steps inside backward",
    caveat="they come together in one step, one a backward pass; where `watch()` was given nothing, the first is lost",
)
@pytest.mark.parametrize("is_before", [True, False], ids=["watched before", "watched after"])
def test_an_optimizer_per_layer_that_steps_inside_backward(
    collector: Recorded, monkeypatch: pytest.MonkeyPatch, is_before: bool
) -> None:
    """Saves the memory of gradients: each is let go of as soon as its layer has stepped.

    All of them look for a GradScaler together: a pass over all objects is not made for each.
    """
    searches = []
    monkeypatch.setattr(
        grad_scaler, "live_objects", lambda kind: searches.append(kind) or parameters.live_objects(kind)
    )
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    read: list[dict[str, float]] = []
    losses: list[float] = []

    def step(parameter: nn.Parameter) -> None:
        read[-1][names[id(parameter)]] = float(parameter.grad.double().square().sum().sqrt())
        optimizers[parameter].step()
        parameter.grad = None

    watch = gradcanary.watch(url=collector.url, run="inside") if is_before else None
    optimizers = {parameter: torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()}
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    watch = watch or gradcanary.watch(model, url=collector.url, run="inside")
    with watch:
        for _ in range(STEPS):
            read.append({})
            loss = model(torch.randn(8, 8)).square().mean()
            losses.append(float(loss.detach()))
            loss.backward()
    seen = read[1:] if is_before else read
    assert collector.metric("loss") == pytest.approx(dict(enumerate(losses[1:] if is_before else losses)), rel=EXACT)
    assert collector.steps() == list(range(len(seen)))
    assert set(collector.per_step("micro_steps")) == {1}
    assert set(collector.per_step("skipped")) == {0}
    for step, norm in enumerate(seen):
        assert collector.stat("norm")[step] == pytest.approx(norm, rel=EXACT), step
    assert collector.phases("absmax") == {"accumulated"}
    assert len(searches) == 1


def step_inside(model: nn.Module) -> dict[nn.Parameter, torch.optim.Optimizer]:
    """Give each layer an optimizer that steps as soon as its gradient is there."""
    optimizers = {parameter: torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()}
    for parameter, optimizer in optimizers.items():
        parameter.register_post_accumulate_grad_hook(lambda _, optimizer=optimizer: optimizer.step())
    return optimizers


def test_a_layer_whose_gradient_comes_right_before_the_step_is_not_called_without_gradient(
    collector: Recorded,
) -> None:
    """The step comes in a hook of the script on the last layer, before the agent's hook on it is called."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    come: list[str] = []

    def arrive(parameter: nn.Parameter) -> None:
        come.append(names[id(parameter)])
        if len(come) % len(names) == 0:
            optimizer.step()
            optimizer.zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(arrive)
    with gradcanary.watch(model, optimizer, url=collector.url, run="late"):
        for _ in range(STEPS):
            model(torch.randn(8, 8)).square().mean().backward()
    assert collector.steps() == list(range(STEPS))
    for states in collector.states().values():
        assert states == {name: "partial" if name == come[-1] else "measured" for name in names.values()}


@pytest.mark.loop("one optimizer per layer that steps inside backward")
def test_a_session_that_waits_begins_after_the_first_pass_with_steps_in_it(collector: Recorded) -> None:
    """As under ``gradcanary run``; what Adam has counted says which step was the first one seen."""
    torch.manual_seed(0)
    model, read = nn.Linear(8, 4), []
    optimizers = {parameter: torch.optim.Adam([parameter]) for parameter in model.parameters()}
    for parameter, optimizer in optimizers.items():
        parameter.register_post_accumulate_grad_hook(lambda _, optimizer=optimizer: optimizer.step())
    with launched(collector.url):
        for _ in range(STEPS):
            model(torch.randn(8, 8)).square().mean().backward()
            read.append(norms(model))
            model.zero_grad()
    assert collector.steps() == list(range(1, STEPS))
    assert set(collector.per_step("micro_steps")) == {1}
    assert collector.stat("norm") == {step: pytest.approx(read[step], rel=EXACT) for step in range(1, STEPS)}


@pytest.mark.loop("one optimizer per layer that steps inside backward")
def test_optimizers_that_an_earlier_training_has_left_do_not_count(collector: Recorded) -> None:
    """They hold each other by their hooks, so that they live until the garbage collector finds them."""
    left = nn.Linear(64, 64)
    step_inside(left)
    torch.manual_seed(0)
    model = nn.ModuleDict({"used": nn.Linear(8, 4), "late": nn.Linear(8, 4)})
    with gradcanary.watch(url=collector.url, run="left"):
        kept = step_inside(model)
        for step in range(STEPS + 1):
            loss = sum(layer(torch.randn(8, 8)).square().mean() for layer in list(model.values())[: 1 + step // 4])
            loss.backward()
            model.zero_grad()
    assert len(kept) == 4
    assert collector.steps() == list(range(STEPS))
    assert set(collector.per_step("micro_steps")) == {1}
    measured = {
        step: {n for n, state in each.items() if state == "measured"} for step, each in collector.states().items()
    }
    assert measured[2] == {"used.weight", "used.bias"}
    assert measured[5] == {"used.weight", "used.bias", "late.weight", "late.bias"}
    assert collector.states()[2].keys() == measured[2]
    assert collector.states()[5].keys() == measured[5]


@pytest.mark.loop("several optimizers: a GAN, two of one backward pass")
@pytest.mark.parametrize("fused", [False, True])
def test_a_scaler_and_two_optimizers(collector: Recorded, fused: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    optimizers = [torch.optim.Adam(model[0].parameters(), fused=fused), torch.optim.Adam(model[2].parameters())]
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    read = []
    with gradcanary.watch(model, url=collector.url, run="scaled"):
        for _ in range(STEPS):
            scaler.scale(model(torch.randn(8, 8)).square().mean()).backward()
            read.append({name: value / scaler.get_scale() for name, value in norms(model).items()})
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()
            model.zero_grad()
    assert collector.steps() == list(range(STEPS))
    for step in range(STEPS):
        assert collector.stat("norm")[step] == pytest.approx(read[step], rel=EXACT), step
