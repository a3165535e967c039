"""What the layers are called, which ones are followed, and that a watch leaves nothing behind."""

import copy
import gc
import re
import sys
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import distributed, nn
from torch.distributed.pipelining import PipelineStage
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

import gradcanary
from gradcanary import wire
from gradcanary.hooks import backward
from gradcanary.model import layers, parameters
from support.agent.recorded import Recorded, recording
from support.agent.scripted import WAIT_S


class Block(nn.Module):
    """A user's own module whose attribute has the name that a wrapper would use."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(4, 4)
        self.out = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.module(x))


BLOCK = ["module.weight", "module.bias", "out.weight", "out.bias"]


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 2) -> None:
    for _ in range(steps):
        model(torch.randn(2, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_names_of_a_model_made_before_watch(collector: Recorded) -> None:
    model = nn.Sequential(Block(), Block())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradcanary.watch(url=collector.url, run="found"):
        train(model, optimizer)
    assert collector.names == [f"{block}.{name}" for block in (0, 1) for name in BLOCK]
    assert {layer["module_class"] for layer in collector.layers} == {"Linear"}
    assert collector.layers[0]["shape"] == [4, 4]
    assert collector.layers[0]["local_numel"] == 16
    (layer_set,) = collector.hellos[-1]["layer_sets"]
    said = tuple(wire.Layer(**{**layer, "shape": tuple(layer["shape"])}) for layer in layer_set["layers"])
    assert wire.layer_set_id(said) == layer_set["id"]


@pytest.mark.parametrize("micro_steps", [64, 65])
def test_the_loss_of_a_long_first_window_is_whole_or_none(collector: Recorded, micro_steps: int) -> None:
    """What passes before any hook sits on a parameter is kept, but not without end."""
    model, losses = nn.Linear(4, 4), [0.0, 0.0]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradcanary.watch(url=collector.url, run="long"):
        for step in range(2):
            for _ in range(micro_steps):
                loss = model(torch.randn(2, 4)).square().mean()
                losses[step] += float(loss.detach())
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    assert collector.per_step("micro_steps") == [micro_steps] * 2
    known = {step: loss for step, loss in enumerate(losses) if step or micro_steps == 64}
    assert collector.metric("loss") == pytest.approx(known, rel=1e-6)


@pytest.mark.loop("plain, and accumulation over K micro-steps")
def test_names_and_first_step_of_a_model_made_after_watch(collector: Recorded) -> None:
    """The first micro-steps pass before any hook sits on a parameter; the first step still gets its values."""
    with gradcanary.watch(url=collector.url, run="later"):
        model = nn.Sequential(Block(), nn.Linear(4, 4))
        optimizer = torch.optim.AdamW(model.parameters())
        losses = [model(torch.randn(2, 4)).square().mean() for _ in range(2)]
        for loss in losses:
            loss.backward()
        largest = {name: float(each.grad.double().abs().max()) for name, each in model.named_parameters()}
        optimizer.step()
        optimizer.zero_grad()
        train(model, optimizer)
    assert collector.names == [name for name, _ in model.named_parameters()]
    assert collector.steps() == [0, 1, 2]
    assert collector.per_step("micro_steps") == [2, 1, 1]
    assert collector.stat("absmax")[0] == pytest.approx(largest, rel=1e-6)
    assert collector.metric("loss")[0] == pytest.approx(sum(float(loss.detach()) for loss in losses))
    assert collector.hellos[-1]["optimizer"] == "AdamW"
    assert collector.hellos[-1]["first_step"] == 0


@pytest.mark.parametrize("is_given", [True, False])
def test_a_compiled_model_has_the_names_of_the_model(collector: Recorded, is_given: bool) -> None:
    from torch._dynamo.eval_frame import OptimizedModule

    compiled = torch.compile(Block(), backend="eager")
    assert isinstance(compiled, OptimizedModule)
    assert next(iter(dict(compiled.named_parameters()))) == "_orig_mod.module.weight"
    optimizer = torch.optim.SGD(compiled.parameters(), lr=0.1)
    with gradcanary.watch(compiled if is_given else None, url=collector.url, run="compiled"):
        train(compiled._orig_mod, optimizer)
    assert collector.names == BLOCK


def test_data_parallel_and_checkpoint_wrappers_are_left_out_of_names(collector: Recorded) -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    model = nn.DataParallel(nn.Sequential(checkpoint_wrapper(Block()), nn.Linear(4, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradcanary.watch(model, url=collector.url, run="wrapped"):
        train(model, optimizer)
    assert collector.names == [*(f"0.{name}" for name in BLOCK), "1.weight", "1.bias"]


def test_names_in_param_groups_are_taken(collector: Recorded) -> None:
    weight, bias = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(4))
    optimizer = torch.optim.SGD([("mine.weight", weight), ("mine.bias", bias)], lr=0.1)
    with gradcanary.watch(optimizer=optimizer, url=collector.url, run="given"):
        train(lambda x: x @ weight + bias, optimizer)
    assert collector.names == ["mine.weight", "mine.bias"]


def test_parameters_that_no_module_holds_have_their_place_as_name(collector: Recorded) -> None:
    loose = [nn.Parameter(torch.randn(4, 4)) for _ in range(3)]
    optimizer = torch.optim.SGD([{"params": loose[:1]}, {"params": loose[1:]}], lr=0.1)
    with gradcanary.watch(url=collector.url, run="loose"):
        train(lambda x: x @ loose[0] @ loose[1] @ loose[2], optimizer)
    assert collector.names == ["group0.0", "group1.0", "group1.1"]
    assert {layer["module_class"] for layer in collector.layers} == {None}


def test_equal_names_of_two_models_are_told_apart(collector: Recorded) -> None:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
    with gradcanary.watch(url=collector.url, run="twins"):
        train(lambda x: second(first(x)), optimizer)
    assert sorted(collector.names) == [f"Linear{number}.{name}" for number in (1, 2) for name in ("bias", "weight")]


class Generator(nn.Sequential):
    pass


class Discriminator(nn.Sequential):
    pass


@pytest.mark.parametrize("are_named", [True, False], ids=["names in the groups", "no names"])
def test_the_parameters_of_two_models_are_named_by_their_model(collector: Recorded, *, are_named: bool) -> None:
    generator, discriminator = Generator(nn.Linear(4, 4)), Discriminator(nn.Linear(4, 4), nn.Linear(4, 1))
    groups = [
        {"params": model.named_parameters() if are_named else model.parameters()}
        for model in (generator, discriminator)
    ]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    with gradcanary.watch(url=collector.url, run="gan"):
        train(lambda x: discriminator(generator(x)), optimizer)
    assert set(collector.names) == {
        *("Generator.0.weight", "Generator.0.bias"),
        *(f"Discriminator.{number}.{name}" for number in (0, 1) for name in ("weight", "bias")),
    }


def test_a_model_keeps_its_names_when_another_comes(collector: Recorded) -> None:
    first, second = nn.Sequential(nn.Linear(4, 4)), nn.Sequential(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(first.parameters(), lr=0.1)
    with gradcanary.watch(url=collector.url, run="later"):
        train(first, optimizer)
        other = torch.optim.SGD(second.parameters(), lr=0.1)
        for _ in range(2):
            second(first(torch.randn(2, 4))).mean().backward()
            other.step()
            optimizer.step()
    names = {layer["name"] for layers in collector.sets().values() for layer in layers}
    assert names == {"0.weight", "0.bias", "Sequential.0.weight", "Sequential.0.bias"}


def test_one_model_beside_the_optimizer_of_another_cell_keeps_its_plain_names(collector: Recorded) -> None:
    older, model = nn.Sequential(nn.Linear(4, 4)), nn.Sequential(nn.Linear(4, 4))
    left = torch.optim.SGD(older.parameters(), lr=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradcanary.watch(url=collector.url, run="cell"):
        train(model, optimizer)
    assert left is not None
    assert collector.names == ["0.weight", "0.bias"]


@pytest.mark.parametrize("is_given", [True, False])
@pytest.mark.parametrize("twin", ["averaged", "copied", "older"])
def test_a_twin_that_is_not_trained_is_no_layer(collector: Recorded, twin: str, is_given: bool) -> None:
    """An average of the weights, or the model of an earlier cell, has the same names and lives beside the model."""
    older = nn.Sequential(Block(), Block())
    model = nn.Sequential(Block(), Block())
    kept: object = older
    if twin == "averaged":
        kept = torch.optim.swa_utils.AveragedModel(model)
    elif twin == "copied":
        kept = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradcanary.watch(*([model, optimizer] if is_given else []), url=collector.url, run="twin"):
        train(model, optimizer)
        if isinstance(kept, torch.optim.swa_utils.AveragedModel):
            kept.update_parameters(model)
        train(model, optimizer)
    assert kept is not None
    assert collector.names == [f"{block}.{name}" for block in (0, 1) for name in BLOCK]
    assert {state for states in collector.states().values() for state in states.values()} == {"measured"}


class Container(nn.Module):
    """Holds what is trained and a copy of it that follows, frozen or not, plain or by torch's own class."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = Block()
        self.ema = torch.optim.swa_utils.AveragedModel(self.model) if kind == "averaged" else copy.deepcopy(self.model)
        self.ema.requires_grad_(requires_grad=kind != "frozen")

    def follow(self) -> None:
        if isinstance(self.ema, torch.optim.swa_utils.AveragedModel):
            self.ema.update_parameters(self.model)
            return
        with torch.no_grad():
            for mine, other in zip(self.ema.parameters(), self.model.parameters(), strict=True):
                mine.lerp_(other, 0.1)


@pytest.mark.parametrize("is_given", [True, False], ids=["optimizer given", "found"])
@pytest.mark.parametrize("kind", ["frozen", "copied", "averaged"])
def test_a_container_of_a_model_and_its_average(collector: Recorded, kind: str, is_given: bool) -> None:
    """The average is of no optimizer: its layers are none if it is frozen, else they have no gradient."""
    both, read = Container(kind), []
    optimizer = torch.optim.SGD(both.model.parameters(), lr=0.1)
    with gradcanary.watch(both, *([optimizer] if is_given else []), url=collector.url, run="container"):
        for _ in range(3):
            both.model(torch.randn(2, 4)).square().mean().backward()
            read.append({f"model.{n}": float(each.grad.double().norm()) for n, each in both.model.named_parameters()})
            optimizer.step()
            optimizer.zero_grad()
            both.follow()
    trained = [f"model.{name}" for name in BLOCK]
    inner = "ema.module" if kind == "averaged" else "ema"
    averaged = [] if kind == "frozen" else [f"{inner}.{name}" for name in BLOCK]
    assert collector.names == trained + averaged
    assert [layer["group"] for layer in collector.layers] == [0] * len(trained) + [None] * len(averaged)
    for step, states in collector.states().items():
        assert states == {**dict.fromkeys(trained, "measured"), **dict.fromkeys(averaged, "no_gradient")}
        sent = {name: value for name, value in collector.stat("norm")[step].items() if name in trained}
        assert sent == pytest.approx(read[step], rel=1e-6)
    for ratios in collector.stat("update_ratio").values():
        assert all((ratio == 0) == (name in averaged) for name, ratio in ratios.items()), "no step moves it"


def test_include_and_exclude(collector: Recorded) -> None:
    model = nn.Sequential(Block(), Block())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradcanary.watch(model, url=collector.url, run="chosen", include=r"weight$", exclude=r"^1\.out"):
        train(model, optimizer)
    assert collector.names == ["0.module.weight", "0.out.weight", "1.module.weight"]


def test_a_tied_parameter_is_one_layer(collector: Recorded) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradcanary.watch(model, url=collector.url, run="tied"):
        train(model, optimizer)
    assert collector.names == ["0.weight", "0.bias", "1.bias"]
    assert collector.per_step("micro_steps") == [1, 1]


def test_a_trainable_layer_that_no_optimizer_has_is_followed_too(collector: Recorded) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    model[2].requires_grad_(requires_grad=False)
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    with gradcanary.watch(model, url=collector.url, run="forgotten"):
        for _ in range(2):
            model(torch.randn(2, 4)).square().mean().backward()
            optimizer.step()
            model.zero_grad()
    assert collector.names == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert [layer["group"] for layer in collector.layers] == [0, 0, None, None]


@pytest.mark.loop(
    "layers that are added during training", late="the first window of them", names="model's; a new layer set"
)
def test_layers_that_are_unfrozen_and_added_later(collector: Recorded) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].requires_grad_(requires_grad=False)
    optimizer = torch.optim.SGD([*model[0].parameters(), *model[1].parameters()], lr=0.1)
    with gradcanary.watch(optimizer=optimizer, url=collector.url, run="growing"):
        train(model, optimizer)
        model[1].requires_grad_(requires_grad=True)
        train(model, optimizer)
        optimizer.add_param_group({"params": model[2].parameters()})
        train(model, optimizer)
    states = collector.states()
    assert collector.steps() == list(range(6))
    assert states[1]["1.weight"] == "not_trainable"
    assert states[3]["1.weight"] == "measured"
    assert "2.weight" not in states[3]
    assert states[5]["2.weight"] == "measured"
    assert collector.per_step("micro_steps") == [1] * 6
    assert len(collector.sets()) == 2


@pytest.mark.parametrize("passes", [2, 3])
def test_windows_of_one_head_or_another_are_whole(collector: Recorded, passes: int) -> None:
    """The layer by which windows are told apart takes no part in some; what a loop skips is told all the same."""
    trunk, heads = nn.Linear(4, 4), nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
    model = nn.ModuleList([trunk, heads])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradcanary.watch(model, optimizer, url=collector.url, run="heads"):
        for step, head in enumerate([0, 0, 1, 1, 2, 0, 2, 1, 0]):
            for _ in range(passes):
                heads[head](trunk(torch.randn(2, 4))).square().mean().backward()
            if step != 7:
                optimizer.step()
            optimizer.zero_grad()
    assert collector.steps() == [*range(9)]
    assert set(collector.per_step("micro_steps")) == {passes}
    assert collector.per_step("skipped") == [0] * 7 + [2, 0]
    assert collector.states()[4]["1.0.weight"] == "no_gradient"
    assert collector.states()[4]["1.2.weight"] == "measured"


def test_a_second_optimizer_that_is_found_later(collector: Recorded) -> None:
    """Its layers come before those known, so that two parameters of one shape share a place."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    last, first = (torch.optim.SGD(each.parameters(), lr=0.1) for each in (model[1], model[0]))
    with gradcanary.watch(url=collector.url, run="second"):
        train(model, last)
        for _ in range(2):
            model(torch.randn(2, 4)).square().mean().backward()
            first.step()
            last.step()
            model.zero_grad()
    assert [[layer["name"] for layer in layers] for layers in collector.sets().values()] == [
        ["1.weight", "1.bias"],
        ["0.weight", "0.bias", "1.weight", "1.bias"],
    ]
    assert set(collector.states()[max(collector.steps())].values()) == {"measured"}


def test_a_model_that_is_let_go_of_is_freed_while_watched(collector: Recorded) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watched = gradcanary.watch(model, optimizer, url=collector.url, run="freed")
    train(model, optimizer)
    gone = [weakref.ref(each) for each in (model, optimizer, model.weight)]
    del model, optimizer
    gc.collect()
    try:
        assert [each() for each in gone] == [None] * 3
    finally:
        watched.close()


class NoRead(TorchDispatchMode):
    """Counts reads of a tensor's value by the thread in which it is active."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        if re.search(r"_local_scalar_dense|aten\.(item|equal|is_nonzero|nonzero|_to_copy\.cpu)", name):
            self.reads.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("phase", "has_buffers"), [("accumulated", False), ("post_clip", False), ("accumulated", True)]
)
def test_the_training_thread_reads_no_value(
    collector: Recorded, monkeypatch: pytest.MonkeyPatch, phase: str, has_buffers: bool
) -> None:
    """On a GPU each read would stop the training until the device is done."""
    if phase == "post_clip":
        monkeypatch.setattr("gradcanary.hooks.backward.has_callbacks", lambda: False)
    model = nn.Sequential(Block(), Block())
    optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1), foreach=True)
    train(model, optimizer, 1)
    optimizer.param_groups[0]["lr"] = 0.1  # torch reads the value of a tensor itself
    mode = NoRead()
    with gradcanary.watch(url=collector.url, run="reads") as watched, mode:
        for _ in range(4):
            for _ in range(2):
                model(torch.randn(2, 4)).square().mean().backward()
            for name, parameter in model.named_parameters() if has_buffers else ():
                watched.observe_accumulator(name, parameter.grad.clone())
            nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            optimizer.step()
            optimizer.zero_grad()
            watched.log(mine=torch.ones(()))
    assert mode.reads == []
    assert collector.steps() == [0, 1, 2, 3]
    assert collector.phases("absmax") <= {"accumulated", "post_clip"}
    assert phase in collector.phases("absmax")
    assert collector.stat("update_ratio")
    assert collector.metric("mine") == dict.fromkeys(range(4), 1.0)
    with mode:
        float(torch.ones(()) + 1)
    assert mode.reads  # a read would have been seen


def hooks_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[object]:
    """Everything in reach of a watch that could hold a hook of it."""
    import torch.optim.optimizer as optim

    return [
        torch.autograd.backward,
        torch.Tensor.backward,
        *(dict(each) for each in (optim._global_optimizer_pre_hooks, optim._global_optimizer_post_hooks)),
        *(dict(getattr(optimizer, name)) for name in vars(optimizer) if name.endswith("_hooks")),
        *(
            dict(value)
            for name, value in vars(nn.modules.module).items()
            if name.startswith("_global_") and "hooks" in name and isinstance(value, dict)
        ),
        *(dict(each._backward_hooks or {}) for each in model.parameters()),
        *(dict(each._post_accumulate_grad_hooks or {}) for each in model.parameters()),
        *(dict(value) for module in model.modules() for name, value in vars(module).items() if "hooks" in name),
        type(optimizer).step,
        sys.excepthook,
        threading.excepthook,
    ]


@pytest.mark.parametrize("is_told", [True, False])
def test_close_leaves_nothing_behind(collector: Recorded, is_told: bool) -> None:
    model = nn.Sequential(Block(), Block())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer)
    before, threads = hooks_of(model, optimizer), set(threading.enumerate())
    watched = gradcanary.watch(*((model, optimizer) if is_told else ()), url=collector.url, run="traces")
    train(model, optimizer)
    during = hooks_of(model, optimizer)
    assert during != before
    assert sum(len(each) for each in during if isinstance(each, dict)) == 2 + len(list(model.parameters()))
    assert "gradcanary-sender" in {thread.name for thread in threading.enumerate()}
    watched.close()
    assert hooks_of(model, optimizer) == before
    names = {thread.name for thread in set(threading.enumerate()) - threads}
    assert "gradcanary-sender" not in names
    sent = len(collector.batches)
    train(model, optimizer)
    watched.close()
    assert len(collector.batches) == sent
    assert [end["state"] for end in collector.ends] == ["finished"]
    assert collector.ends[0]["last_step"] == 1


def test_a_backward_that_somebody_wrapped_meanwhile_stays_theirs() -> None:
    original, heard = torch.autograd.backward, []
    backward.subscribe(heard.append)
    ours = torch.autograd.backward
    torch.autograd.backward = theirs = lambda *args, **kwargs: ours(*args, **kwargs)
    try:
        backward.unsubscribe(heard.append)
        assert torch.autograd.backward is theirs
        torch.ones((), requires_grad=True).backward()
        assert heard == []
    finally:
        torch.autograd.backward = ours
        backward.subscribe(heard.append)
        backward.unsubscribe(heard.append)
    assert torch.autograd.backward is original


def test_a_finalizer_may_leave_backward_while_the_same_thread_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """The garbage collector runs it anywhere, so also within ``listen()``."""
    original, heard, gone, tapped = torch.autograd.backward, [], [], backward._tapped

    def collecting(function: Callable[..., object]) -> Callable[..., object]:
        backward.unsubscribe(gone.append)
        return tapped(function)

    def listen() -> None:
        backward.subscribe(heard.append)

    with monkeypatch.context() as patch:
        patch.setattr(backward, "_tapped", collecting)
        patch.setattr(backward, "_listeners", type(backward._listeners)([gone.append]))
        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        thread.join(WAIT_S)
        assert not thread.is_alive()
        torch.ones((), requires_grad=True).backward()
        assert (len(heard), gone) == (1, [])
        backward.unsubscribe(heard.append)
    assert torch.autograd.backward is original


def test_a_stage_of_a_pipeline_says_what_is_missing(collector: Recorded) -> None:
    """Its process knows from itself alone that other processes have other layers."""
    distributed.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    try:
        stage = PipelineStage(nn.Linear(4, 2), 1, 2, torch.device("cpu"))
        optimizer = torch.optim.SGD(stage.submod.parameters(), lr=0.1)
        with gradcanary.watch(stage.submod, optimizer, url=collector.url, run="stage"):
            train(stage.submod, optimizer)
        (fact,) = collector.hellos[-1]["facts"]
        assert fact["code"] == "pipeline"
    finally:
        distributed.destroy_process_group()
        del stage


def test_wrappers_are_known_by_their_class_not_by_their_name() -> None:
    class DataParallel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(2, 2, bias=False)

    assert [name for name, _, _ in layers.named_parameters(DataParallel())] == ["module.weight"]
    assert [name for name, _, _ in layers.named_parameters(nn.DataParallel(DataParallel()))] == ["module.weight"]


def test_an_object_that_raises_when_it_is_asked_stops_no_search() -> None:
    """A dead weak proxy raises from ``isinstance``; one killed a job."""

    class Target:
        pass

    target = Target()
    proxy = weakref.proxy(target)
    holder = [proxy]
    del target
    with pytest.raises(ReferenceError):
        isinstance(holder[0], nn.Module)
    model = nn.Linear(2, 2)
    assert any(found is model for found in parameters.live_objects(nn.Module))


def test_the_first_step_makes_one_pass_over_all_objects(collector: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """It searches for modules, for a loop that drives the optimizer, and for a GradScaler."""
    scans = []
    objects = gc.get_objects
    monkeypatch.setattr(gc, "get_objects", lambda: scans.append(1) or objects())
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradcanary.watch(url=collector.url, run="scans"):
        scans.clear()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        assert len(scans) == 1
    assert collector.names == ["weight", "bias"]


def test_a_shared_search_keeps_no_object_alive() -> None:
    """Its list holds all objects of the process, and would be one of them."""
    model = nn.Linear(2, 2)
    reference = weakref.ref(model)
    gc.disable()
    try:
        with parameters.one_scan():
            assert any(found is model for found in parameters.live_objects(nn.Module))
            parameters.live_objects(torch.optim.Optimizer)
        del model
        assert reference() is None
    finally:
        gc.enable()


def test_a_search_wakes_no_lazy_module() -> None:
    """Frameworks hang modules into ``sys.modules`` whose attributes import or warn."""
    touched = []

    class Lazy(types.ModuleType):
        def __getattribute__(self, name: str) -> object:
            touched.append(name)
            return super().__getattribute__(name)

    lazy = Lazy("lazy")
    touched.clear()
    parameters.live_objects(nn.Module)
    assert touched == []
    assert lazy is not None


@given(
    st.lists(st.text(max_size=8) | st.sampled_from(["a", "a#2", "x" * 600, "x" * 500, "x" * 499 + "y"]), max_size=12)
)
def test_sent_names_are_unique_short_and_printable(names: list[str]) -> None:
    sent = layers.unique(names)
    assert len(sent) == len(set(sent)) == len(names)
    for name, given_name in zip(sent, names, strict=True):
        assert 0 < len(name) <= wire.MAX_NAME
        assert not re.search("[\x00-\x1f\x7f-\x9f\u2028\u2029]", name)
        name.encode()
        if given_name.isascii() and given_name.isprintable() and 0 < len(given_name) < 490:
            assert name == given_name or name.startswith(f"{given_name}#")


def test_layers_beyond_the_most_that_a_run_has_are_named_as_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(layers, "_MAX_LAYERS", 3)
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(4)])
    with recording() as recorded, gradcanary.watch(model, url=recorded.url, run="many"):
        train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    (fact,) = recorded.facts("too_many_layers")
    assert recorded.names == ["0.weight", "0.bias", "1.weight"]
    assert "has 8 parameters, and a run at most 3" in fact["text"]
    assert capsys.readouterr().err.count("the other 5 are not") == 1
