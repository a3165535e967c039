"""Scripts that swap their tensors, as ``model.to()`` does under FSDP2 or where torch is asked to: nobody hinders them.

What torch does to hooks then is the same with us as without.
"""

import gc
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

import gradcanary
from gradcanary.stats import accumulation
from support.agent.recorded import Recorded
from support.agent.torch_loops import assert_identical, assert_sent, loss_of, mlp, reading, watching

Calls = list[str]
KINDS = ("register_hook", "register_post_accumulate_grad_hook")


@pytest.fixture(autouse=True)
def swaps() -> Iterator[None]:
    torch.__future__.set_swap_module_params_on_conversion(value=True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(value=False)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, micro_steps: int = 2) -> list:
    read = []
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(micro_steps):
            loss_of(model, next(model.parameters()).dtype).backward()
        read.append(reading(model))
        optimizer.step()
    return read


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("given", ["both", "model", "named", "nothing"])
def test_a_model_is_converted_while_watched_and_after(collector: Recorded, dtype: torch.dtype, given: str) -> None:
    def run(*, is_watched: bool) -> tuple[nn.Module, list]:
        model = mlp()
        names = model.named_parameters() if given == "named" else model.parameters()
        optimizer = torch.optim.SGD(names, lr=0.1)
        taken = {"both": (model, optimizer), "model": (model,)}.get(given, ())
        with watching(collector, *taken, is_watched=is_watched):
            read = train(model, optimizer, 3)
            model.to(dtype)  # with its gradients
            read += train(model, optimizer, 3)
            model[0].to(torch.float32).to(dtype)
            read += train(model, optimizer, 2)
        model.to(torch.float32)
        return model, read

    model, read = run(is_watched=True)
    assert_identical(model, run(is_watched=False)[0])
    assert_sent(collector, read)
    assert collector.per_step("micro_steps") == [2] * len(read)
    assert {state for step in collector.states().values() for state in step.values()} == {"measured"}


def test_a_converted_model_is_freed(collector: Recorded) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradcanary.watch(model, optimizer, url=collector.url, run="freed"):
        train(model, optimizer, 2)
        model.double()
        train(model, optimizer, 2)
        gone = [weakref.ref(each) for each in (model, optimizer, model[0])]
        del model, optimizer
        gc.collect()
        assert [each() for each in gone] == [None] * 3


def hook_of(calls: Calls, name: str) -> Callable[[torch.Tensor], None]:
    return lambda _: calls.append(name)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("moment", ["in between", "in the end"])
def test_the_hooks_of_a_script_are_called_as_without_us(collector: Recorded, kind: str, moment: str) -> None:
    """Those of before a swap are called no more, those of after it are, unless there were others before."""

    def run(*, is_watched: bool) -> Calls:
        model, calls = mlp().bfloat16(), []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        getattr(model[0].weight, kind)(hook_of(calls, "early"))
        with watching(collector, model, optimizer, is_watched=is_watched) as watch:
            train(model, optimizer, accumulation.FIRST)  # the next window is one with more hooks of ours
            getattr(model[2].weight, kind)(hook_of(calls, "inside"))
            train(model, optimizer, 2)
            if moment == "in the end" and watch is not None:
                watch.close()
            model.double()
            for name, parameter in model.named_parameters():
                getattr(parameter, kind)(hook_of(calls, name))
            train(model, optimizer, 2)
        return calls

    bare = run(is_watched=False)
    assert set(bare) == {"early", "inside", "0.bias", "2.bias"}
    assert run(is_watched=True) == bare


def test_parameters_that_no_module_holds(collector: Recorded) -> None:
    """They are found where their optimizer has them by then, and known again when another one takes them."""
    weights = [nn.Parameter(torch.ones(4) * number) for number in (1, 2, 3)]

    def step(optimizer: torch.optim.Optimizer) -> None:
        for _ in range(2):
            sum((number * each.sum()) for number, each in enumerate(weights, 1)).backward()
        optimizer.step()
        optimizer.zero_grad()

    with gradcanary.watch(url=collector.url, run="loose"):
        optimizer = torch.optim.SGD(weights, lr=0.0)
        step(optimizer)
        step(optimizer)
        optimizer.param_groups[0]["params"].reverse()
        step(optimizer)
        torch.utils.swap_tensors(weights[0], nn.Parameter(torch.zeros(4)))
        step(optimizer)
        optimizer = torch.optim.SGD(weights, lr=0.0)
        step(optimizer)
        step(optimizer)
    assert collector.steps() == list(range(6))
    assert collector.per_step("micro_steps") == [2] * 6
    expected = {f"group0.{number - 1}": pytest.approx(4.0 * number) for number in (1, 2, 3)}
    assert all(norms == expected for norms in collector.stat("norm").values())


class Made(torch.optim.SGD):
    """Makes its groups anew at each look, as wrappers of many optimizers do."""

    looks = 0

    @property
    def param_groups(self) -> list:
        self.looks += 1
        return [dict(group) for group in self.__dict__.get("made", [])]

    @param_groups.setter
    def param_groups(self, groups: list) -> None:
        self.made = groups

    def add_param_group(self, group: dict) -> None:
        self.made.append({"lr": 0.1, **self.defaults, **group, "params": list(group["params"])})


def test_an_optimizer_is_not_asked_for_each_layer(collector: Recorded) -> None:
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(50)))
    optimizer = Made(model.parameters(), lr=0.1)
    with gradcanary.watch(model, optimizer, url=collector.url, run="made"):
        train(model, optimizer, 2)
        before = optimizer.looks
        train(model, optimizer, 2)
        assert optimizer.looks - before < 50
    assert len(collector.stat("norm")[3]) == 100
