"""``fp32_masters()``: weights of low precision go as a stock optimizer takes float32 ones, and are rounded once."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradcanary
from support.agent.exact_sums import (
    accumulate,
    assert_same,
    loss_of,
    micro_gradients,
    parameters,
    states_of,
    truth,
)

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
STEPS = 5

Kind = Callable[[Any], torch.optim.Optimizer]

OPTIMIZERS: dict[str, Kind] = {
    "AdamW, a plain loop": lambda given: torch.optim.AdamW(given, lr=1e-5, foreach=False),
    "AdamW, foreach": lambda given: torch.optim.AdamW(given, lr=1e-5, foreach=True),
    "AdamW, fused": lambda given: torch.optim.AdamW(given, lr=1e-5, fused=True),
    "Adam, amsgrad": lambda given: torch.optim.Adam(given, lr=1e-5, amsgrad=True),
    "SGD": lambda given: torch.optim.SGD(given, lr=1e-3),
    "SGD, momentum, foreach": lambda given: torch.optim.SGD(given, lr=1e-3, momentum=0.9, foreach=True),
    "SGD, fused": lambda given: torch.optim.SGD(given, lr=1e-3, momentum=0.9, fused=True),
    "Adagrad, fused": lambda given: torch.optim.Adagrad(given, lr=1e-4, fused=True),
    "RMSprop": lambda given: torch.optim.RMSprop(given, lr=1e-5, momentum=0.9, centered=True),
    "Adafactor": lambda given: torch.optim.Adafactor(given, lr=1e-3),
    "NAdam": lambda given: torch.optim.NAdam(given, lr=1e-5),
    "RAdam": lambda given: torch.optim.RAdam(given, lr=1e-5),
    "Adamax": lambda given: torch.optim.Adamax(given, lr=1e-5),
    "Adadelta": lambda given: torch.optim.Adadelta(given, lr=1e-2),
    "ASGD": lambda given: torch.optim.ASGD(given, lr=1e-3),
    "Rprop": lambda given: torch.optim.Rprop(given, lr=1e-4),
}


@pytest.fixture(autouse=True)
def silent(capsys: pytest.CaptureFixture[str]) -> Iterator[None]:
    """What goes wrong inside is told on stderr, and only there."""
    yield
    assert capsys.readouterr().err == ""


def wide(given: Sequence[Tensor]) -> list[nn.Parameter]:
    """Return float32 parameters for a stock optimizer, which shows what is right."""
    return [nn.Parameter(each.detach().float()) for each in given]


def step_wide(optimizer: torch.optim.Optimizer, others: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
    for each, gradient in zip(others, gradients, strict=True):
        each.grad = None if gradient is None else gradient.detach().float()
    optimizer.step()
    optimizer.zero_grad()


def assert_rounded(given: Sequence[Tensor], others: Sequence[Tensor]) -> None:
    assert_same(given, [other.detach().to(each.dtype) for each, other in zip(given, others, strict=True)])


def moved(given: Sequence[Tensor], start: Sequence[Tensor]) -> float:
    return float(torch.cat([(a != b).flatten() for a, b in zip(given, start, strict=True)]).float().mean())


# -- every optimizer ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [BF16, FP16])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_each_optimizer_steps_as_with_float32_weights(kind: str, dtype: torch.dtype) -> None:
    given = parameters(dtype)
    others = wide(given)
    optimizer, other = OPTIMIZERS[kind](given), OPTIMIZERS[kind](others)
    with gradcanary.fp32_masters(optimizer):
        for step in range(STEPS):
            accumulate(given, micro_gradients(given, 1, step))
            step_wide(other, others, [each.grad for each in given])
            optimizer.step()
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            assert_rounded(given, others)
        saved = optimizer.state_dict()["state"]
        assert_same([saved[at]["fp32_master"] for at in range(len(given))], others)
        assert_same(
            [torch.as_tensor(saved[at][key]) for at in saved for key in sorted(saved[at]) if key != "fp32_master"],
            states_of(other),
        )
    assert_rounded(given, others)


def test_adamw_at_a_rate_of_1e_5_moves_bfloat16_weights_and_their_loss() -> None:
    """The weights that it leaves move as those of a float32 training."""
    found = {}
    for way in ("stock", "masters", "float32"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 4)).to(BF16)
        model = model.float() if way == "float32" else model
        given = list(model.parameters())
        start = [each.detach().clone() for each in given]
        optimizer = torch.optim.AdamW(given, lr=1e-5, weight_decay=0.0)
        if way == "masters":
            gradcanary.fp32_masters(optimizer)
        generator = torch.Generator().manual_seed(1)
        losses = []
        for _ in range(300):
            inputs = torch.randn(64, 32, generator=generator).to(given[0].dtype)
            loss = (model(inputs).float() - 0.5).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        fallen = sum(losses[:50]) - sum(losses[-50:])
        found[way] = moved(given, start), fallen
    assert found["stock"][0] < 0.1
    assert found["masters"][0] > 0.8
    assert found["stock"][1] < 0.3 * found["float32"][1]
    assert found["masters"][1] == pytest.approx(found["float32"][1], rel=0.05)


def test_parameters_that_are_frozen_or_have_no_gradient_stay_and_go_on_later() -> None:
    given = parameters()
    others = wide(given)
    optimizer, other = torch.optim.AdamW(given, lr=1e-4), torch.optim.AdamW(others, lr=1e-4)
    given[1].requires_grad_(requires_grad=False)
    with gradcanary.fp32_masters(optimizer):
        for step in range(6):
            if step == 3:
                given[1].requires_grad_(requires_grad=True)
            gradients = micro_gradients(given, 1, step)[0]
            used = [given[0], given[1 if step != 4 else 0]]
            loss_of(used, gradients[: len(used)] if step != 4 else [gradients[0], gradients[0]]).backward()
            step_wide(other, others, [each.grad for each in given])
            optimizer.step()
            optimizer.zero_grad()
            assert_rounded(given, others)
    assert moved(given[2:], parameters()[2:]) == 0.0


def test_float32_parameters_and_later_ones_are_stepped_as_they_are() -> None:
    low, high, late = parameters(), parameters(FP32), parameters()
    others = [*wide(low), *parameters(FP32), *parameters()]
    optimizer, other = torch.optim.AdamW([*low, *high], lr=1e-4), torch.optim.AdamW(others[:6], lr=1e-4)
    with gradcanary.fp32_masters(optimizer):
        for each, some in ((optimizer, late), (other, others[6:])):
            each.add_param_group({"params": some, "lr": 0.05})
        for step in range(STEPS):
            every = [*low, *high, *late]
            accumulate(every, micro_gradients(every, 1, step))
            for each, true in zip(others, every, strict=True):
                each.grad = true.grad.to(each.dtype)
            for stepping in (optimizer, other):
                stepping.step()
                stepping.zero_grad()
    assert_rounded([*low, *high, *late], others)


def test_sparse_gradients() -> None:
    torch.manual_seed(0)
    table = nn.Embedding(8, 4, sparse=True, dtype=BF16)
    twin = nn.Embedding(8, 4, sparse=True, _weight=table.weight.detach().float())
    optimizer, other = torch.optim.SparseAdam(table.parameters(), 1e-4), torch.optim.SparseAdam(twin.parameters(), 1e-4)
    with gradcanary.fp32_masters(optimizer):
        for _ in range(STEPS):
            for each, stepping in ((table, optimizer), (twin, other)):
                each(torch.tensor([1, 2, 1])).sum().backward()
                stepping.step()
                stepping.zero_grad()
    assert_rounded([table.weight], [twin.weight])


# -- with float32 sums, clipping, scaling ------------------------------------------------------------------------------


@pytest.mark.parametrize("masters_first", [True, False])
@pytest.mark.parametrize("kind", ["AdamW, a plain loop", "AdamW, foreach", "AdamW, fused", "SGD"])
def test_float32_sums_reach_the_copies_unrounded(kind: str, *, masters_first: bool) -> None:
    given = parameters()
    others = wide(given)
    optimizer, other = OPTIMIZERS[kind](given), OPTIMIZERS[kind](others)
    both = [gradcanary.fp32_masters, gradcanary.fp32_accumulators][:: 1 if masters_first else -1]
    handles = [each(optimizer) for each in both]
    for step in range(STEPS):
        micro = micro_gradients(given, 24, step)
        accumulate(given, micro)
        sums = truth(micro)
        assert any(not torch.equal(each.to(BF16).double(), each) for each in sums), "rounding would show"
        step_wide(other, others, sums)
        if step == 2:
            optimizer.step(lambda: 3.0)
        else:
            optimizer.step()
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        assert_rounded(given, others)
    for each in handles:
        each.close()
    assert not optimizer._optimizer_step_pre_hooks


@pytest.mark.parametrize("max_norm", [0.5, 1e6])
def test_a_clip_before_the_step_holds(max_norm: float) -> None:
    given = parameters()
    others = wide(given)
    optimizer, other = torch.optim.SGD(given, lr=1e-3), torch.optim.SGD(others, lr=1e-3)
    with gradcanary.fp32_masters(optimizer):
        accumulate(given, micro_gradients(given, 1, 0))
        torch.nn.utils.clip_grad_norm_(given, max_norm)
        step_wide(other, others, [each.grad for each in given])
        optimizer.step()
    assert_rounded(given, others)


@pytest.mark.parametrize(
    ("kind", "dtype", "is_summed"),
    [
        ("AdamW, foreach", BF16, False),
        ("AdamW, foreach", BF16, True),
        ("AdamW, foreach", FP16, True),
        ("AdamW, fused", BF16, False),
        ("AdamW, fused", BF16, True),
        ("AdamW, fused", FP16, False),
        ("AdamW, fused", FP16, True),
    ],
)
def test_a_grad_scaler_unscales_and_skips(kind: str, dtype: torch.dtype, *, is_summed: bool) -> None:
    """torch refuses to unscale gradients in float16: fused optimizers and float32 sums have them unscaled."""
    given = parameters(dtype)
    others = wide(given)
    optimizer, other = OPTIMIZERS[kind](given), OPTIMIZERS[kind](others)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**9, growth_interval=10_000)
    handles = [gradcanary.fp32_masters(optimizer)]
    if is_summed:
        handles.append(gradcanary.fp32_accumulators(optimizer))
    for step in range(4):
        micro = micro_gradients(given, 8 if is_summed else 1, step)
        for gradients in micro:
            factor = torch.tensor(float("inf") if step == 1 else 1.0)
            scaler.scale(loss_of(given, gradients).float() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if step != 1:
            step_wide(other, others, truth(micro))
        assert_rounded(given, others)
    assert scaler.get_scale() == 2.0**8, "one step was skipped"


def test_torch_unscales_no_float16_gradients_of_masters_alone() -> None:
    """docs/how-to/low-precision.md has its words, and what to do."""
    given = parameters(FP16)
    optimizer, scaler = torch.optim.AdamW(given), torch.amp.GradScaler("cpu")
    with gradcanary.fp32_masters(optimizer):
        scaler.scale(loss_of(given, micro_gradients(given, 1, 0)[0]).float()).backward()
        with pytest.raises(ValueError, match=r"^Attempting to unscale FP16 gradients\.$"):
            scaler.step(optimizer)


# -- closures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_keyword", [True, False])
def test_a_closure_sees_the_weights_in_their_own_dtype(*, is_keyword: bool) -> None:
    given = parameters()
    others = wide(given)
    optimizer, other = torch.optim.AdamW(given, lr=1e-4), torch.optim.AdamW(others, lr=1e-4)
    with gradcanary.fp32_masters(optimizer):
        for step in range(STEPS):

            def closure(step: int = step) -> float:
                assert [each.dtype for group in optimizer.param_groups for each in group["params"]] == [BF16] * 3
                optimizer.zero_grad()
                accumulate(given, micro_gradients(given, 1, step))
                return 7.0

            assert (optimizer.step(closure=closure) if is_keyword else optimizer.step(closure)) == 7.0
            step_wide(other, others, [each.grad for each in given])
            assert_rounded(given, others)


@pytest.mark.parametrize("line_search", [None, "strong_wolfe"])
def test_lbfgs_evaluates_the_rounded_weights_and_moves_the_copies(line_search: str | None) -> None:
    given = parameters(BF16, [(8,), (3,)])
    low, others = [each.detach().clone().requires_grad_() for each in given], wide(given)
    optimizer = torch.optim.LBFGS(given, lr=0.01, max_iter=5, line_search_fn=line_search)
    other = torch.optim.LBFGS(others, lr=0.01, max_iter=5, line_search_fn=line_search)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = sum(each.float().pow(4).sum() for each in given)
        loss.backward()
        return loss

    def wide_closure() -> Tensor:
        with torch.no_grad():
            for each, wide_one in zip(low, others, strict=True):
                each.copy_(wide_one)
                each.grad = None
        loss = sum(each.float().pow(4).sum() for each in low)
        loss.backward()
        for each, wide_one in zip(low, others, strict=True):
            wide_one.grad = each.grad.float()
        return loss

    with gradcanary.fp32_masters(optimizer):
        for _ in range(3):
            assert torch.equal(optimizer.step(closure), other.step(wide_closure))
            assert_rounded(given, others)


# -- what else writes to weights ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["load_state_dict", "data", "init", "other storage"])
def test_weights_that_something_else_writes_are_taken_over(way: str) -> None:
    model = nn.Linear(8, 4, dtype=BF16)
    given = list(model.parameters())
    optimizer = torch.optim.SGD(given, lr=1e-4)
    with gradcanary.fp32_masters(optimizer):
        accumulate(given, micro_gradients(given, 1, 0))
        optimizer.step()
        fresh = nn.Linear(8, 4, dtype=BF16)
        if way == "load_state_dict":
            model.load_state_dict(fresh.state_dict())
        elif way == "data":
            for each, new in zip(given, fresh.parameters(), strict=True):
                each.data.copy_(new.data)
        elif way == "other storage":
            for each, new in zip(given, fresh.parameters(), strict=True):
                each.data = new.data.clone()
        else:
            for each in given:
                nn.init.zeros_(each)
            fresh = model
        others = wide(list(fresh.parameters()))
        optimizer.zero_grad()
        accumulate(given, micro_gradients(given, 1, 1))
        step_wide(torch.optim.SGD(others, lr=1e-4), others, [each.grad for each in given])
        optimizer.step()
    assert_rounded(given, others)


def test_averaged_weights_that_are_swapped_in_and_out_cost_nothing() -> None:
    given = parameters()
    others = wide(given)
    optimizer, other = torch.optim.AdamW(given, lr=1e-5), torch.optim.AdamW(others, lr=1e-5)
    with gradcanary.fp32_masters(optimizer):
        for step in range(20):
            accumulate(given, micro_gradients(given, 1, step))
            step_wide(other, others, [each.grad for each in given])
            optimizer.step()
            optimizer.zero_grad()
            kept = [each.detach().clone() for each in given]
            for each in given:
                each.data.copy_(torch.zeros_like(each))
            for each, before in zip(given, kept, strict=True):
                each.data.copy_(before)
            assert_rounded(given, others)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
@pytest.mark.parametrize("whole", [False, True])
def test_a_compiled_step_is_one_of_the_copies(*, whole: bool) -> None:
    given = parameters()
    others = wide(given)
    optimizer, other = torch.optim.AdamW(given, lr=1e-5, foreach=True), torch.optim.AdamW(others, lr=1e-5, foreach=True)
    with gradcanary.fp32_masters(optimizer):

        def stepped() -> None:
            optimizer.step()

        step = torch.compile(stepped if whole else optimizer.step, backend="eager")
        for seed in range(STEPS):
            accumulate(given, micro_gradients(given, 1, seed))
            step_wide(other, others, [each.grad for each in given])
            step()
            optimizer.zero_grad()
            assert_rounded(given, others)
    torch._dynamo.reset()


@pytest.mark.parametrize("is_summed", [False, True])
def test_optimizers_that_step_inside_backward(*, is_summed: bool) -> None:
    given = parameters()
    others = wide(given)
    opened = []
    for parameter in given:
        own = torch.optim.AdamW([parameter], lr=1e-5)
        opened += [gradcanary.fp32_masters(own), *([gradcanary.fp32_accumulators(own)] if is_summed else [])]

        def stepped(_: Tensor, own: torch.optim.Optimizer = own) -> None:
            own.step()
            own.zero_grad()

        parameter.register_post_accumulate_grad_hook(stepped)
    other = torch.optim.AdamW(others, lr=1e-5)
    for step in range(STEPS):
        micro = micro_gradients(given, 1, step)
        accumulate(given, micro)
        step_wide(other, others, micro[0])
        assert_rounded(given, others)
    for each in opened:
        each.close()
