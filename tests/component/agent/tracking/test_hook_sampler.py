"""Hooks that rest between samples: what is measured and told stays right, and nothing of it is seen outside."""

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import gradcanary
from gradcanary.tracking.hook_sampler import HookSampler
from gradcanary.tracking.overhead import IntervalPolicy, Measurement
from support.agent.recorded import Recorded
from support.agent.scripted import until
from support.agent.torch_loops import assert_identical, reading, watching
from support.collectors import Collector

STEPS, EVERY = 121, 10
SKIPPED = {29, 47, 48, 49, 69}
"""Steps that the loop does not make: before a sample, more than one before a sample, and before another."""


@pytest.fixture(autouse=True)
def restful(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first step on each tenth is sampled, and hooks rest once fifteen windows were seen."""
    monkeypatch.setattr("gradcanary.tracking.overhead.GRACE_STEPS", 0)
    monkeypatch.setattr("gradcanary.tracking.overhead.LOOK_STEPS", 1)
    monkeypatch.setattr(Measurement, "is_complete", lambda *_: True)
    monkeypatch.setattr("gradcanary.tracking.overhead.next_policy", lambda *_: IntervalPolicy(EVERY))
    for name, value in {"LEARNED_AFTER": 15, "SPREAD": 2}.items():
        monkeypatch.setattr(f"gradcanary.tracking.hook_sampler.{name}", value)


class Routed(nn.Module):
    """Layers that are added to what comes in, those of them that are asked for."""

    def __init__(self, layers: int = 12) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(layers))

    def forward(self, inputs: Tensor, without: set[int]) -> Tensor:
        for number, layer in enumerate(self.layers):
            if number not in without:
                inputs = inputs + 0.1 * layer(inputs)
        return inputs


def routed(step: int) -> set[int]:
    """Layer 5 has a gradient in each seventh step, layer 8 none from step 41 to 75 and in those after 77, layer 3 none
    in 60 to 64."""
    return (
        ({5} if step % 7 != 3 else set())
        | ({8} if step in range(41, 75) or step > 76 else set())
        | ({3} if step in range(60, 65) else set())
    )


def at_rest(model: nn.Module) -> set[str]:
    """Return the layers whose hooks are at rest: one and the same is on several."""
    hooks = {n: {*map(id, (p._post_accumulate_grad_hooks or {}).values())} for n, p in model.named_parameters()}
    times = Counter(each for of in hooks.values() for each in of)
    return {name for name, of in hooks.items() if any(times[each] > 1 for each in of)}


def assert_sent(collector: Recorded, read: list, sampled: range) -> None:
    """Compare what was sent of each layer that had a gradient with what was read."""
    for position, stat in enumerate(("absmax", "norm")):
        sent = {step: {n: v for n, v in of.items() if v == v} for step, of in collector.stat(stat).items()}
        assert sent == {step: pytest.approx(read[step][position], rel=1e-6, abs=0) for step in sampled}


def train(model: Routed, between: Callable[[int], None] = lambda _: None, steps: int = STEPS) -> list:
    optimizer, read = torch.optim.SGD(model.parameters(), lr=0.05), []
    for step in range(steps):
        optimizer.zero_grad()
        for _ in range(2):
            model(torch.randn(8, 4), routed(step)).square().mean().backward()
        read.append(reading(model))
        if step not in SKIPPED:
            optimizer.step()
        between(step)
    return read


def test_numbers_are_right_and_no_bit_changes(collector: Recorded) -> None:
    resting: list[set[str]] = []

    def run(*, is_watched: bool) -> tuple[nn.Module, list]:
        model = Routed()
        with watching(collector, model, is_watched=is_watched):
            return model, train(model, lambda _: resting.append(at_rest(model)) if is_watched else None)

    (watched, read), (bare, _) = run(is_watched=True), run(is_watched=False)
    assert_identical(watched, bare)
    sampled = range(0, STEPS, EVERY)
    assert collector.steps() == [*sampled]
    assert (set(collector.per_step("micro_steps")), collector.phases("absmax")) == ({2}, {"accumulated"})
    assert [*collector.metric("loss")] == [*range(STEPS)]
    assert_sent(collector, read, sampled)
    assert resting[:14] == [set()] * 14
    awake = {step for step in range(15, STEPS) if not resting[step]}
    assert awake == {*range(19, STEPS, EVERY)} - SKIPPED  # where no step came before a sample, that woke them itself
    assert min(len(resting[step]) for step in (22, 35, 55, 66, 98)) > len([*watched.parameters()]) / 2
    assert {"layers.11.weight", "layers.11.bias"} - resting[22]  # one of them begins each pass


def test_no_gradient_is_said_only_of_layers_whose_hooks_were_called(collector: Recorded) -> None:
    """The first sample of a layer that had a gradient in every window before tells nothing of those in between."""
    model = Routed()
    with watching(collector, model, is_watched=True):
        train(model)
    states = collector.states()

    def state(layer: int, step: int) -> str:
        (found,) = {states[step][f"layers.{layer}.{kind}"] for kind in ("weight", "bias")}
        return found

    others = {state for of in states.values() for name, state in of.items() if name.split(".")[1] not in "358"}
    assert others == {"measured"}
    known = {step for step in range(STEPS) if step % 7 == 3}
    for step in range(10, STEPS, EVERY):
        assert state(5, step) == ("measured" if step in known else "partial")
    assert [state(8, step) for step in (40, 50, 60, 70, 80, 90, 100)] == [
        *("measured", "partial", "no_gradient", "no_gradient"),  # gone since step 41: its hook was at rest until 50
        *("partial", "no_gradient", "no_gradient"),  # was there in 75 and 76: from its first lapse on it is awake
    ]
    assert [state(3, step) for step in (50, 60, 70)] == ["measured", "partial", "measured"]


def test_a_layer_that_vanishes_is_found_and_one_that_is_routed_is_not(module_collector: Collector) -> None:
    torch.manual_seed(0)
    model, vanished_at = Routed(6), 525
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with gradcanary.watch(model, optimizer, url=module_collector.url, run="vanishes") as watch:
        for step in range(vanished_at + 80):
            optimizer.zero_grad()
            without = ({1} if step % 7 != 3 else set()) | ({2} if step >= vanished_at else set())
            model(torch.randn(8, 4), without).square().mean().backward()
            optimizer.step()
            if step == vanished_at:
                assert at_rest(model)
        until(lambda: watch.incidents)
    (incident,) = module_collector.get("/api/v1/incidents", run="vanishes").json()["incidents"]
    found = module_collector.get(f"/api/v1/incidents/{incident['id']}").json()
    assert (incident["rule"], {layer["name"] for layer in found["layers"]}) == (
        "vanished",
        {"layers.2.weight", "layers.2.bias"},
    )
    assert {layer["since_step"] for layer in found["layers"]} == {vanished_at + 15}  # the first sample that tells


def test_hooks_added_meanwhile_are_called_and_stay(collector: Recorded) -> None:
    model, called = Routed(), []
    layer = model.layers[1].weight

    def hook_at(step: int) -> None:
        if step == 24:
            assert at_rest(model)
            layer.register_post_accumulate_grad_hook(lambda each: called.append(float(each.grad.norm())))

    watch = gradcanary.watch(model, url=collector.url, run="loop")
    read = train(model, hook_at, steps=36)
    assert at_rest(model)
    watch.close()
    assert len(called) == 2 * 11
    assert called[1::2] == pytest.approx([each[1]["layers.1.weight"] for each in read[25:]])
    assert {name for name, each in model.named_parameters() if each._post_accumulate_grad_hooks} == {"layers.1.weight"}
    assert len(layer._post_accumulate_grad_hooks) == 1


def test_a_model_is_swapped_while_hooks_rest(collector: Recorded) -> None:
    torch.__future__.set_swap_module_params_on_conversion(value=True)
    model = Routed()

    def move(step: int) -> None:
        if step == 24:
            assert at_rest(model)
            model.to(torch.bfloat16).to(torch.float32)

    with watching(collector, model, is_watched=True):
        read = train(model, move, steps=51)
    torch.__future__.set_swap_module_params_on_conversion(value=False)
    assert_sent(collector, read, range(0, 51, EVERY))
    assert set(collector.per_step("micro_steps")) == {2}


def test_all_hooks_are_enabled_if_no_enabled_one_is_called(collector: Recorded) -> None:
    """From one step on other layers are trained than those that began passes; and then a step is skipped."""
    torch.manual_seed(0)
    model = nn.ModuleDict({name: nn.Sequential(*(nn.Linear(4, 4) for _ in range(6))) for name in "ab"})
    optimizer, read = torch.optim.SGD(model.parameters(), lr=0.05), []
    with watching(collector, model, is_watched=True):
        for step in range(51):
            optimizer.zero_grad()
            both = model["a"](torch.randn(8, 4)) + model["b"](torch.randn(8, 4))
            (both if step < 25 else model["a"][2:](torch.randn(8, 4))[:, 1:]).square().mean().backward()
            read.append(reading(model))
            if step != 27:
                optimizer.step()
    assert_sent(collector, read, range(0, 51, EVERY))
    assert collector.per_step("micro_steps") == [1] * 6
    assert [*collector.metric("loss")] == [*range(51)]


def test_window_lost_after_a_sample_is_unknown(collector: Recorded) -> None:
    """It trained other layers than those whose hooks were awake; at the next sample these have no gradient."""
    torch.manual_seed(0)
    model = nn.ModuleDict({name: nn.Sequential(*(nn.Linear(4, 4) for _ in range(6))) for name in "ab"})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with watching(collector, model, is_watched=True):
        for step in range(41):
            optimizer.zero_grad()
            outputs = model["b"](torch.randn(8, 4))
            if step <= 20:
                outputs = outputs + model["a"](torch.randn(8, 4))
            (model["a"][1:5](torch.randn(8, 4)) if step == 21 else outputs).square().mean().backward()
            optimizer.step()
    states = collector.states()
    assert [states[step]["a.3.weight"] for step in (20, 30, 40)] == ["measured", "partial", "no_gradient"]
    assert {states[step]["b.3.weight"] for step in (20, 30, 40)} == {"measured"}


def test_clearing_of_gradients_is_learned_without_a_sample(collector: Recorded) -> None:
    model = Routed(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with watching(collector, model, optimizer, is_watched=True, every=1000, step=1):
        for step in range(1, 13):
            optimizer.zero_grad(set_to_none=False)
            for _ in range(2):
                model(torch.randn(8, 4), set()).square().mean().backward()
            if step not in (4, 5, 9):
                optimizer.step()
    assert collector.steps() == []
    assert [*collector.metric("loss")] == [*range(1, 13)]


def test_always_enabled_hooks() -> None:
    sampler = HookSampler(10)
    sampler.always.add(9)
    for _ in range(14):
        sampler.observe([1] * 10, was_sampled=True)
    assert sampler.disable([1] * 10) == ()
    sampler.observe([1, 1, 0, 1, 1, 1, 2, 1, 1, 1], was_sampled=True)
    # 0 and 5 are spread over all, 2 had none once, 9 begins passes, and 3 had none just now
    assert sampler.disable([1, 1, 1, 0, 1, 1, 1, 1, 1, 1]) == [1, 4, 6, 7, 8]
    sampler.observe([0] * 10, was_sampled=False)
    assert sampler.enabled() == [0, 2, 3, 5, 9]
    sampler.enable()
    assert (sampler.enabled(), sampler.unknown) == ([*range(10)], {1, 4, 6, 7, 8})
    sampler.sampled()
    assert sampler.unknown == set()


def test_weight_of_a_timed_hook() -> None:
    sampler = HookSampler(64)
    assert sampler.weight_of_timed_hook == 16
    for _ in range(15):
        sampler.observe([1] * 64, was_sampled=True)
    enabled = 64 - len(sampler.disable([1] * 64))
    assert sampler.weight_of_timed_hook == enabled / sum(not at % 16 for at in sampler.enabled())


@pytest.mark.parametrize(("layers", "enabled"), [(1, 1), (10, 2), (64, 10), (148, 17), (5000, 16)])
def test_most_hooks_of_few_layers_may_be_disabled(monkeypatch: pytest.MonkeyPatch, layers: int, enabled: int) -> None:
    monkeypatch.setattr("gradcanary.tracking.hook_sampler.SPREAD", 16)
    sampler = HookSampler(layers)
    for _ in range(15):
        sampler.observe([1] * layers, was_sampled=True)
    assert layers - len(sampler.disable([1] * layers)) == enabled


def test_hooks_are_disabled_at_an_interval_that_was_given(collector: Recorded) -> None:
    model, disabled = Routed(), []
    with watching(collector, model, is_watched=True, every=EVERY):
        read = train(model, lambda _: disabled.append(at_rest(model)), steps=51)
    assert_sent(collector, read, range(0, 51, EVERY))
    assert {step for step in range(20, 51) if not disabled[step]} == {*range(19, 51, EVERY)} - SKIPPED - {19}
