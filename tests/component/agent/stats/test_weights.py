"""How far steps move the weights: update ratio and weight norm, against float64."""

import contextlib
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import gradcanary
from gradcanary.stats import sampler, weights
from support.agent.recorded import Recorded, recording
from support.agent.torch_loops import mlp

EXACT = 1e-6
FROM_SOME = 0.1
STEPS = 12
Numbers = dict[str, float]


@dataclass
class Reference:
    """Our own plain reading of a model's weights around each step, in float64."""

    model: nn.Module
    ratios: list[Numbers] = field(default_factory=list)
    norms: list[Numbers] = field(default_factory=list)

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        before = self._weights()
        yield
        after = self._weights()
        self.norms.append({name: float(weight.norm()) for name, weight in after.items()})
        self.ratios.append({name: float((after[name] - before[name]).norm()) / self.norms[-1][name] for name in after})

    def _weights(self) -> dict[str, torch.Tensor]:
        found = {name: each.detach().clone() for name, each in self.model.named_parameters()}
        return {
            name: (torch.view_as_real(each) if each.is_complex() else each).double() for name, each in found.items()
        }

    def assert_sent(self, collector: Recorded, skipped: frozenset[int] = frozenset()) -> None:
        """Two layers of each step, others from some elements, all of them sooner or later, as they were read."""
        ratios, norms = collector.stat("update_ratio"), collector.stat("weight_norm")
        assert sorted(ratios) == sorted(norms) == [step for step in collector.steps() if step not in skipped]
        for step, sent in ratios.items():
            at_least = min(weights.PER_STEP, len(self.ratios[step]))
            assert len(sent) >= at_least
            for found, known in ((sent, self.ratios[step]), (norms[step], self.norms[step])):
                assert found == pytest.approx({name: known[name] for name in sent}, rel=FROM_SOME, abs=0), step
                exact = [name for name in sent if found[name] == pytest.approx(known[name], rel=EXACT, abs=0)]
                assert len(exact) >= at_least
        assert {name for sent in ratios.values() for name in sent} == set(self.ratios[0])
        assert collector.phases("update_ratio") == collector.phases("weight_norm") == {None}


def loss_of(model: nn.Module) -> torch.Tensor:
    dtype = next(model.parameters()).dtype
    return model(torch.randn(8, 16, dtype=dtype)).float().square().mean()


def watching(collector: Recorded, *given: object, is_watched: bool = True) -> contextlib.AbstractContextManager:
    if not is_watched:
        return contextlib.nullcontext()
    return gradcanary.watch(*given, url=collector.url, run="weights")


def assert_identical(first: nn.Module, second: nn.Module) -> None:
    assert all(map(torch.equal, first.parameters(), second.parameters()))


OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.5),
    "foreach": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.5, foreach=True),
    "fused": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.5, fused=True),
    "tiny": lambda model: torch.optim.SGD(model.parameters(), lr=1e-6),
}


@pytest.mark.parametrize(("kind", "micro_steps"), [("sgd", 1), ("adamw", 4), ("foreach", 1), ("fused", 4), ("tiny", 1)])
def test_a_step_moves_the_weights_as_float64_says(collector: Recorded, kind: str, micro_steps: int) -> None:
    def train(*, is_watched: bool) -> Reference:
        reference = Reference(mlp())
        model = reference.model
        optimizer = OPTIMIZERS[kind](model)
        with watching(collector, model, optimizer, is_watched=is_watched):
            for _ in range(STEPS):
                for _ in range(micro_steps):
                    loss_of(model).backward()
                with reference.step():
                    optimizer.step()
                optimizer.zero_grad()
        return reference

    reference = train(is_watched=True)
    reference.assert_sent(collector)
    assert_identical(reference.model, train(is_watched=False).model)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.complex64])
def test_weights_of_other_dtypes(collector: Recorded, dtype: torch.dtype) -> None:
    """A change of low precision is no number of that precision; most bfloat16 weights do not move at all here."""
    torch.manual_seed(0)
    model = nn.ParameterDict({name: nn.Parameter(torch.randn(64, dtype=dtype)) for name in "abcd"})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    reference = Reference(model)
    with gradcanary.watch(model, optimizer, url=collector.url, run="dtypes"):
        for _ in range(STEPS):
            sum(each.abs().float().square().sum() for each in model.values()).backward()
            with reference.step():
                optimizer.step()
            optimizer.zero_grad()
    reference.assert_sent(collector)


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_a_scaler_skipped_says_nothing(collector: Recorded, fused: bool) -> None:
    model, overflows = mlp(), {1, 5}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**13)
    reference = Reference(model)
    with gradcanary.watch(model, optimizer, url=collector.url, run="scaler"):
        for step in range(STEPS):
            scaler.scale(loss_of(model) * (float("inf") if step in overflows else 1.0)).backward()
            with reference.step():
                scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert collector.per_step("skipped") == [int(step in overflows) for step in range(STEPS)]
    reference.assert_sent(collector, skipped=frozenset(overflows))


def test_several_optimizers_each_move_their_own(collector: Recorded) -> None:
    model = mlp()
    optimizers = [torch.optim.SGD(model[2].parameters(), lr=0.1), torch.optim.AdamW(model[0].parameters(), lr=1e-2)]
    reference = Reference(model)
    with gradcanary.watch(model, url=collector.url, run="several"):
        for _ in range(STEPS):
            loss_of(model).backward()
            with reference.step():
                for optimizer in optimizers:
                    optimizer.step()
            model.zero_grad()
    reference.assert_sent(collector)


def test_optimizer_per_layer_that_steps_inside_backward(collector: Recorded) -> None:
    model = mlp()
    optimizers = {parameter: torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()}

    def step(parameter: nn.Parameter) -> None:
        optimizers[parameter].step()
        parameter.grad = None

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    reference = Reference(model)
    with gradcanary.watch(model, url=collector.url, run="inside"):
        for _ in range(STEPS):
            loss = loss_of(model)
            with reference.step():
                loss.backward()
    reference.assert_sent(collector)


def test_a_closure_moves_the_weights_once_per_step(collector: Recorded) -> None:
    model, x = mlp(), torch.randn(8, 16)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    reference = Reference(model)
    with gradcanary.watch(model, optimizer, url=collector.url, run="closure"):
        for _ in range(STEPS):
            with reference.step():
                optimizer.step(closure)
    reference.assert_sent(collector)


def test_shared_frozen_and_idle_layers(collector: Recorded) -> None:
    """A shared weight is one layer; a frozen one is never copied; one without a gradient moves by exactly nothing."""
    torch.manual_seed(0)
    model = nn.ModuleDict({name: nn.Linear(4, 4, bias=False) for name in ("first", "second", "frozen", "idle")})
    model["second"].weight = model["first"].weight
    model["frozen"].requires_grad_(requires_grad=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    reference = Reference(model)
    with gradcanary.watch(model, optimizer, url=collector.url, run="shared"):
        for _ in range(STEPS):
            model["second"](model["frozen"](model["first"](torch.randn(2, 4)))).square().mean().backward()
            with reference.step():
                optimizer.step()
            optimizer.zero_grad()
    sent = collector.stat("update_ratio")
    assert {name for each in sent.values() for name in each} == {"first.weight", "idle.weight"}
    for step, each in sent.items():
        assert each == pytest.approx({name: reference.ratios[step][name] for name in each}, rel=EXACT)
    assert {each["idle.weight"] for each in sent.values() if "idle.weight" in each} == {0.0}


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_update_ratio_outside_the_range_of_float32_squares(collector: Recorded, size: float) -> None:
    """And what was exactly zero before its first step: all of it is new, ratio 1."""
    model = nn.ParameterDict({"weight": nn.Parameter(torch.zeros(64))})
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    reference = Reference(model)
    with gradcanary.watch(model, optimizer, url=collector.url, run="extreme"):
        for _ in range(3):
            model["weight"].backward(torch.linspace(0.5, 1.0, 64) * size)
            with reference.step():
                optimizer.step()
            optimizer.zero_grad()
    reference.assert_sent(collector)
    assert collector.stat("update_ratio")[0] == {"weight": pytest.approx(1.0)}


def test_weights_that_are_no_numbers_any_more_are_left_out(collector: Recorded) -> None:
    model = nn.ParameterDict({"weight": nn.Parameter(torch.ones(4))})
    optimizer = torch.optim.SGD(model.parameters(), lr=float("inf"))
    with gradcanary.watch(model, optimizer, url=collector.url, run="gone"):
        for _ in range(2):
            model["weight"].backward(torch.ones(4))
            optimizer.step()
            optimizer.zero_grad()
    assert collector.steps() == [0, 1]
    assert collector.stat("update_ratio") == collector.stat("weight_norm") == {}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.complex64])
@pytest.mark.parametrize("transposed", [False, True])
def test_large_layers_are_estimated_from_some_elements(
    collector: Recorded, dtype: torch.dtype, *, transposed: bool
) -> None:
    """Not more of them are copied: a matrix of 4,096 x 11,008 has an update ratio, too."""
    torch.manual_seed(0)
    weight = torch.randn(700, 500, dtype=dtype)
    model = nn.ParameterDict({"weight": nn.Parameter(weight.t() if transposed else weight)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    reference = Reference(model)
    with gradcanary.watch(model, optimizer, url=collector.url, run="large"):
        for _ in range(3):
            model["weight"].backward(torch.randn(700, 500, dtype=dtype).view(model["weight"].shape))
            with reference.step():
                optimizer.step()
            optimizer.zero_grad()
    for step in range(3):
        ratio, norm = collector.stat("update_ratio")[step], collector.stat("weight_norm")[step]
        assert ratio["weight"] == pytest.approx(reference.ratios[step]["weight"], rel=0.02)
        assert norm["weight"] == pytest.approx(reference.norms[step]["weight"], rel=0.02)
        assert ratio["weight"] != pytest.approx(reference.ratios[step]["weight"], rel=EXACT)


def test_a_large_layer_with_holes_in_memory_is_left_out(collector: Recorded) -> None:
    """Its elements could be taken from a copy of all of them only."""
    model = nn.ParameterDict({"weight": nn.Parameter(torch.randn(700, 600)[:, :500])})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradcanary.watch(model, optimizer, url=collector.url, run="large"):
        for _ in range(3):
            model["weight"].square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert collector.steps() == [0, 1, 2]
    assert collector.stat("update_ratio") == {}


def test_a_closure_runs_without_copies(collector: Recorded) -> None:
    """They would make the peak of its memory higher: they are made when its backward pass has ended."""
    size, seen = 1237, []
    model = nn.ParameterDict({"weight": nn.Parameter(torch.ones(size))})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model["weight"].square().sum()
        seen.append(sum(type(each) is torch.Tensor and each.shape == (size,) for each in gc.get_objects()))
        loss.backward()
        return loss

    reference = Reference(model)
    with gradcanary.watch(model, optimizer, url=collector.url, run="peak"):
        for _ in range(3):
            with reference.step():
                optimizer.step(closure)
    before = 1  # the reference's own
    assert seen == [before] * 3
    reference.assert_sent(collector)


class Offloading(torch.optim.Optimizer):
    """Keeps its weights somewhere else between steps, like one that offloads them to another device."""

    def step(self) -> None:
        for group in self.param_groups:
            for each in group["params"]:
                self.state[each]["away"] = each.data - group["lr"] * each.grad
                each.data = each.data[:0].clone()

    def bring(self) -> None:
        for each, state in self.state.items():
            each.data = state.pop("away")


def test_weights_that_a_step_takes_away_are_left_out(collector: Recorded, caplog: pytest.LogCaptureFixture) -> None:
    model = mlp()
    optimizer = Offloading(model.parameters(), {"lr": 0.1})
    with gradcanary.watch(model, optimizer, url=collector.url, run="offloaded"):
        for _ in range(STEPS):
            loss_of(model).backward()
            optimizer.step()
            optimizer.bring()
            optimizer.zero_grad()
    assert collector.steps() == list(range(STEPS))
    assert collector.per_step("micro_steps") == [1] * STEPS
    assert collector.stat("update_ratio") == {}
    assert not caplog.records


def test_a_comparison_that_fails_costs_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> dict[int, torch.Tensor]:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(sampler, "update_norms", failing)
    with recording() as collector:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with watching(collector, model, optimizer):
            for _ in range(4):
                for _ in range(2):
                    loss_of(model).backward()
                optimizer.step()
                optimizer.zero_grad()
    assert collector.steps() == [0, 1, 2, 3]
    assert collector.per_step("micro_steps") == [2] * 4
    assert collector.per_step("skipped") == [0] * 4
    assert sorted(collector.metric("step_time_s")) == [1, 2, 3]


class Failing(torch.optim.SGD):
    """Changes the weights, and runs out of memory before it is done."""

    has_failed = False

    def step(self, closure: Callable[[], torch.Tensor]) -> None:
        closure()
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter += 1.0
        if not self.has_failed:
            self.has_failed = True
            raise RuntimeError("out of memory")


def test_a_step_that_is_tried_again_is_compared_with_its_second_beginning(collector: Recorded) -> None:
    reference = Reference(mlp())
    optimizer = Failing(reference.model.parameters(), lr=0.1)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(reference.model)
        loss.backward()
        return loss

    with watching(collector, reference.model, optimizer):
        with pytest.raises(RuntimeError):
            optimizer.step(closure)
        for _ in range(STEPS):
            with reference.step():
                optimizer.step(closure)
    reference.assert_sent(collector)


@given(layers=st.integers(1, 3000), interval=st.sampled_from([1, 10, 100, 1000]), start=st.integers(0, 2**31))
def test_every_layer_has_its_turn(layers: int, interval: int, start: int) -> None:
    """Within three rounds, however the steps are sampled; where there are a few layers, within a few samples more."""
    rounds = -(-layers // weights.PER_STEP)
    first = start // interval * interval
    turns = [weights.layers_of_step(first + interval * number, layers) for number in range(3 * rounds + 8)]
    assert {layer for turn in turns for layer in turn} == set(range(layers))
    assert all(1 <= len(turn) <= weights.PER_STEP for turn in turns)
