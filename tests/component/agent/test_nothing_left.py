"""When a watch ends there is nothing left of it: no hook, function, thread or object, wherever torch keeps them."""

import gc
import logging
import signal
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from importlib import import_module

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

import gradcanary
from gradcanary import api
from support.agent.recorded import Recorded
from support.agent.torch_loops import Loop

CLASSES = (
    *(torch.Tensor, nn.Module, nn.Parameter, nn.Linear, torch.optim.Optimizer, torch.optim.AdamW, torch.optim.LBFGS),
    *(torch.amp.GradScaler, torch.autograd.Variable, torch.autograd.Function, threading.Thread),
)
NAMES = ("autograd", "optim.optimizer", "nn.modules.module", "nn.utils", "cuda", "amp", "utils.checkpoint")
MODULES = (torch, *(import_module(f"torch.{name}") for name in NAMES))


def held(thing: object) -> dict[str, object]:
    """Return what its attributes are: of a container what is in it, of anything else which object it is."""
    found: dict[str, object] = {}
    for name, value in list(vars(thing).items()):
        is_container = isinstance(value, (dict, list, set, tuple)) and name.startswith("_") and "hook" in name
        found[name] = [*map(id, value.values() if isinstance(value, dict) else value)] if is_container else id(value)
    return found


def traces(loop: Loop) -> dict[str, object]:
    """Return all that could tell of a watch, in the training and in the process."""
    found: dict[str, object] = {f"{each!r}": held(each) for each in (*CLASSES, *MODULES)}
    found["modules"] = [
        {name: value for name, value in held(each).items() if "hook" in name or callable(vars(each)[name])}
        for each in loop.model.modules()
    ]
    kinds = ("_backward_hooks", "_post_accumulate_grad_hooks", "grad_dtype")  # the last since torch 2.10
    found["parameters"] = [
        [str(getattr(each, kind, None)) for kind in kinds] + sorted(vars(each)) for each in loop.model.parameters()
    ]
    found["optimizer"] = {
        name: value for name, value in held(loop.optimizer).items() if "hook" in name or name in ("step", "zero_grad")
    }
    found["groups"] = [sorted(group) for group in loop.optimizer.param_groups]
    found["states"] = [sorted(state) for state in loop.optimizer.state.values()]
    names = sorted(thread.name for thread in threading.enumerate())
    found["threads"] = [name for name in names if "process_request_thread" not in name]  # of the collector
    found["hooks"] = [sys.excepthook, threading.excepthook, sys.unraisablehook, sys.gettrace(), sys.getprofile()]
    found["finders"] = [*map(id, (*sys.meta_path, *sys.path_hooks, *gc.callbacks, *warnings.filters))]
    found["signals"] = [signal.getsignal(each) for each in signal.valid_signals()]
    found["loggers"] = [logging.getLogger(name).handlers for name in (None, "gradcanary", "torch")]
    found["modes"] = [torch.is_grad_enabled(), torch._C._len_torch_dispatch_stack(), torch.get_default_dtype()]
    return found


def between(loop: Loop, watch: gradcanary.Watch) -> None:
    """With all that a watch may do."""
    loop.steps(1)
    watch.observe_accumulator("0.weight", loop.model[0].weight.detach() * 2)
    watch.log(loss=torch.ones(()), acc=1)
    loop.steps(1)
    watch.pause()
    loop.pass_()
    loop.steps(1)


def is_shadowed(loop: Loop) -> bool:
    return all(len(each._post_accumulate_grad_hooks) == 2 for each in loop.model.parameters())


def inside(loop: Loop, _watch: gradcanary.Watch) -> None:
    """In the middle of a window with float32 sums beside the real ones."""
    loop.steps(1)
    loop.pass_()
    if not is_shadowed(loop):  # a first step was made before
        loop.pass_()
        loop.optimizer.step()
        loop.optimizer.zero_grad()
        loop.pass_()
    assert is_shadowed(loop)


def paused(loop: Loop, watch: gradcanary.Watch) -> None:
    inside(loop, watch)
    watch.pause()
    loop.pass_()


def summed(loop: Loop, _watch: gradcanary.Watch) -> None:
    with gradcanary.fp32_accumulators(loop.optimizer):
        for _ in range(4):
            loop.steps(1)
        loop.pass_()


def scaled(loop: Loop, _watch: gradcanary.Watch) -> None:
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(loop.model(torch.ones(2, 4, dtype=torch.bfloat16)).float().sum()).backward()
    scaler.step(loop.optimizer)
    scaler.update()
    loop.optimizer.zero_grad()


def twice(loop: Loop, watch: gradcanary.Watch) -> None:
    """A second watch is the first, and another run's ends it."""
    assert gradcanary.watch(loop.model, loop.optimizer) is watch
    loop.steps(1)
    with gradcanary.watch(loop.model, run="another"):
        loop.steps(1)


@pytest.mark.parametrize(
    ("act", "given"),
    [
        (between, "model"),
        (inside, "model"),
        (paused, "nothing"),
        (summed, "nothing"),
        (scaled, "model"),
        (twice, "model"),
    ],
)
def test_nothing_is_left_when_it_is_closed(
    collector: Recorded, monkeypatch: pytest.MonkeyPatch, act: object, given: str
) -> None:
    monkeypatch.setenv("GRADCANARY_URL", collector.url)
    loop = Loop()
    loop.steps(1)
    before = traces(loop)
    watch = gradcanary.watch(*([loop.model, loop.optimizer] if given == "model" else []), run="one")
    if given == "nothing":
        loop.steps(1)  # as it is then that the layers are found
    assert traces(loop) != before
    act(loop, watch)
    watch.close()
    assert traces(loop) == before
    gone = weakref.ref(watch)
    del watch
    gc.collect()
    assert gone() is None, "not even what would be called at exit"
    loop.steps(1)
    assert traces(loop) == before


def test_a_model_an_optimizer_and_a_watch_may_be_let_go_of(collector: Recorded) -> None:
    """Each of them while it is watched: the training's are freed, the watch goes on until somebody closes it."""
    first, second = Loop(), Loop()
    before = traces(second)
    gradcanary.watch(url=collector.url, run="freed")
    first.steps(1)
    first.steps(1)
    gone = [weakref.ref(each) for each in (first, first.model, first.model[0], first.optimizer)]
    del first
    gc.collect()
    assert [each() for each in gone] == [None] * 4
    for _ in range(3):
        second.steps(1)
    (watch,) = api._open
    assert watch._session.guard.caught == 0
    watch.close()
    assert collector.steps() == list(range(5))
    assert traces(second) == {**before, "states": traces(second)["states"]}


# -- closed in another thread ------------------------------------------------------------------------------------------


def in_another_thread(act: Callable[[], object]) -> None:
    thread = threading.Thread(target=act)
    thread.start()
    thread.join()


@pytest.fixture
def hooks_after_ours() -> Iterator[list[Callable[[], object]]]:
    """Two hooks of the script before each step, registered after those of the watch; the first one runs what is in
    the list, once."""
    pending: list[Callable[[], object]] = []

    def run(*_: object) -> None:
        while pending:
            pending.pop()()

    handles = []

    def register() -> None:
        handles.extend(register_optimizer_step_pre_hook(each) for each in (run, lambda *_: None))

    pending.append(register)
    yield pending
    for handle in handles:
        handle.remove()


def test_a_close_in_another_thread_lets_the_training_iterate_its_hooks(
    collector: Recorded, hooks_after_ours: list[Callable[[], object]]
) -> None:
    """While ``step()`` of torch iterates the hooks of all optimizers, a removed one would raise out of ``step()``."""
    loop = Loop()
    loop.steps(1)
    watch = gradcanary.watch(loop.model, loop.optimizer, url=collector.url, run="one")
    hooks_after_ours.pop()()
    loop.steps(2)
    hooks_after_ours.append(lambda: in_another_thread(watch.close))
    loop.steps(1)
    assert collector.ends
    assert collector.steps() == [1, 2]
    loop.steps(1)
    assert collector.steps() == [1, 2]


@pytest.mark.parametrize("given", ["model", "nothing"])
def test_nothing_is_left_by_the_pass_after_a_close_in_another_thread(collector: Recorded, given: str) -> None:
    loop = Loop()
    loop.steps(1)
    before = traces(loop)
    arguments = [loop.model, loop.optimizer] if given == "model" else []
    watch = gradcanary.watch(*arguments, url=collector.url, run="one")
    loop.steps(3)
    in_another_thread(watch.close)
    assert traces(loop) != before
    loop.pass_()
    loop.optimizer.step()
    loop.optimizer.zero_grad()
    assert traces(loop) == before
    assert len(collector.ends) == 1
    assert watch._session.guard.caught == 0
    gone = weakref.ref(watch)
    del watch
    gc.collect()
    assert gone() is None, "not even what would be called at exit"


def test_a_second_close_in_the_thread_of_the_training_leaves_nothing(collector: Recorded) -> None:
    """As at the end of a ``with`` after ``on_alert`` has closed the watch: no pass may come after it."""
    loop = Loop()
    before = traces(loop)
    with gradcanary.watch(loop.model, loop.optimizer, url=collector.url, run="one") as watch:
        loop.steps(2)
        in_another_thread(watch.close)
        in_another_thread(watch.close)
        assert traces(loop) != {**before, "states": traces(loop)["states"]}, "another thread removes nothing"
    assert traces(loop) == {**before, "states": traces(loop)["states"]}
    assert (len(collector.ends), watch._session.guard.caught) == (1, 0)


def test_exit_without_a_backward_pass_leaves_nothing(collector: Recorded) -> None:
    loop = Loop()
    before = traces(loop)
    watch = gradcanary.watch(loop.model, loop.optimizer, url=collector.url, run="one")
    in_another_thread(watch.close)
    watch._at_exit()
    assert traces(loop) == before
    assert len(collector.ends) == 1


def test_a_close_after_the_thread_of_the_training_has_ended_is_complete(collector: Recorded) -> None:
    loop = Loop()
    before = traces(loop)
    watch = gradcanary.watch(loop.model, loop.optimizer, url=collector.url, run="one")
    in_another_thread(lambda: loop.steps(2))
    watch.close()
    assert traces(loop) == {**before, "states": traces(loop)["states"]}
    assert collector.steps() == [0, 1]
