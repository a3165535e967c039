"""Loops of plain torch that are out of the ordinary: the numbers are right there, or the agent says what it lacks."""

import threading
from collections.abc import Iterator
from functools import partial

import pytest
import torch
from torch import nn

import gradcanary
from gradcanary import facts
from gradcanary.attach.resident import AttachedWatch
from gradcanary.hooks import backward
from gradcanary.settings import Settings
from gradcanary.tracking import recorder
from gradcanary.tracking.tracker import OptimizerTracker
from support.agent.fixtures import complaints
from support.agent.recorded import Recorded, recording
from support.agent.torch_loops import EXACT, Read, assert_identical, assert_sent, loss_of, mlp, reading, watching

STEPS, MICRO_STEPS = 5, 2


@pytest.fixture
def collector() -> Iterator[Recorded]:
    with recording() as recorded:
        yield recorded


@pytest.fixture
def silent(capsys: pytest.CaptureFixture[str]) -> Iterator[None]:
    """What goes wrong inside the agent is told on stderr, and only there."""
    yield
    assert complaints(capsys.readouterr().err) == ""


# -- torch.compile ---------------------------------------------------------------------------------------------------


@pytest.fixture
def recompiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The files of all functions that torch compiles, with repeats."""
    from torch._dynamo import convert_frame

    files: list[str] = []
    original = convert_frame._compile

    def compile_(code: object, *args: object, **kwargs: object) -> object:
        files.append(code.co_filename)
        return original(code, *args, **kwargs)

    monkeypatch.setattr(convert_frame, "_compile", compile_)
    torch._dynamo.reset()
    yield files
    torch._dynamo.reset()


def train_compiled(collector: Recorded, what: str, *, is_watched: bool) -> tuple[nn.Module, list[tuple[Read, Read]]]:
    torch._dynamo.reset()
    model, read = mlp(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    compiled = torch.compile(backend="aot_eager" if what == "model" else "eager")
    net = compiled(model) if what == "model" else model

    def accumulate(xs: torch.Tensor) -> None:
        for x in xs:
            net(x).square().mean().backward()

    def step() -> None:
        optimizer.step()

    def whole(xs: torch.Tensor) -> None:
        accumulate(xs)
        optimizer.step()
        optimizer.zero_grad()

    accumulate_ = compiled(accumulate) if what in ("accumulation", "autograd") else accumulate
    step_ = compiled(step) if what == "optimizer" else step
    whole_ = compiled(whole)
    with watching(collector, model, optimizer, is_watched=is_watched):
        for _ in range(STEPS):
            xs = torch.randn(MICRO_STEPS, 8, 16)
            if what == "whole":
                twin = mlp().double()
                twin.load_state_dict(model.state_dict())
                for x in xs:
                    twin(x.double()).square().mean().backward()
                read.append(reading(twin))
                whole_(xs)
                continue
            with torch._dynamo.utils.maybe_enable_compiled_autograd(what == "autograd", fullgraph=False):
                accumulate_(xs)
            read.append(reading(model))
            step_()
            optimizer.zero_grad()
    return model, read


TORCHS_OWN = pytest.mark.filterwarnings(
    "ignore:.*torch.jit.script_method.*:DeprecationWarning", "ignore:The .grad attribute of a Tensor that is not a leaf"
)


@pytest.mark.loop(
    "`torch.compile` of a model, or of a function with `backward()` in it",
    late="under compiled autograd",
    caveat="nothing of the agent is compiled",
)
@TORCHS_OWN
@pytest.mark.parametrize("what", ["model", "accumulation", "optimizer", "whole", "autograd"])
def test_compiled_training_has_the_same_values(collector: Recorded, recompiled: list[str], what: str) -> None:
    model, read = train_compiled(collector, what, is_watched=True)
    assert recompiled
    assert not [file for file in recompiled if "/gradcanary/" in file], "nothing of the agent is compiled"
    if what != "autograd":  # which takes seconds to compile
        assert_identical(model, train_compiled(collector, what, is_watched=False)[0])
    if what == "whole":  # its reference is no reading but a calculation of our own
        for stat, position in (("absmax", 0), ("norm", 1)):
            sent = collector.stat(stat)
            assert sent == {step: pytest.approx(read[step][position], rel=1e-5) for step in range(STEPS)}
    else:
        assert_sent(collector, read)
    assert collector.per_step("micro_steps") == [MICRO_STEPS] * STEPS
    assert set(collector.per_step("skipped")) == {0}
    assert collector.phases("norm") == {"post_clip" if what == "autograd" else "accumulated"}
    assert len(collector.metric("loss")) == STEPS
    told = [facts.COMPILED_STEP.code] if what in ("optimizer", "whole") else []
    assert [fact["code"] for fact in collector.hellos[-1]["facts"]] == told
    assert len(collector.metric("lr0")) == (0 if told else STEPS)


class Plain(torch.optim.Optimizer):
    """An optimizer whose step fits into one graph."""

    def __init__(self, parameters: object) -> None:
        super().__init__(parameters, {"lr": 0.1})

    def step(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.add_(parameter.grad, alpha=-0.1)


@pytest.mark.loop(
    "`torch.compile` of `optimizer.step`, or of a function with it",
    caveat="no `lr`, no clip, no `update_ratio`, no skips by a GradScaler, and it says so. With several optimizers "
    "nothing is measured, and it says so",
)
def test_a_step_that_must_be_one_graph_is_one(collector: Recorded) -> None:
    model, read = mlp(), []
    optimizer = Plain(model.parameters())
    torch._dynamo.reset()
    step = torch.compile(optimizer.step, backend="eager", fullgraph=True)
    with gradcanary.watch(model, optimizer, url=collector.url, run="fullgraph"):
        for _ in range(STEPS):
            loss_of(model).backward()
            read.append(reading(model))
            step()
            optimizer.zero_grad()
    assert_sent(collector, read)


@pytest.mark.loop("`torch.compile` of `optimizer.step`, or of a function with it")
@TORCHS_OWN
def test_compiled_steps_of_two_optimizers_are_not_told_apart(
    collector: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    model = mlp()
    optimizers = [torch.optim.SGD(model[layer].parameters(), lr=0.1) for layer in (0, 2)]
    torch._dynamo.reset()
    steps = [torch.compile(optimizer.step, backend="eager") for optimizer in optimizers]
    with gradcanary.watch(model, url=collector.url, run="two"):
        for _ in range(STEPS):
            loss_of(model).backward()
            for step in steps:
                step()
            model.zero_grad()
    assert collector.batches == []
    assert [fact["code"] for fact in collector.hellos[-1]["facts"]] == [facts.COMPILED_STEPS.code]
    assert capsys.readouterr().err.count(facts.COMPILED_STEPS.text) == 1


# -- gradients that are written to, or made, by hand -----------------------------------------------------------------


class Sign(torch.optim.Optimizer):
    """Overwrites gradients as it steps."""

    def __init__(self, parameters: object, *, in_place: bool) -> None:
        super().__init__(parameters, {"lr": 0.01})
        self.in_place = in_place

    @torch.no_grad()
    def step(self) -> None:
        for parameter in self.param_groups[0]["params"]:
            if self.in_place:
                parameter.grad.sign_()
            else:
                parameter.grad = parameter.grad.sign()
            parameter.add_(parameter.grad, alpha=-0.01)


@pytest.mark.loop("an optimizer that overwrites `.grad`")
@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("in_place", [True, False])
def test_an_optimizer_that_overwrites_gradients(collector: Recorded, in_place: bool, set_to_none: bool) -> None:
    def train(*, is_watched: bool) -> tuple[nn.Module, list[tuple[Read, Read]]]:
        model, read = mlp(), []
        optimizer = Sign(model.parameters(), in_place=in_place)
        with watching(collector, model, optimizer, is_watched=is_watched):
            for _ in range(STEPS):
                for _ in range(MICRO_STEPS):
                    loss_of(model).backward()
                read.append(reading(model))
                optimizer.step()
                optimizer.zero_grad(set_to_none=set_to_none)
        return model, read

    model, read = train(is_watched=True)
    assert_identical(model, train(is_watched=False)[0])
    assert_sent(collector, read)
    assert collector.per_step("micro_steps") == [MICRO_STEPS] * STEPS
    assert collector.per_step("clipped") == [0] * STEPS
    assert collector.phases("norm") == {"accumulated"}


@pytest.mark.loop(
    "fp32 master copies",
    late="of the copies, as the optimizer steps",
    names="the copies by their place, as `group0.1`",
    caveat="the optimizer given, or nothing: the copies; the model given: its own gradients, with the line of "
    "updates by hand. Both given do not belong together, and it says so",
)
@pytest.mark.parametrize("given", ["optimizer", "nothing", "model"])
def test_master_copies_that_get_their_gradients_by_hand(
    collector: Recorded, capsys: pytest.CaptureFixture[str], given: str
) -> None:
    """No hook fires on a copy: it is read as its optimizer steps. Given the model, its own gradients are followed."""
    model, read = mlp().bfloat16(), []
    masters = [each.detach().clone().float().requires_grad_() for each in model.parameters()]
    optimizer = torch.optim.AdamW(masters, lr=1e-3)
    words = {"optimizer": {"optimizer": optimizer}, "nothing": {}, "model": {"model": model}}[given]
    with gradcanary.watch(url=collector.url, run="masters", **words):
        for _ in range(STEPS):
            for _ in range(MICRO_STEPS):
                loss_of(model, torch.bfloat16).backward()
            for parameter, master in zip(model.parameters(), masters, strict=True):
                master.grad = parameter.grad.float()
            read.append(reading(model))
            optimizer.step()
            with torch.no_grad():
                for parameter, master in zip(model.parameters(), masters, strict=True):
                    parameter.copy_(master)
            if given == "model":
                gradcanary.step()
            optimizer.zero_grad()
            model.zero_grad()
    err = capsys.readouterr().err
    if given == "model":
        assert_sent(collector, read)
        assert collector.phases("norm") == {"accumulated"}
        assert set(collector.stored().values()) == {"bfloat16"}
    else:
        places = {name: f"group0.{place}" for place, (name, _) in enumerate(model.named_parameters())}
        named = [tuple({places[name]: value for name, value in stat.items()} for stat in each) for each in read]
        assert_sent(collector, named)
        assert collector.phases("norm") == {"post_clip"}
        assert set(collector.stored().values()) == {"float32"}
    assert complaints(err) == ""
    assert set(collector.per_step("skipped")) == {0}
    assert set(collector.per_step("micro_steps")) == {MICRO_STEPS}


def update(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter -= 0.1 * parameter.grad


@pytest.mark.loop(
    "updates by hand, without an optimizer",
    late="windows shorter than the one before",
    k="right, with the model given",
    caveat="with `watch(model)`, and [`gradcanary.step()`](python-api.md#step) after each update; without that call "
    "nothing is measured, and it says so on stderr and with the session, after 64 backward passes and at the end",
)
@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("is_last_cleared", [True, False])
def test_a_loop_without_an_optimizer_with_the_model_given(
    collector: Recorded, is_last_cleared: bool, set_to_none: bool
) -> None:
    counts = [2, 3, 2, 2, 3]

    def train(*, is_watched: bool) -> tuple[nn.Module, list[tuple[Read, Read]], list[float]]:
        model, read, losses = mlp(), [], []
        with watching(collector, model, is_watched=is_watched):
            for step, micro_steps in enumerate(counts):
                losses.append(0.0)
                for _ in range(micro_steps):
                    loss = loss_of(model)
                    losses[-1] += float(loss.detach())
                    loss.backward()
                read.append(reading(model))
                update(model)
                gradcanary.step()
                if is_last_cleared or step < len(counts) - 1:
                    model.zero_grad(set_to_none=set_to_none)
        return model, read, losses

    model, read, losses = train(is_watched=True)
    assert_identical(model, train(is_watched=False)[0])
    assert_sent(collector, read)
    assert collector.per_step("micro_steps") == counts
    assert set(collector.per_step("skipped")) == {0}
    assert collector.metric("loss") == pytest.approx(dict(enumerate(losses)), rel=1e-6)
    shorter = {2: "post_clip"}
    assert collector.phase_of("norm") == {step: shorter.get(step, "accumulated") for step in range(len(counts))}
    assert collector.hellos[-1]["facts"] == []


@pytest.mark.loop("updates by hand, without an optimizer")
@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("changes", ["clears", "clips"])
def test_gradients_changed_before_a_manual_step_are_not_measured(collector: Recorded, changes: str) -> None:
    """Of a short window, which cannot be read earlier; nothing takes the rest of a gradient for a gradient."""
    model, read = mlp(), []
    with gradcanary.watch(model, url=collector.url, run="loop") as watched:
        for micro_steps in (2, 1, 2):
            for _ in range(micro_steps):
                loss_of(model).backward()
            read.append(reading(model)[1])
            if changes == "clips":
                nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            update(model)
            if changes == "clears":
                model.zero_grad(set_to_none=False)
            watched.step()
            model.zero_grad(set_to_none=False)
    assert collector.per_step("micro_steps") == [2, 1, 2]
    assert set(collector.states()[1].values()) == {"partial"}
    assert {step: collector.stat("norm")[step] for step in (0, 2)} == {
        step: pytest.approx(read[step], rel=EXACT) for step in (0, 2)
    }
    assert collector.metric("clip_factor") == {}


@pytest.mark.loop("updates by hand, without an optimizer")
@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_that_are_cleared_without_a_step_by_hand_are_of_no_window(
    collector: Recorded, set_to_none: bool
) -> None:
    """As in a loop that leaves a bad batch out; cleared in place this shows once the loop has cleared before."""
    model, read = mlp(), []
    with gradcanary.watch(model, url=collector.url, run="loop"):
        for step in range(STEPS):
            for _ in range(2 if step == 2 else 1):
                model.zero_grad(set_to_none=set_to_none)
                for _ in range(MICRO_STEPS):
                    loss_of(model).backward()
            read.append(reading(model))
            update(model)
            gradcanary.step()
    assert_sent(collector, read)
    assert collector.per_step("micro_steps") == [MICRO_STEPS] * STEPS
    assert set(collector.per_step("skipped")) == {0}


@pytest.mark.usefixtures("silent")
def test_steps_by_hand_beside_an_optimizer_do_nothing(collector: Recorded) -> None:
    """It may come with the first step, so that the watch does not know it before."""
    gradcanary.step()
    model, read = mlp(), []
    watched = gradcanary.watch(model, url=collector.url, run="loop")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watched:
        for _ in range(STEPS):
            for _ in range(MICRO_STEPS):
                loss_of(model).backward()
            read.append(reading(model))
            optimizer.step()
            gradcanary.step()
            optimizer.zero_grad()
            watched.step()
    watched.step()
    gradcanary.step()
    assert_sent(collector, read)
    assert collector.per_step("micro_steps") == [MICRO_STEPS] * STEPS


def test_a_step_by_hand_that_fails_inside_does_not_raise(
    collector: Recorded, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = mlp()
    with gradcanary.watch(model, url=collector.url, run="loop") as watched:
        loss_of(model).backward()
        with monkeypatch.context() as patched:
            patched.setattr(watched._session.recorder, "step_by_hand", lambda: 1 / 0)
            gradcanary.step()
        gradcanary.step()
        assert watched._session.guard.caught == 1
        watched._session.guard.caught = 0
    assert collector.steps() == [0]
    assert "noting a step by hand failed" in caplog.text


@pytest.mark.loop("updates by hand, without an optimizer")
@pytest.mark.parametrize("passes", [recorder.PASSES_WITHOUT_STEP + 10, 3])
def test_a_loop_without_an_optimizer_or_steps_by_hand_is_reported(
    collector: Recorded, capsys: pytest.CaptureFixture[str], passes: int
) -> None:
    """While it runs and at the end; nothing is measured in it."""
    model, line = mlp(), f"gradcanary: {facts.NO_STEP.text}\n"
    with gradcanary.watch(model, url=collector.url, run="loop"):
        for number in range(1, passes + 1):
            loss_of(model).backward()
            assert capsys.readouterr().err == line * (number == recorder.PASSES_WITHOUT_STEP)
            update(model)
            model.zero_grad()
    is_long = passes > recorder.PASSES_WITHOUT_STEP
    assert capsys.readouterr().err == (f"gradcanary: {facts.STILL_NO_STEP}\n" if is_long else line)
    assert [fact["code"] for fact in collector.hellos[-1]["facts"]] == [facts.NO_STEP.code]
    assert collector.steps() == []


def test_a_step_takes_the_report_back(collector: Recorded, capsys: pytest.CaptureFixture[str]) -> None:
    """A loop whose first window is long, and that has no optimizer."""
    model = mlp()
    with gradcanary.watch(model, url=collector.url, run="loop"):
        for _ in range(recorder.PASSES_WITHOUT_STEP):
            loss_of(model).backward()
        update(model)
        gradcanary.step()
    assert capsys.readouterr().err == f"gradcanary: {facts.NO_STEP.text}\n"
    assert collector.hellos[-1]["facts"] == []
    assert collector.per_step("micro_steps") == [recorder.PASSES_WITHOUT_STEP]


def test_a_loop_without_an_optimizer_that_is_joined_is_reported(
    collector: Recorded, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by ``gradcanary attach``, which looks away until the first step; not where it ends before there may be one."""
    monkeypatch.setattr("gradcanary.tracking.optimizers.live_objects", lambda _kind: [])
    monkeypatch.setattr("gradcanary.identity._default_run", None)
    for passes in (recorder.PASSES_WITHOUT_STEP, 3):
        model, watch = mlp(), AttachedWatch(Settings.resolve({}, url=collector.url), "late")
        watch.begin()
        for _ in range(passes):
            loss_of(model).backward()
        said = facts.NO_STEP.text in [fact.text for fact in watch._session.recorder.facts]
        watch.detach(1.0)
        assert said == (passes == recorder.PASSES_WITHOUT_STEP)
        assert capsys.readouterr().err.count(facts.NO_STEP.text) == said


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("is_given", [True, False], ids=["model given", "nothing given"])
def test_a_first_window_of_a_thousand_micro_steps_is_none(collector: Recorded, is_given: bool) -> None:
    model = nn.ParameterDict({"weight": torch.ones(3)})
    weight = model["weight"]
    given = [model] if is_given else []
    with gradcanary.watch(*given, url=collector.url, run="long-windows"):
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(2):
            for _ in range(1024):
                weight.sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert collector.per_step("micro_steps") == [1024] * 2
    assert not collector.facts(facts.NO_STEP.code)


# -- GradScaler, kinds of parameters ---------------------------------------------------------------------------------


@pytest.mark.loop("`GradScaler`: plain, foreach and fused optimizers, overflows")
@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("unscales", [True, False])
def test_a_scaler_with_a_foreach_optimizer(collector: Recorded, unscales: bool) -> None:
    def train(*, is_watched: bool) -> tuple[nn.Module, list[tuple[Read, Read]], list[float]]:
        model, read, scales = mlp(), [], []
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**13, growth_interval=2)
        with watching(collector, model, optimizer, is_watched=is_watched):
            for step in range(STEPS):
                scales.append(scaler.get_scale())
                for _ in range(MICRO_STEPS):
                    loss = loss_of(model) * (float("inf") if step == 3 else 1.0)
                    scaler.scale(loss).backward()
                absmax, norm = reading(model)
                read.append(tuple({n: v / scales[-1] for n, v in stat.items()} for stat in (absmax, norm)))
                if unscales:
                    scaler.unscale_(optimizer)
                    nn.utils.clip_grad_norm_(model.parameters(), 0.01)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        return model, read, scales

    model, read, scales = train(is_watched=True)
    assert_identical(model, train(is_watched=False)[0])
    assert collector.steps() == list(range(STEPS))
    assert collector.per_step("skipped") == [0, 0, 0, 1, 0]
    assert collector.per_step("micro_steps") == [MICRO_STEPS] * STEPS
    assert collector.per_step("clipped") == [int(unscales)] * 3 + [0, int(unscales)]
    for step in (0, 1, 2, 4):
        assert collector.stat("norm")[step] == pytest.approx(read[step][1], rel=EXACT)
        assert collector.stat("absmax")[step] == pytest.approx(read[step][0], rel=EXACT)
    assert set(collector.states()[3].values()) == {"nonfinite"}
    assert collector.metric("scaler_scale") == dict(enumerate(scales))


@pytest.mark.loop("parameters that are unused, frozen, unfrozen, empty or meta")
@pytest.mark.usefixtures("silent")
def test_empty_and_meta_parameters_are_left_out(collector: Recorded) -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"used": nn.Linear(4, 4), "there": nn.Linear(4, 4, device="meta")})
    model.register_parameter("empty", nn.Parameter(torch.empty(0, 4)))
    optimizer = torch.optim.SGD([*model["used"].parameters(), model.empty], lr=0.1)
    read = []
    with gradcanary.watch(model, optimizer, url=collector.url, run="kinds"):
        for _ in range(STEPS):
            (model["used"](torch.randn(2, 4)).square().mean() + model.empty.sum()).backward()
            assert model.empty.grad is not None
            read.append(reading(model["used"]))
            optimizer.step()
            optimizer.zero_grad()
    assert collector.names == ["used.weight", "used.bias"]
    named = [tuple({f"used.{name}": value for name, value in stat.items()} for stat in each) for each in read]
    assert_sent(collector, named)


class Scaled(nn.Module):
    """Has parameters of three dtypes, one of which torch cannot take a norm of."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.low = mlp(), nn.Linear(4, 4, dtype=torch.bfloat16)
        self.scale = nn.Parameter(torch.ones(4).to(torch.float8_e4m3fn))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.low(self.body(x).bfloat16()).float() * self.scale.float()


@pytest.mark.loop(
    "parameters of several devices, and float8",
    caveat="measured by device and dtype, verified on the CPU; layers of one that fails are `partial`, it is counted "
    "and logged once, and there is no total norm",
)
@pytest.mark.parametrize("is_given", [True, False])
def test_a_dtype_that_cannot_be_measured_takes_no_other_along(
    collector: Recorded, caplog: pytest.LogCaptureFixture, is_given: bool
) -> None:
    model = Scaled()
    others = [parameter for name, parameter in model.named_parameters() if name != "scale"]
    optimizer = torch.optim.SGD(others, lr=0.1)
    read = []
    with gradcanary.watch(model, *([optimizer] if is_given else []), url=collector.url, run="kinds") as watched:
        for _ in range(STEPS):
            loss_of(model).backward()
            read.append({name: value for name, value in reading(model)[1].items() if name != "scale"})
            nn.utils.clip_grad_norm_(others, 1e-3)
            optimizer.step()
            model.zero_grad()
    assert [record.getMessage() for record in caplog.records] == [
        "gradcanary: measuring float8_e4m3fn on cpu failed; the training goes on without it"
    ]
    assert watched._session.guard.caught == STEPS
    for step, states in collector.states().items():
        assert states == {**dict.fromkeys(read[step], "measured"), "scale": "partial"}
        sent = {name: value for name, value in collector.stat("norm")[step].items() if name != "scale"}
        assert sent == pytest.approx(read[step], rel=EXACT)
    assert collector.steps() == list(range(STEPS))
    assert collector.metric("total_norm") == {}
    assert len(collector.metric("lr0")) == STEPS


@pytest.mark.loop("parameters that are unused, frozen, unfrozen, empty or meta")
@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("set_to_none", [True, False])
def test_layers_that_are_frozen_and_unfrozen_in_between(collector: Recorded, set_to_none: bool) -> None:
    model, read = mlp(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradcanary.watch(model, optimizer, url=collector.url, run="frozen"):
        for step in range(6):
            model[0].requires_grad_(requires_grad=step not in (2, 3))
            for _ in range(MICRO_STEPS):
                loss_of(model).backward()
            read.append(reading(model))
            optimizer.step()
            optimizer.zero_grad(set_to_none=set_to_none)
    assert collector.per_step("micro_steps") == [MICRO_STEPS] * 6
    for step, states in collector.states().items():
        first = "not_trainable" if step in (2, 3) else "measured"
        assert states == {"0.weight": first, "0.bias": first, "2.weight": "measured", "2.bias": "measured"}
        sent = {name: value for name, value in collector.stat("norm")[step].items() if states[name] == "measured"}
        assert sent == pytest.approx({name: read[step][1][name] for name in sent}, rel=EXACT)


@pytest.mark.loop(
    "norms out of float32's squares (1e-30, 1e30), the ends of float16",
    caveat="summed in float64 from the second sample outside of 1e-12 to 1e12 on. In the first ones after a jump the "
    "absmax stands for a norm that is too small, float32's largest number for one too large",
)
@pytest.mark.usefixtures("silent")
def test_norms_that_float32_sums_of_squares_do_not_hold(collector: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """They come from normal ones as a decay does: what leaves the safe range is measured in float64 from then on."""
    monkeypatch.setattr("gradcanary.export.sender.FLUSH_S", 0.02)
    kinds = [(dtype, size) for dtype in (torch.float32, torch.bfloat16) for size in (1e-30, 1e30)]
    layers = {f"{dtype}-{size}".replace(".", "-"): nn.Parameter(torch.ones(64, dtype=dtype)) for dtype, size in kinds}
    model, sizes, read = nn.ParameterDict(layers), dict(zip(layers, (size for _, size in kinds), strict=True)), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with gradcanary.watch(model, optimizer, url=collector.url, run="extreme") as watched:
        for step, power in enumerate((0, 0.5, 0.5, 1, 1)):
            for name, weight in layers.items():
                weight.backward((torch.linspace(0.5, 1.0, 64) * sizes[name] ** power).to(weight.dtype))
            read.append(reading(model))
            optimizer.step()
            optimizer.zero_grad()
            wait_until_read(watched, step)
    assert_sent(collector, read)
    assert {state for states in collector.states().values() for state in states.values()} == {"measured"}


@pytest.mark.loop("norms out of float32's squares (1e-30, 1e30), the ends of float16")
@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("size", [2.0**-24, 65504.0])
def test_the_smallest_and_the_largest_float16(collector: Recorded, size: float) -> None:
    weight = nn.Parameter(torch.ones(64, dtype=torch.float16))
    optimizer, read = torch.optim.SGD([("weight", weight)], lr=0.0), []
    with gradcanary.watch(optimizer=optimizer, url=collector.url, run="float16"):
        for _ in range(2):
            weight.backward(torch.full_like(weight, size))
            gradient = weight.grad.double()
            read.append(({"weight": float(gradient.abs().max())}, {"weight": float(gradient.norm())}))
            optimizer.step()
            optimizer.zero_grad()
    assert_sent(collector, read)


def wait_until_read(watched: gradcanary.Watch, step: int) -> None:
    """Let the sender, who decides how the next samples are measured, see the windows before ``step``."""
    sender = watched._session.sender
    for _ in range(200):
        if (sender._step if sender._step is not None else -1) >= step - 1:
            return
        sender._stopping.wait(0.01)
    raise AssertionError("the sender does not read")


@pytest.mark.loop("sparse embeddings", caveat="verified on the CPU; `partial` elsewhere")
@pytest.mark.usefixtures("silent")
def test_a_sparse_embedding(collector: Recorded) -> None:
    """Rows that were looked up twice are added up first, and the gradient itself stays as it is."""

    def train(*, is_watched: bool) -> tuple[nn.Module, list[tuple[Read, Read]]]:
        torch.manual_seed(0)
        model, read = nn.Embedding(10, 4, sparse=True), []
        optimizer = torch.optim.SparseAdam(model.parameters(), lr=0.1)
        with watching(collector, model, optimizer, is_watched=is_watched):
            for _ in range(STEPS):
                for _ in range(MICRO_STEPS):
                    model(torch.tensor([1, 2, 2, 7])).square().sum().backward()
                assert not model.weight.grad.is_coalesced()
                read.append(reading(model))
                optimizer.step()
                optimizer.zero_grad()
        return model, read

    model, read = train(is_watched=True)
    assert_identical(model, train(is_watched=False)[0])
    assert_sent(collector, read)
    assert collector.per_step("micro_steps") == [MICRO_STEPS] * STEPS
    assert set(collector.states()[0].values()) == {"measured"}
    assert collector.stat("zero_fraction")[0] == {"weight": pytest.approx(0.7)}


def test_a_pass_whose_hooks_run_in_several_threads_begins_one_window(
    collector: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch has a thread for each GPU: the hook of one comes while that of another still begins the window."""
    ended = recorder.Recorder.on_window_end
    others: list[threading.Thread] = []

    def accumulate(position: int) -> None:
        tracker.accumulated(position, partial(tracker.pass_begins, position), lambda: None)

    def end_slowly(self: recorder.Recorder, tracker: OptimizerTracker) -> None:
        if not others:
            others.append(threading.Thread(target=accumulate, args=(1,)))
            others[0].start()
            others[0].join(0.2)
        ended(self, tracker)

    monkeypatch.setattr(recorder.Recorder, "on_window_end", end_slowly)
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradcanary.watch(model, optimizer, url=collector.url, run="threads") as watched:
        (tracker,) = watched._session.recorder.trackers
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        with monkeypatch.context() as patched:
            patched.setattr(backward, "graph_task_id", lambda: 2**40)
            patched.setattr(backward, "queue_end_of_backward", lambda _: None)
            accumulate(0)
            others[0].join()
        assert tracker.window.counts == [1, 1]
