"""What is sent is what float64 says of the gradients, at the right step, with the right K and state."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest
import torch
from torch import nn

import gradcanary
from gradcanary.hooks import backward
from support.agent.recorded import Recorded
from support.agent.torch_loops import mlp

EXACT = 1e-6
"""Relative: a float32 of the same elements, summed in another order."""


@dataclass
class Reference:
    """Our own plain reading of ``.grad`` in float64, per window and layer name."""

    model: nn.Module
    absmax: list[dict[str, float]] = field(default_factory=list)
    norm: list[dict[str, float]] = field(default_factory=list)

    def read(self, scale: float = 1.0) -> None:
        gradients = {n: p.grad.double() / scale for n, p in self.model.named_parameters() if p.grad is not None}
        self.absmax.append({name: float(each.abs().max()) for name, each in gradients.items()})
        self.norm.append({name: float(each.square().sum().sqrt()) for name, each in gradients.items()})

    def assert_sent(self, recorded: Recorded, steps: Iterable[int] | None = None) -> None:
        """Compare with the given steps of what was sent, all of them where none are given."""
        absmax, norm = recorded.stat("absmax"), recorded.stat("norm")
        chosen = list(range(len(self.absmax)) if steps is None else steps)
        assert chosen
        assert steps is not None or sorted(absmax) == sorted(norm) == chosen
        for step in chosen:
            assert absmax[step] == pytest.approx(self.absmax[step], rel=EXACT, abs=0), step
            assert norm[step] == pytest.approx(self.norm[step], rel=EXACT, abs=0), step


def loss_of(model: nn.Module) -> torch.Tensor:
    return model(torch.randn(8, 16)).float().square().mean()


@pytest.mark.loop(
    "plain, and accumulation over K micro-steps",
    late="short last windows, and the first one where `watch()` was given nothing",
    caveat="a step's loss is the sum over its micro-steps, as gradients are",
)
@pytest.mark.parametrize(("micro_steps", "total"), [(1, 6), (4, 16), (8, 24), (4, 10)])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_accumulated_gradients_are_those_of_float64(
    collector: Recorded, micro_steps: int, total: int, set_to_none: bool
) -> None:
    """A step comes after each K micro-steps, and after the last one, as frameworks do at the end of an epoch."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    reference, losses, pending, counts = Reference(model), [], 0, []
    with gradcanary.watch(model, optimizer, url=collector.url, run="accumulated"):
        for micro_step in range(total):
            loss = loss_of(model)
            loss.backward()
            losses.append(float(loss.detach()))
            pending += 1
            if pending == micro_steps or micro_step == total - 1:
                reference.read()
                optimizer.step()
                optimizer.zero_grad(set_to_none=set_to_none)
                counts.append(pending)
                pending = 0
    reference.assert_sent(collector)
    assert collector.steps() == list(range(len(counts)))
    assert collector.per_step("micro_steps") == counts
    assert set(collector.per_step("skipped")) == {0}
    # The sample of a short last window cannot be taken before its step says that it is over.
    assert collector.phases("absmax") == (
        {"accumulated"} if counts[-1] == micro_steps else {"accumulated", "post_clip"}
    )
    starts = [sum(counts[:step]) for step in range(len(counts))]
    sums = {step: sum(losses[start : start + counts[step]]) for step, start in enumerate(starts)}
    assert collector.metric("loss") == pytest.approx(sums, rel=1e-9)
    norms = [math.sqrt(sum(norm**2 for norm in norms.values())) for norms in reference.norm]
    for step, total_norm in collector.metric("total_norm").items():
        assert total_norm == pytest.approx(norms[step], rel=EXACT)


@pytest.mark.loop("bf16 autocast", caveat="gradients are those of the float32 parameters")
def test_bf16_autocast_leaves_float32_accumulators(collector: Recorded) -> None:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters())
    reference = Reference(model)
    with gradcanary.watch(model, optimizer, url=collector.url, run="autocast"):
        for _ in range(4):
            for _ in range(4):
                with torch.autocast("cpu", torch.bfloat16):
                    loss = loss_of(model)
                loss.backward()
            reference.read()
            optimizer.step()
            optimizer.zero_grad()
    reference.assert_sent(collector)
    assert collector.stored() == dict.fromkeys(collector.names, "float32")


@pytest.mark.loop("bf16 autocast")
def test_a_backward_pass_inside_of_autocast_has_all_its_numbers(collector: Recorded) -> None:
    """There torch refuses to stack numbers of float16 on a CPU."""
    model = mlp().half()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    reference = Reference(model)
    with gradcanary.watch(model, optimizer, url=collector.url, run="inside") as watch:
        for _ in range(4):
            with torch.autocast("cpu", torch.bfloat16):
                for _ in range(2):
                    loss_of(model).backward()
                    assert torch.is_autocast_enabled("cpu")
            reference.read()
            optimizer.step()
            optimizer.zero_grad()
    assert watch._session.guard.caught == 0
    assert set(collector.stored().values()) == {"float16"}
    reference.assert_sent(collector)


@pytest.mark.loop(
    "bfloat16, float16, float64 and complex parameters", caveat="complex ones by their real and imaginary parts"
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_parameters_of_other_dtypes(collector: Recorded, dtype: torch.dtype) -> None:
    model = mlp().to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    reference = Reference(model)
    with gradcanary.watch(model, optimizer, url=collector.url, run="dtypes"):
        for _ in range(3):
            for _ in range(4):
                model(torch.randn(8, 16, dtype=dtype)).float().square().mean().backward()
            reference.read()
            optimizer.step()
            optimizer.zero_grad()
    reference.assert_sent(collector)
    name = str(dtype).removeprefix("torch.")
    assert collector.stored() == dict.fromkeys(collector.names, name)
    assert {layer["param_dtype"] for layer in collector.layers} == {name}


@pytest.mark.loop("bfloat16, float16, float64 and complex parameters")
def test_complex_is_measured_by_its_parts(collector: Recorded) -> None:
    torch.manual_seed(0)
    model = nn.ParameterDict({"phase": torch.randn(4, dtype=torch.complex64)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradcanary.watch(model, optimizer, url=collector.url, run="kinds"):
        model["phase"].abs().square().sum().backward()
        parts = torch.view_as_real(model["phase"].grad).double()
        optimizer.step()
    assert collector.states()[0] == {"phase": "measured"}
    assert collector.stat("norm")[0]["phase"] == pytest.approx(float(parts.square().sum().sqrt()), rel=EXACT)
    assert collector.stat("absmax")[0]["phase"] == pytest.approx(float(parts.abs().max()), rel=EXACT)


@pytest.mark.loop(
    "`GradScaler`: plain, foreach and fused optimizers, overflows",
    caveat="values and loss are unscaled; a step that was skipped counts, and says so; verified on the CPU",
)
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("micro_steps", [1, 4])
def test_grad_scaler_values_are_unscaled_and_overflows_are_skipped(
    collector: Recorded, fused: bool, micro_steps: int
) -> None:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**13, growth_interval=3)
    reference, losses, scales, overflows = Reference(model), [], [], {2, 3, 6}
    with gradcanary.watch(model, optimizer, url=collector.url, run="scaler"):
        for step in range(9):
            scale, losses = scaler.get_scale(), [*losses, 0.0]
            scales.append(scale)
            for micro_step in range(micro_steps):
                loss = loss_of(model)
                losses[-1] += float(loss.detach())
                factor = math.inf if step in overflows and micro_step == 0 else 1.0
                handle = model[0].weight.register_hook(lambda gradient, factor=factor: gradient * factor)
                scaler.scale(loss).backward()
                handle.remove()
            reference.read(scale)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    good = [step for step in range(9) if step not in overflows]
    assert collector.steps() == list(range(9))
    assert collector.per_step("skipped") == [int(step in overflows) for step in range(9)]
    assert collector.per_step("micro_steps") == [micro_steps] * 9
    reference.assert_sent(collector, good)
    assert [collector.states()[step]["0.weight"] == "nonfinite" for step in range(9)] == [
        s in overflows for s in range(9)
    ]
    assert collector.metric("loss") == pytest.approx(dict(enumerate(losses)), rel=EXACT)
    assert collector.metric("scaler_scale") == pytest.approx(dict(enumerate(scales)))
    assert collector.metric("skipped_total")[8] == 3


@pytest.mark.loop("`GradScaler`: plain, foreach and fused optimizers, overflows")
def test_overflows_before_the_first_step_with_gradients_cleared_in_place(collector: Recorded) -> None:
    """The scale begins too high as a rule; only the scaler's update tells these windows apart."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**13)
    with gradcanary.watch(model, optimizer, url=collector.url, run="early"):
        for step in range(4):
            for _ in range(2):
                factor = math.inf if step < 2 else 1.0
                handle = model[0].weight.register_hook(lambda gradient, factor=factor: gradient * factor)
                scaler.scale(loss_of(model)).backward()
                handle.remove()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=False)
    assert collector.per_step("skipped") == [1, 1, 0, 0]
    assert collector.per_step("micro_steps") == [2, 2, 2, 2]


def test_a_scale_that_grows_after_the_step_is_not_that_of_its_gradients(collector: Recorded) -> None:
    """A scaler writes the next scale to the tensor that a fused optimizer has the present one from."""
    torch.manual_seed(0)
    model, read = nn.Linear(6, 4), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1)
    with gradcanary.watch(url=collector.url, run="grows"):  # of its first window the step reads the gradients
        for _ in range(3):
            scaler.scale(model(torch.randn(8, 6)).square().mean()).backward()
            read.append(float(model.weight.grad.norm()) / scaler.get_scale())
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    sent = {step: norms["weight"] for step, norms in collector.stat("norm").items()}
    assert sent == {step: pytest.approx(norm) for step, norm in enumerate(read)}


@pytest.mark.loop("`GradScaler`: plain, foreach and fused optimizers, overflows")
def test_a_scaler_of_an_earlier_training_scales_nothing(collector: Recorded) -> None:
    """In a notebook the last cell's scaler is alive while this one trains without."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    earlier = mlp()
    train_with_scaler(earlier, scaler, torch.optim.SGD(earlier.parameters(), lr=0.1))
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    reference, losses = Reference(model), {}
    with gradcanary.watch(model, optimizer, url=collector.url, run="leftover"):
        for step in range(3):
            loss = loss_of(model)
            losses[step] = float(loss.detach())
            loss.backward()
            reference.read()
            optimizer.step()
            optimizer.zero_grad()
    assert scaler.get_scale() == 2.0**16
    reference.assert_sent(collector)
    assert collector.metric("loss") == pytest.approx(losses, rel=EXACT)
    assert collector.metric("scaler_scale") == {}


@pytest.mark.loop("`GradScaler`: plain, foreach and fused optimizers, overflows")
def test_a_scaler_that_steps_a_wrapper_of_the_optimizer_is_ours(collector: Recorded) -> None:
    class Wrapper:
        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer, self.param_groups, self.step = optimizer, optimizer.param_groups, optimizer.step

    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    with gradcanary.watch(model, optimizer, url=collector.url, run="wrapped"):
        largest = train_with_scaler(model, scaler, optimizer, Wrapper(optimizer))
    assert [each["0.weight"] for each in collector.stat("absmax").values()] == pytest.approx(largest, rel=EXACT)


@pytest.mark.loop("`GradScaler`: plain, foreach and fused optimizers, overflows")
def test_scaler_among_several_is_found_at_the_first_step(collector: Recorded) -> None:
    """Until then nothing is sent that carries a scale that is not known: the first window overflows."""
    earlier, other = mlp(), torch.amp.GradScaler("cpu", init_scale=2.0**4)
    train_with_scaler(earlier, other, torch.optim.SGD(earlier.parameters(), lr=0.1))
    model, read, losses = mlp(), [], []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    scaler.scale(torch.ones(()))
    with gradcanary.watch(model, optimizer, url=collector.url, run="several"):
        for step in range(4):
            loss = loss_of(model) * (float("inf") if step == 0 else 1.0)
            losses.append(float(loss.detach()))
            scaler.scale(loss).backward()
            read.append(float(model[0].weight.grad.norm()) / scaler.get_scale())
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    sent = {step: norms["0.weight"] for step, norms in collector.stat("norm").items() if step > 0}
    assert sent == {step: pytest.approx(read[step], rel=EXACT) for step in range(1, 4)}
    assert {states["0.weight"] for states in collector.states().values()} == {"measured", "partial"}
    assert collector.states()[0]["0.weight"] == "partial"
    assert collector.metric("loss") == {step: pytest.approx(losses[step], rel=EXACT) for step in range(1, 4)}


def train_with_scaler(
    model: nn.Module, scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer, stepped: object = None
) -> list[float]:
    """Make three steps; return the unscaled absmax of the first weight."""
    largest = []
    for _ in range(3):
        scaler.scale(loss_of(model)).backward()
        largest.append(float(model[0].weight.grad.double().abs().max()) / scaler.get_scale())
        scaler.step(optimizer if stepped is None else stepped)
        scaler.update()
        optimizer.zero_grad()
    return largest


@pytest.mark.loop(
    "parameters that are unused, frozen, unfrozen, empty or meta",
    caveat="a state instead of a value; empty and meta ones are no layers",
)
def test_an_unused_a_frozen_and_a_zero_layer(collector: Recorded) -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({name: nn.Linear(16, 16, bias=False) for name in ("used", "unused", "frozen", "zero")})
    model["frozen"].requires_grad_(requires_grad=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradcanary.watch(model, optimizer, url=collector.url, run="states"):
        for _ in range(5):
            for _ in range(2):
                x = model["frozen"](model["used"](torch.randn(4, 16)))
                (x.square().mean() + 0 * model["zero"](x.detach()).sum()).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)  # the unused one has no tensor to clear
    expected = {
        "used.weight": "measured",
        "unused.weight": "no_gradient",
        "frozen.weight": "not_trainable",
        "zero.weight": "zero",
    }
    assert collector.states() == dict.fromkeys(range(5), expected)
    for step in range(5):
        for stat in ("absmax", "norm"):
            values = collector.stat(stat)[step]
            assert values["zero.weight"] == 0
            assert math.isnan(values["unused.weight"])
            assert math.isnan(values["frozen.weight"])
            assert values["used.weight"] > 0


@pytest.mark.loop(
    "`zero_grad(set_to_none=False)`", caveat="the zeros that it leaves to an unused layer are `no_gradient`"
)
def test_zeros_left_by_zero_grad_are_no_gradient(collector: Recorded) -> None:
    """The tensor that ``set_to_none=False`` keeps is not a gradient of this window."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"always": nn.Linear(16, 16), "once": nn.Linear(16, 16)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradcanary.watch(model, optimizer, url=collector.url, run="kept"):
        for step in range(4):
            x = model["always"](torch.randn(4, 16))
            (model["once"](x) if step == 0 else x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            assert model["once"].weight.grad is not None
    states = collector.states()
    assert [states[step]["once.weight"] for step in range(4)] == ["measured", *["no_gradient"] * 3]
    assert {states[step]["always.weight"] for step in range(4)} == {"measured"}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_nonfinite_gradient_is_named_and_then_counted(collector: Recorded, bad: float) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with gradcanary.watch(model, optimizer, url=collector.url, run="nonfinite") as watched:
        for step in range(4):
            factor = torch.tensor([1, bad, 1, bad])
            handle = model[2].bias.register_hook(lambda gradient, factor=factor: gradient * factor)
            loss_of(model).backward()
            handle.remove()
            model[2].bias.grad.zero_()  # the training itself survives
            optimizer.step()
            optimizer.zero_grad()
            _wait_until_read(watched, step)
    states, counts = collector.states(), collector.stat("nonfinite")
    sent = [step for step in collector.steps() if "2.bias" in counts.get(step, {})]
    assert len(sent) >= 4
    for step in sent:
        assert states[step] == {**dict.fromkeys(collector.names, "measured"), "2.bias": "nonfinite"}
        assert math.isnan(collector.stat("absmax")[step]["2.bias"])
        assert math.isnan(collector.stat("norm")[step]["2.bias"])
        assert set(counts[step]) == {"2.bias"}
    assert counts[sent[0]]["2.bias"] == 1  # known to be there, counted from the next sample on
    assert counts[sent[-1]]["2.bias"] == 2


def _wait_until_read(watched: gradcanary.Watch, step: int) -> None:
    """Let the sender, who decides what is counted next, see the windows before ``step``."""
    sender = watched._session.sender
    for _ in range(200):
        if (sender._step if sender._step is not None else -1) >= step - 1:
            return
        sender._stopping.wait(0.01)
    raise AssertionError("the sender does not read")


@pytest.mark.loop("a loop that skips `step` on a NaN", caveat="the window counts as a step, and as skipped by the loop")
def test_a_loop_that_skips_its_step_advances_the_count(collector: Recorded) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    reference, bad = Reference(model), {1, 4}
    with gradcanary.watch(model, optimizer, url=collector.url, run="skipping"):
        for step in range(6):
            loss = loss_of(model) * (math.nan if step in bad else 1.0)
            loss.backward()
            reference.read()
            if math.isfinite(float(loss.detach())):
                optimizer.step()
            optimizer.zero_grad()
    assert collector.steps() == list(range(6))
    assert collector.per_step("skipped") == [2 * (step in bad) for step in range(6)]
    assert collector.per_step("micro_steps") == [1] * 6
    reference.assert_sent(collector, [step for step in range(6) if step not in bad])
    for step in bad:
        assert set(collector.states()[step].values()) == {"nonfinite"}
        assert math.isnan(collector.metric("loss")[step])


def test_every_10_samples_steps_that_10_divides_and_keeps_all_losses(collector: Recorded) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    reference, losses = Reference(model), []
    with gradcanary.watch(model, optimizer, url=collector.url, run="every", every=10):
        for step in range(25):
            losses.append(0.0)
            for _ in range(3 if step == 20 else 2):
                loss = loss_of(model)
                losses[-1] += float(loss.detach())
                loss.backward()
            reference.read()
            optimizer.step()
            optimizer.zero_grad()
    assert collector.steps() == [0, 10, 20]
    assert {batch["every"] for batch in collector.batches} == {10}
    assert collector.per_step("micro_steps") == [2, 2, 3]
    reference.assert_sent(collector, [0, 10])
    assert collector.metric("loss") == pytest.approx(dict(enumerate(losses)), rel=1e-9)


def test_a_layer_with_gradients_between_samples_only_is_partial(collector: Recorded) -> None:
    model = nn.ModuleDict({"always": nn.Linear(4, 4), "odd": nn.Linear(4, 4), "never": nn.Linear(4, 4)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradcanary.watch(model, optimizer, url=collector.url, run="routed", every=10):
        for step in range(11):
            x = model["always"](torch.randn(4, 4))
            (model["odd"](x) if step % 2 else x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    names = ("always.weight", "odd.weight", "never.weight")
    states = collector.states()
    assert [states[0][name] for name in names] == ["measured", "no_gradient", "no_gradient"]
    assert [states[10][name] for name in names] == ["measured", "partial", "no_gradient"]


def test_zero_fraction_of_low_layers(collector: Recorded) -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"low": nn.Linear(8, 8, bias=False), "high": nn.Linear(8, 8, bias=False)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    x = torch.zeros(4, 8)
    x[:, :2] = 1.0  # six of eight columns of each weight get no gradient
    with gradcanary.watch(model, optimizer, url=collector.url, run="zeros") as watched:
        for step in range(4):
            (model["high"](x).sum() + 1e-6 * model["low"](x).sum()).backward()
            optimizer.step()
            optimizer.zero_grad()
            _wait_until_read(watched, step)
    fractions = collector.stat("zero_fraction")
    assert fractions[0] == {"low.weight": 0.75, "high.weight": 0.75}  # all layers in each 16th sample
    assert fractions[3] == {"low.weight": 0.75}


def test_a_logged_loss_replaces_the_captured_one(collector: Recorded) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    captured = {}
    with gradcanary.watch(model, optimizer, url=collector.url, run="logged") as watched:
        for step in range(4):
            loss = loss_of(model)
            captured[step] = float(loss.detach())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if step % 2:
                watched.log(loss=torch.tensor(100.0 + step), accuracy=step / 4)
    assert collector.metric("loss") == pytest.approx({0: captured[0], 1: 101.0, 2: captured[2], 3: 103.0}, rel=1e-9)
    assert collector.metric("accuracy") == {1: 0.25, 3: 0.75}


def test_the_learning_rate_of_each_group(collector: Recorded) -> None:
    model = mlp()
    groups = [{"params": model[0].parameters(), "lr": 0.5}, {"params": model[2].parameters(), "lr": 0.25}]
    optimizer = torch.optim.SGD(groups)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    with gradcanary.watch(model, optimizer, url=collector.url, run="rates"):
        for _ in range(3):
            loss_of(model).backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    assert collector.metric("lr0") == {0: 0.5, 1: 0.25, 2: 0.125}
    assert collector.metric("lr1") == {0: 0.25, 1: 0.125, 2: 0.0625}
    assert [layer["group"] for layer in collector.layers] == [0, 0, 1, 1]


@pytest.mark.loop(
    "a torch without the callback of the autograd engine",
    phase="post_clip",
    caveat="said as a fact of the session; no total norm, and no rule looks for falls",
)
@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("engine_is", ["without callbacks", "silent", "refusing"])
def test_without_the_engine_callback_the_step_hook_samples(
    collector: Recorded, monkeypatch: pytest.MonkeyPatch, set_to_none: bool, engine_is: str
) -> None:
    """An engine without the private calls, one that never calls back, and one that raises."""
    if engine_is == "without callbacks":
        monkeypatch.setattr(backward, "has_callbacks", lambda: False)
    else:
        monkeypatch.setattr(backward, "queue_end_of_backward", refuse if engine_is == "refusing" else ignore)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    reference = Reference(model)
    with gradcanary.watch(model, optimizer, url=collector.url, run="late"):
        for _ in range(4):
            for _ in range(3):
                loss_of(model).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            reference.read()
            optimizer.step()
            optimizer.zero_grad(set_to_none=set_to_none)
    reference.assert_sent(collector)
    assert collector.phases("absmax") == {"post_clip"}
    assert collector.per_step("micro_steps") == [3] * 4
    assert [fact["code"] for fact in collector.hellos[-1]["facts"]] == ["no_engine_callback"]


def ignore(_callback: object) -> None:
    pass


def refuse(_callback: object) -> None:
    raise RuntimeError("Final callbacks can only be installed during backward pass.")


@pytest.mark.parametrize("steps_with_the_rest", [False, True])
def test_a_first_pass_that_raised_says_nothing_of_the_engine(collector: Recorded, steps_with_the_rest: bool) -> None:
    """As where a script looks for the batch size that fits: the next pass has the callback."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def fail(_gradient: torch.Tensor) -> None:
        raise RuntimeError("out of memory")

    with gradcanary.watch(model, optimizer, url=collector.url, run="late"):
        handle = next(model.parameters()).register_hook(fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            loss_of(model).backward()
        handle.remove()
        if steps_with_the_rest:
            optimizer.step()
        optimizer.zero_grad()
        for _ in range(3):
            loss_of(model).backward()
            optimizer.step()
            optimizer.zero_grad()
    last = max(collector.states())
    assert set(collector.states()[last].values()) == {"measured"}
    assert collector.phases("absmax") == ({"post_clip", "accumulated"} if steps_with_the_rest else {"accumulated"})
    assert collector.hellos[-1]["facts"] == []


def test_a_watch_runs_no_backward_pass(collector: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one of a process starts threads of torch for its GPUs: a fork after that cannot run any."""
    passes, run = [], torch.autograd.graph._engine_run_backward
    for where in ("torch.autograd._engine_run_backward", "torch.autograd.graph._engine_run_backward"):
        monkeypatch.setattr(where, lambda *args, **kwargs: (passes.append(1), run(*args, **kwargs))[1])
    model = mlp()
    with gradcanary.watch(model, torch.optim.SGD(model.parameters(), lr=0.1), url=collector.url, run="late"):
        assert passes == []
        loss_of(model).backward()
        assert passes == [1]


@pytest.mark.loop("clipping", caveat="values are those before the clip; total norm and factor are series")
def test_the_clip_is_seen_and_its_factor_told(collector: Recorded) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    reference, factors = Reference(model), {}
    with gradcanary.watch(model, optimizer, url=collector.url, run="clip"):
        for step in range(6):
            loss_of(model).backward()
            reference.read()
            limit = 1e-3 if step % 2 else 1e3
            total = nn.utils.clip_grad_norm_(model.parameters(), limit)
            factors[step] = min(1.0, limit / (float(total) + 1e-6))
            optimizer.step()
            optimizer.zero_grad()
    reference.assert_sent(collector)
    assert collector.per_step("clipped") == [0, 1, 0, 1, 0, 1]
    sent = collector.metric("clip_factor")
    assert set(sent) >= {1, 3, 5}
    assert sent == pytest.approx({step: factors[step] for step in sent}, rel=1e-5)


@pytest.mark.loop(
    "closures, LBFGS",
    caveat="one window however often it evaluates, the last one counts. The clip is read after the step, so an "
    "optimizer that overwrites `.grad` there looks like one",
)
def test_a_closure_is_sampled_in_its_last_evaluation(collector: Recorded) -> None:
    model, x = mlp(), torch.randn(8, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    reference = Reference(model)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        for _ in range(2):
            loss = model(x).square().mean()
            loss.backward()
        return loss

    with gradcanary.watch(model, optimizer, url=collector.url, run="closure"):
        for _ in range(4):
            optimizer.step(closure)
            reference.read()  # SGD leaves its gradients as they are
    assert collector.steps() == [0, 1, 2, 3]
    assert collector.per_step("micro_steps")[1:] == [2, 2, 2]
    reference.assert_sent(collector, [1, 2, 3])


@pytest.mark.loop("closures, LBFGS")
def test_lbfgs_is_one_window_however_often_it_evaluates(collector: Recorded) -> None:
    model, x, evaluations = mlp(), torch.randn(8, 16), []
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        evaluations.append(float(loss.detach()))
        return loss

    with gradcanary.watch(model, optimizer, url=collector.url, run="lbfgs"):
        for _ in range(3):
            optimizer.step(closure)
    assert len(evaluations) > 3
    assert collector.steps() == [0, 1, 2]
    assert collector.per_step("micro_steps") == [1, 1, 1]
    assert collector.metric("loss")[2] == pytest.approx(evaluations[-1], rel=1e-9)


@pytest.mark.loop("checkpointing, reentrant or not", caveat="a block counts once per micro-step")
@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointed_blocks_count_once_per_micro_step(collector: Recorded, use_reentrant: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(0)
    model = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    reference, losses = Reference(model), {}
    with gradcanary.watch(model, optimizer, url=collector.url, run="checkpointed"):
        for step in range(4):
            for _ in range(2):
                x = torch.randn(4, 16, requires_grad=True)
                for block in model:
                    x = checkpoint(block, x, use_reentrant=use_reentrant)
                # The inner pass of this block starts from one element, and is no loss.
                loss = checkpoint(lambda x: x.square().mean(), x, use_reentrant=use_reentrant)
                losses[step] = losses.get(step, 0.0) + float(loss.detach())
                loss.backward()
            reference.read()
            optimizer.step()
            optimizer.zero_grad()
    reference.assert_sent(collector)
    assert collector.per_step("micro_steps") == [2] * 4
    assert collector.metric("loss") == pytest.approx(losses, rel=1e-9)
    assert collector.phases("absmax") == {"accumulated"}
