"""Gradients that a script sums by hand, in tensors of its own: ``Watch.observe_accumulator()``.

The reference reads the script's own sums in float64 when they are complete.
"""

import contextlib
import math

import pytest
import torch
from torch import nn

import gradcanary
from support.agent.recorded import Recorded, recording
from support.agent.torch_loops import mlp

EXACT = 1e-6
STEPS, MICRO_STEPS = 5, 4
Sums = dict[str, torch.Tensor]
Read = dict[str, float]


def loss_of(model: nn.Module) -> torch.Tensor:
    return model(torch.randn(8, 16)).square().mean()


def empty_sums(model: nn.Module, dtype: torch.dtype = torch.float32) -> Sums:
    return {name: torch.zeros_like(each, dtype=dtype) for name, each in model.named_parameters()}


def reading(sums: Sums, scale: float = 1.0) -> tuple[Read, Read]:
    """Return absmax and norm by name."""
    found = {name: each.double() / scale for name, each in sums.items()}
    absmax = {name: float(each.abs().max()) for name, each in found.items()}
    return absmax, {name: float(each.norm()) for name, each in found.items()}


def assert_sent(collector: Recorded, read: list[tuple[Read, Read]]) -> None:
    assert collector.steps() == list(range(len(read)))
    for position, stat in enumerate(("absmax", "norm")):
        assert collector.stat(stat) == {
            step: pytest.approx(each[position], rel=EXACT, abs=0) for step, each in enumerate(read)
        }
    assert collector.phases("norm") == {"accumulated"}


def add_gradients(model: nn.Module, sums: Sums) -> None:
    for name, parameter in model.named_parameters():
        sums[name] += parameter.grad
        parameter.grad = None


def tell(watched: gradcanary.Watch | None, sums: Sums) -> None:
    for name, each in sums.items():
        if watched is not None:
            watched.observe_accumulator(name, each)


def watching(collector: Recorded, *given: object, is_watched: bool) -> contextlib.AbstractContextManager:
    if not is_watched:
        return contextlib.nullcontext()
    return gradcanary.watch(*given, url=collector.url, run="buffers")


def assert_identical(first: nn.Module, second: nn.Module) -> None:
    assert all(map(torch.equal, first.parameters(), second.parameters()))


@pytest.mark.loop(
    "sums in tensors of the script's own",
    late="the first window, where `watch()` was given nothing",
    k="right; 0 (unknown) under `torch.autograd.grad`",
    caveat="with [`observe_accumulator`](python-api.md#observe_accumulator), also without an optimizer",
)
@pytest.mark.parametrize("is_cleared_first", [True, False], ids=["cleared before the step", "cleared after it"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_in_tensors_of_the_scripts_own(collector: Recorded, dtype: torch.dtype, is_cleared_first: bool) -> None:
    def train(*, is_watched: bool) -> tuple[nn.Module, list[tuple[Read, Read]], list[float]]:
        model, read, losses = mlp(), [], []
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        sums = empty_sums(model, dtype)
        with watching(collector, model, optimizer, is_watched=is_watched) as watched:
            tell(watched, sums)
            for _ in range(STEPS):
                losses.append(0.0)
                for _ in range(MICRO_STEPS):
                    loss = loss_of(model)
                    losses[-1] += float(loss.detach())
                    loss.backward()
                    add_gradients(model, sums)
                tell(watched, sums)
                read.append(reading(sums))
                for name, parameter in model.named_parameters():
                    parameter.grad = sums[name].float() / MICRO_STEPS
                    if is_cleared_first:
                        sums[name].zero_()
                nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
                optimizer.step()
                optimizer.zero_grad()
                sums = empty_sums(model, dtype)
        return model, read, losses

    model, read, losses = train(is_watched=True)
    assert_identical(model, train(is_watched=False)[0])
    assert_sent(collector, read)
    assert collector.per_step("micro_steps") == [MICRO_STEPS] * STEPS
    assert collector.per_step("skipped") == [0] * STEPS
    assert set(collector.stored().values()) == {str(dtype).removeprefix("torch.")}
    assert {state for states in collector.states().values() for state in states.values()} == {"measured"}
    assert collector.metric("loss") == pytest.approx(dict(enumerate(losses)), rel=1e-6)
    assert collector.metric("clip_factor") == {}  # what is clipped is another tensor


@pytest.mark.loop("sums in tensors of the script's own")
def test_a_loop_without_an_optimizer(collector: Recorded) -> None:
    """A window ends with the step by hand."""
    model, read = mlp(), []
    sums = empty_sums(model)
    with gradcanary.watch(model, url=collector.url, run="no-optimizer") as watched:
        tell(watched, sums)
        for _ in range(STEPS):
            for _ in range(MICRO_STEPS):
                loss_of(model).backward()
                add_gradients(model, sums)
            tell(watched, sums)
            read.append(reading(sums))
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    parameter -= 0.1 * sums[name]
                    sums[name].zero_()
            watched.step()
    assert_sent(collector, read)
    assert collector.per_step("micro_steps") == [MICRO_STEPS] * STEPS
    assert collector.per_step("skipped") == [0] * STEPS
    assert collector.hellos[-1]["facts"] == []


@pytest.mark.loop("sums in tensors of the script's own")
@pytest.mark.parametrize("has_optimizer", [True, False])
def test_gradients_that_the_script_asks_torch_for(collector: Recorded, has_optimizer: bool) -> None:
    """``torch.autograd.grad`` calls no hook: windows begin with the calls, and how many micro-steps is not known."""
    model, read = mlp(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sums = empty_sums(model)
    given = (model, optimizer) if has_optimizer else (model,)
    if not has_optimizer:
        del optimizer
    with gradcanary.watch(*given, url=collector.url, run="asked") as watched:
        tell(watched, sums)
        for _ in range(STEPS):
            for _ in range(MICRO_STEPS):
                found = torch.autograd.grad(loss_of(model), list(model.parameters()))
                for name, gradient in zip(sums, found, strict=True):
                    sums[name] += gradient
            tell(watched, sums)
            read.append(reading(sums))
            for name, parameter in model.named_parameters():
                if has_optimizer:
                    parameter.grad = sums[name].clone()
                else:
                    parameter.data -= 0.1 * sums[name]
                sums[name].zero_()
            if has_optimizer:
                optimizer.step()
            else:
                watched.step()
    assert_sent(collector, read)
    assert collector.per_step("skipped") == [0] * STEPS


def test_a_loop_that_skips_its_step(collector: Recorded) -> None:
    model, read, bad = mlp(), [], {1, 3}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sums = empty_sums(model)
    with gradcanary.watch(model, optimizer, url=collector.url, run="skips") as watched:
        tell(watched, sums)
        for step in range(STEPS):
            for _ in range(MICRO_STEPS):
                (loss_of(model) * (math.nan if step in bad else 1.0)).backward()
                add_gradients(model, sums)
            tell(watched, sums)
            read.append(reading(sums))
            for name, parameter in model.named_parameters():
                parameter.grad = sums[name].clone()
            if step not in bad:
                optimizer.step()
            optimizer.zero_grad()
            sums = empty_sums(model)
    assert collector.per_step("skipped") == [2 * (step in bad) for step in range(STEPS)]
    assert collector.per_step("micro_steps") == [MICRO_STEPS] * STEPS
    for step in range(STEPS):
        assert set(collector.states()[step].values()) == {"nonfinite" if step in bad else "measured"}
        if step not in bad:
            assert collector.stat("norm")[step] == pytest.approx(read[step][1], rel=EXACT)


def test_external_sums_of_some_layers_with_an_interval_of_10(collector: Recorded) -> None:
    """The others are read from ``.grad`` as ever, at the end of the last backward pass."""
    model, read = mlp(), {}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    name = "0.weight"
    total = torch.zeros_like(model[0].weight)
    with gradcanary.watch(model, optimizer, url=collector.url, run="some", every=10) as watched:
        watched.observe_accumulator(name, total)
        for step in range(12):
            for _ in range(MICRO_STEPS):
                loss_of(model).backward()
                total += model[0].weight.grad
                model[0].weight.grad = None
            watched.observe_accumulator(name, total)
            gradients = {other: each.grad for other, each in model.named_parameters() if other != name}
            read[step] = reading({name: total, **gradients})
            model[0].weight.grad = total.clone()
            total.zero_()
            optimizer.step()
            optimizer.zero_grad()
    assert collector.steps() == [0, 10]
    assert collector.stat("norm") == {step: pytest.approx(read[step][1], rel=EXACT) for step in (0, 10)}
    assert collector.stat("absmax") == {step: pytest.approx(read[step][0], rel=EXACT) for step in (0, 10)}
    assert collector.per_step("micro_steps") == [MICRO_STEPS] * 2


def test_sums_of_scaled_gradients(collector: Recorded) -> None:
    model, read, overflow = mlp(), [], 2
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    sums = empty_sums(model)
    with gradcanary.watch(model, optimizer, url=collector.url, run="scaled") as watched:
        tell(watched, sums)
        for step in range(STEPS):
            for _ in range(MICRO_STEPS):
                scaler.scale(loss_of(model) * (math.inf if step == overflow else 1.0)).backward()
                add_gradients(model, sums)
            tell(watched, sums)
            read.append(reading(sums, scaler.get_scale()))
            for name, parameter in model.named_parameters():
                parameter.grad = sums[name]
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            sums = empty_sums(model)
    assert collector.per_step("skipped") == [int(step == overflow) for step in range(STEPS)]
    assert collector.per_step("micro_steps") == [MICRO_STEPS] * STEPS
    for step in (step for step in range(STEPS) if step != overflow):
        assert collector.stat("norm")[step] == pytest.approx(read[step][1], rel=EXACT)


def test_a_window_without_a_call_is_partial_and_nothing_is_read_meanwhile(collector: Recorded) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sums, read = empty_sums(model), {}
    with gradcanary.watch(model, optimizer, url=collector.url, run="partial") as watched:
        tell(watched, sums)
        for step in range(4):
            for _ in range(MICRO_STEPS):
                loss_of(model).backward()
                add_gradients(model, sums)
            if step % 2:
                tell(watched, sums)
                read[step] = reading(sums)[1]
            for name, parameter in model.named_parameters():
                parameter.grad = sums[name]
            optimizer.step()
            tell(watched if step == 1 else None, empty_sums(model))  # too late: the sum is used
            optimizer.zero_grad()
            sums = empty_sums(model)
    assert collector.per_step("micro_steps") == [MICRO_STEPS] * 4
    for step, states in collector.states().items():
        assert set(states.values()) == {"measured" if step in read else "partial"}
        if step in read:
            assert collector.stat("norm")[step] == pytest.approx(read[step], rel=EXACT)


def test_names_are_known_with_the_first_step_where_nothing_was_given(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = mlp()
    sums, read = {**empty_sums(model), "no.such": torch.zeros(3)}, []
    with recording() as collector, gradcanary.watch(url=collector.url, run="later") as watched:
        tell(watched, sums)
        del sums["no.such"]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(STEPS):
            for _ in range(MICRO_STEPS):
                loss_of(model).backward()
                add_gradients(model, sums)
            tell(watched, sums)
            read.append(reading(sums)[1])
            for name, parameter in model.named_parameters():
                parameter.grad = sums[name]
            optimizer.step()
            optimizer.zero_grad()
            sums = empty_sums(model)
    assert set(collector.states()[0].values()) == {"partial"}
    assert collector.per_step("micro_steps") == [MICRO_STEPS] * STEPS
    assert {step: collector.stat("norm")[step] for step in range(1, STEPS)} == {
        step: pytest.approx(read[step], rel=EXACT) for step in range(1, STEPS)
    }
    assert capsys.readouterr().err.count("'no.such'): no parameter is called so") == 1


def wait_until_read(watched: gradcanary.Watch, step: int) -> None:
    """Let the sender, who decides which layer is looked at, see the windows before ``step``."""
    sender = watched._session.sender
    for _ in range(200):
        if (-1 if sender._step is None else sender._step) >= step - 1:
            return
        sender._stopping.wait(0.01)
    raise AssertionError("the sender does not read")


@pytest.mark.parametrize("prefix", ["0.", ""], ids=["some", "all"])
def test_a_clip_is_looked_for_where_gradients_are_those_of_torch(
    collector: Recorded, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    """A layer whose sum is not what is handed over was not clipped by that."""
    monkeypatch.setattr("gradcanary.export.sender.FLUSH_S", 0.02)
    model, factors = mlp(), {}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    totals = {name: torch.zeros_like(each) for name, each in model.named_parameters() if name.startswith(prefix)}
    with gradcanary.watch(model, optimizer, url=collector.url, run="clip") as watched:
        tell(watched, totals)
        for step in range(STEPS):
            for _ in range(MICRO_STEPS):
                loss_of(model).backward()
                for name, total in totals.items():
                    gradient = model.get_parameter(name).grad
                    total += 100 * gradient
                    gradient.zero_()
            tell(watched, totals)
            for name, total in totals.items():
                model.get_parameter(name).grad.copy_(total / 100)
                total.zero_()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            factors[step] = 1e-3 / (float(norm) + 1e-6)
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            wait_until_read(watched, step)
    assert collector.names[watched._session.recorder.clock.request.probe].startswith(prefix)  # it would be looked at
    sent = collector.metric("clip_factor")
    assert bool(sent) is bool(prefix)
    assert sent == pytest.approx({step: factors[step] for step in sent}, rel=1e-4)


def test_a_layer_that_goes_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    model = mlp()
    optimizer = torch.optim.SGD([{"params": model[0].parameters()}, {"params": model[2].parameters()}], lr=0.1)
    with recording() as collector, gradcanary.watch(optimizer=optimizer, url=collector.url, run="gone") as watched:
        for step in range(4):
            watched.observe_accumulator("2.bias", torch.zeros(4))
            if step == 2:
                del optimizer.param_groups[1]
            loss_of(model).backward()
            optimizer.step()
            model.zero_grad()
    assert "2.bias" not in collector.states()[3]
    assert capsys.readouterr().err.count("'2.bias'): no parameter is called so") == 1


@pytest.mark.parametrize(
    ("name", "tensor", "error", "said"),
    [
        (5, torch.zeros(32, 16), TypeError, "is a int"),
        ("0.weight", [1.0], TypeError, "is a list"),
        ("0.weight", torch.zeros(32, 16, device="meta"), ValueError, "meta"),
        ("0.weight", torch.zeros(32, 16, dtype=torch.int32), ValueError, "int32"),
        ("0.wieght", torch.zeros(32, 16), ValueError, r"no parameter is called so; there are, for example, 0.weight"),
        ("0.weight", torch.zeros(16, 32), ValueError, r"shape \(16, 32\): its parameter has \(32, 16\)"),
    ],
)
def test_wrong_arguments_raise(collector: Recorded, name: object, tensor: object, error: type, said: str) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        gradcanary.watch(model, optimizer, url=collector.url, run="wrong") as watched,
        pytest.raises(error, match=said),
    ):
        watched.observe_accumulator(name, tensor)


def test_excluded_layers_and_closed_watches_are_accepted(collector: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADCANARY_EXCLUDE", "bias")
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradcanary.watch(model, optimizer, url=collector.url, run="left-out") as watched:
        for _ in range(2):
            watched.pause()
            watched.observe_accumulator("0.bias", torch.zeros(32))
            watched.observe_accumulator("0.weight", torch.zeros(32, 16))
            loss_of(model).backward()
            optimizer.step()
            optimizer.zero_grad()
    watched.observe_accumulator("0.weight", torch.zeros(32, 16))
    watched.observe_accumulator("never.heard.of", torch.zeros(1))
    assert set(collector.names) == {"0.weight", "2.weight"}
