"""Where the count of steps begins, and what is said of it."""

import math
import sys
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch import nn

import gradcanary
from gradcanary import identity
from gradcanary.attach.resident import AttachedWatch
from gradcanary.settings import Settings
from support.agent.recorded import Recorded, recording
from support.waiting import eventually

Optimizer = torch.optim.Optimizer
AT = 12_000


def resumed(optimizer: Optimizer, at: object) -> Optimizer:
    """Return the optimizer as a checkpoint leaves it: with the state that an earlier one had made."""
    model = nn.Linear(4, 4)
    earlier = type(optimizer)(model.parameters(), lr=1e-3)
    model(torch.randn(2, 4)).sum().backward()
    earlier.step()
    state = earlier.state_dict()
    for each in state["state"].values():
        if "step" in each:
            each["step"] = at
    optimizer.load_state_dict(state)
    return optimizer


def adam(model: nn.Module) -> Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-3)


def sgd(model: nn.Module) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-3)


CASES: dict[str, tuple[Callable[[nn.Module], Optimizer], int | None, int, str, bool]] = {
    "an optimizer that counts": (adam, None, 0, "optimizer", False),
    "one that counted": (lambda model: resumed(adam(model), torch.tensor(float(AT))), None, AT, "optimizer", True),
    "and in a plain number": (lambda model: resumed(adam(model), AT), None, AT, "optimizer", True),
    "one that does not": (sgd, None, 0, "relative", False),
    "what is given comes first": (lambda model: resumed(adam(model), torch.tensor(5.0)), AT, AT, "given", False),
}


def train(collector: Recorded, make: Callable[[nn.Module], Optimizer], given: int | None, *, is_told: bool) -> None:
    model = nn.Linear(4, 4)
    optimizer = make(model)
    watched = [model, optimizer] if is_told else []
    with gradcanary.watch(*watched, url=collector.url, run="origin", step=given):
        for _ in range(3):
            model(torch.randn(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("is_told", [True, False], ids=["given", "found"])
@pytest.mark.parametrize(("make", "given", "first", "source", "late"), CASES.values(), ids=CASES)
def test_the_first_step(
    make: Callable[[nn.Module], Optimizer], given: int | None, first: int, source: str, late: bool, is_told: bool
) -> None:
    with recording() as collector:
        train(collector, make, given, is_told=is_told)
    hello = collector.hellos[-1]
    assert (hello["first_step"], hello["step_source"], hello["late"]) == (first, source, late)
    assert collector.steps() == [first, first + 1, first + 2]


def test_a_resumed_training_that_prepares_for_long_is_late_too() -> None:
    """Its first hello is sent before its first step, when nobody can know."""
    with recording() as collector:
        model = nn.Linear(4, 4)
        optimizer = resumed(adam(model), AT)
        with gradcanary.watch(model, optimizer, url=collector.url, run="prepares"):
            eventually(lambda: collector.hellos)
            model(torch.randn(2, 4)).sum().backward()
            optimizer.step()
    first, last = collector.hellos[0], collector.hellos[-1]
    assert (first["first_step"], first["late"]) == (None, False)
    assert (last["first_step"], last["late"]) == (AT, True)


def test_the_environment_gives_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADCANARY_STEP", "70")
    with recording() as collector:
        train(collector, sgd, None, is_told=True)
    assert (collector.hellos[-1]["step_source"], collector.steps()) == ("given", [70, 71, 72])


@pytest.mark.parametrize("seen", [0, 1])
def test_a_window_that_is_joined_in_its_middle_feeds_nobody(seen: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What ``gradcanary attach`` does, here with an optimizer that counts nothing, after ``seen`` of two passes."""
    monkeypatch.setattr(identity, "_default_run", None)
    model = nn.Linear(4, 4)
    optimizer = sgd(model)

    def passes(count: int) -> None:
        for _ in range(count):
            model(torch.ones(2, 4)).square().sum().backward()

    def step() -> None:
        optimizer.step()
        optimizer.zero_grad()

    passes(seen)
    with recording() as collector:
        watch = AttachedWatch(Settings.resolve({}, url=collector.url, step=500), "late")
        watch.begin()
        passes(2 - seen)
        step()
        for _ in range(2):
            passes(2)
            step()
        watch.close()
    assert collector.runs == {"late"}
    assert {hello["late"] for hello in collector.hellos} == {True}
    assert collector.hellos[-1]["step_source"] == "relative"
    states = collector.states()
    assert [set(states[step].values()) for step in range(3)] == [{"partial"}, {"measured"}, {"measured"}]
    assert collector.per_step("micro_steps") == [0, 2, 2]
    assert collector.metric("loss").keys() == {1, 2}
    assert 0 not in collector.stat("update_ratio")
    assert all(math.isnan(value) for value in collector.stat("absmax")[0].values())
    assert collector.phases("norm") == {"accumulated", "post_clip"}
    assert collector.phase_of("norm") == {0: "post_clip", 1: "accumulated", 2: "accumulated"}


def test_a_framework_that_does_not_say_its_step_is_a_fault_and_still_the_one_whose_words_count(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As of a version that keeps it elsewhere."""

    class Trainer:
        def __init__(self, optimizer: Optimizer) -> None:
            self.optimizer = optimizer

    module = ModuleType("transformers.trainer")
    module.Trainer = Trainer
    monkeypatch.setitem(sys.modules, "transformers.trainer", module)
    kept: list[Trainer] = []

    def make(model: nn.Module) -> Optimizer:
        kept.append(Trainer(sgd(model)))
        return kept[0].optimizer

    with recording() as collector:
        train(collector, make, None, is_told=True)
    assert [record.getMessage() for record in caplog.records] == [
        "gradcanary: asking transformers for its step failed; the training goes on without it"
    ]
    (hello,) = collector.hellos[-1:]
    assert (hello["framework"], hello["first_step"], hello["step_source"]) == ("transformers", 0, "relative")
    assert len(collector.facts("agent_fault")) == 1
