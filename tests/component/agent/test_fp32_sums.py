"""``fp32_accumulators()``: sums are float64's, and the optimizer steps as a stock one given the truth rounded once."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import gradcanary
from support.agent.exact_sums import (
    accumulate,
    assert_same,
    loss_of,
    micro_gradients,
    parameters,
    states_of,
    step_by_truth,
    truth,
)
from support.agent.fixtures import complaints

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
K, STEPS = 24, 3

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "AdamW, a plain loop": lambda given: torch.optim.AdamW(given, lr=0.05, eps=1e-4, foreach=False),
    "AdamW, foreach": lambda given: torch.optim.AdamW(given, lr=0.05, eps=1e-4, foreach=True),
    "AdamW, fused": lambda given: torch.optim.AdamW(given, lr=0.05, eps=1e-4, fused=True),
    "AdamW, amsgrad": lambda given: torch.optim.AdamW(given, lr=0.05, eps=1e-4, amsgrad=True),
    "SGD": lambda given: torch.optim.SGD(given, lr=0.05),
    "SGD, momentum, foreach": lambda given: torch.optim.SGD(given, lr=0.05, momentum=0.9, foreach=True),
    "SGD, fused": lambda given: torch.optim.SGD(given, lr=0.05, fused=True),
    "Adagrad, fused": lambda given: torch.optim.Adagrad(given, lr=0.05, fused=True),
    "RMSprop": lambda given: torch.optim.RMSprop(given, lr=0.05),
    "Adafactor": lambda given: torch.optim.Adafactor(given, lr=0.05),
    "NAdam": lambda given: torch.optim.NAdam(given, lr=0.05),
}


@pytest.fixture(autouse=True)
def silent(capsys: pytest.CaptureFixture[str]) -> Iterator[None]:
    """What goes wrong inside is told on stderr, and only there."""
    yield
    assert complaints(capsys.readouterr().err) == ""


# -- against float64 ---------------------------------------------------------------------------------------------------


def relative_error(found: torch.Tensor, true: torch.Tensor) -> float:
    return float((found.double() - true).norm() / true.norm())


def summed(micro: list[torch.Tensor], *, is_helped: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradient before the step and as the optimizer gets it."""
    given = nn.Parameter(torch.zeros(micro[0].shape, dtype=micro[0].dtype))
    optimizer = torch.optim.SGD([given], lr=1.0)
    accumulators = gradcanary.fp32_accumulators(optimizer) if is_helped else None
    accumulate([given], [[each] for each in micro])
    before = given.grad.clone()
    optimizer.step()
    assert torch.equal(given.detach(), -given.grad)
    if accumulators is not None:
        accumulators.close()
    return before, given.grad


@pytest.mark.parametrize(
    ("micro_steps", "is_coherent", "least", "most"),
    [
        (8, True, 0.002, 0.006),
        (8, False, 0.002, 0.006),
        (512, True, 0.2, 0.3),
        (512, False, 0.01, 0.05),
        (2048, True, 0.75, 0.82),
        (2048, False, 0.03, 0.1),
    ],
)
def test_float32_sums_keep_the_bits_that_bfloat16_loses(
    micro_steps: int, is_coherent: bool, least: float, most: float
) -> None:
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(1024, generator=generator)
    noise = [torch.randn(1024, generator=generator) for _ in range(micro_steps)]
    micro = [(direction * (1 + each / 10) if is_coherent else each).to(BF16) for each in noise]
    true = torch.stack([each.double() for each in micro]).sum(0)
    without, _ = summed(micro, is_helped=False)
    before, handed = summed(micro, is_helped=True)
    assert least < relative_error(without, true) < most
    assert (without.dtype, before.dtype, handed.dtype) == (BF16, FP32, BF16)
    assert relative_error(before, true) < 1e-6
    assert torch.equal(handed, before.to(BF16)), "rounded once, to the nearest"
    assert relative_error(handed, true) < 2**-8


# -- every optimizer ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_each_optimizer_steps_by_the_truth(kind: str, set_to_none: bool) -> None:
    given, others = parameters(), parameters()
    optimizer, other = OPTIMIZERS[kind](given), OPTIMIZERS[kind](others)
    with gradcanary.fp32_accumulators(optimizer):
        for step in range(STEPS):
            micro = micro_gradients(given, K, step)
            accumulate(given, micro)
            assert [each.grad.dtype for each in given] == [FP32] * len(given)
            assert_same([each.grad.double() for each in given], truth(micro))
            optimizer.step()
            optimizer.zero_grad(set_to_none=set_to_none)
            step_by_truth(other, others, truth(micro))
    assert_same(given, others)
    assert_same(states_of(optimizer), states_of(other))


@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_single_micro_step_training_is_bit_identical(dtype: torch.dtype) -> None:
    given, others = parameters(dtype), parameters(dtype)
    optimizer, other = torch.optim.AdamW(given, lr=0.05, eps=1e-4), torch.optim.AdamW(others, lr=0.05, eps=1e-4)
    with gradcanary.fp32_accumulators(optimizer):
        for seed in range(8):
            for each, stepping in ((given, optimizer), (others, other)):
                loss_of([p.square() for p in each], micro_gradients(each, 1, seed)[0]).backward()
                stepping.step()
                stepping.zero_grad()
    assert_same(given, others)
    assert_same(states_of(optimizer), states_of(other))


def test_float32_parameters_of_the_same_optimizer_are_left_alone() -> None:
    low, high, others = parameters(), parameters(FP32), parameters(FP32)
    optimizer, other = torch.optim.AdamW([*low, *high], lr=0.05, eps=1e-4), torch.optim.AdamW(others, lr=0.05, eps=1e-4)
    with gradcanary.fp32_accumulators(optimizer):
        assert not any(each._post_accumulate_grad_hooks for each in high)
        for step in range(STEPS):
            for seed in range(K):
                gradients = [torch.randn(each.shape, generator=torch.Generator().manual_seed(seed)) for each in high]
                loss_of([each.square() for each in high], gradients).backward()
                loss_of([each.square() for each in others], gradients).backward()
            accumulate(low, micro_gradients(low, K, step))
            for stepping in (optimizer, other):
                stepping.step()
                stepping.zero_grad()
    assert_same(high, others)
    assert_same(states_of(optimizer)[-3 * len(high) :], states_of(other))


# -- clipping, scaling -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("max_norm", [0.5, 1e6])
def test_a_clip_sees_the_whole_sum_and_the_optimizer_what_it_made_of_it(max_norm: float, foreach: bool) -> None:
    given, others = parameters(), parameters()
    optimizer, other = torch.optim.SGD(given, lr=0.05), torch.optim.SGD(others, lr=0.05)
    micro = micro_gradients(given, 512, 0)
    sums = truth(micro)
    norm = float(torch.stack([each.norm() for each in sums]).norm())
    with gradcanary.fp32_accumulators(optimizer):
        accumulate(given, micro)
        found = torch.nn.utils.clip_grad_norm_(given, max_norm, foreach=foreach)
        optimizer.step()
    assert float(found) == pytest.approx(norm, rel=1e-6)
    for each, total in zip(others, sums, strict=True):
        each.grad = (total.float() * (max_norm / (found + 1e-6)).clamp(max=1.0)).to(BF16)
    other.step()
    assert_same(given, others)


@pytest.mark.parametrize("dtype", [BF16, FP16])
@pytest.mark.parametrize("is_unscaled", [True, False])
@pytest.mark.parametrize("kind", ["AdamW, a plain loop", "AdamW, foreach", "AdamW, fused"])
def test_a_grad_scaler_unscales_the_sum_and_skips_what_is_not_finite(
    kind: str, is_unscaled: bool, dtype: torch.dtype
) -> None:
    """float16: the scaled sums are beyond its range, what they stand for is not. Stock, unscale_() refuses it."""
    given, others = parameters(dtype), parameters(dtype)
    optimizer, other = OPTIMIZERS[kind](given), OPTIMIZERS[kind](others)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**15, growth_interval=10_000)
    scales = []
    with gradcanary.fp32_accumulators(optimizer):
        for step in range(4):
            micro = micro_gradients(given, 200, step)
            for number, gradients in enumerate(micro):
                factor = torch.tensor(float("inf") if (step, number) == (1, 5) else 1.0)
                scaler.scale(loss_of(given, gradients).float() * factor).backward()
            if is_unscaled:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            scales.append(scaler.get_scale())
            if step != 1:
                step_by_truth(other, others, truth(micro))
    assert scales == [2.0**15, *[2.0**14] * 3], "one step was skipped"
    assert_same(given, others)
    assert_same(states_of(optimizer), states_of(other))


def test_a_sum_beyond_float16_becomes_its_largest_number_and_no_infinity() -> None:
    given = nn.Parameter(torch.zeros(4, dtype=FP16))
    optimizer = torch.optim.SGD([given], lr=1.0)
    micro = torch.tensor([60000.0, -60000.0, 1.0, float("inf")], dtype=FP16)
    with gradcanary.fp32_accumulators(optimizer):
        accumulate([given], [[micro]] * 4)
        assert given.grad.tolist() == [240000.0, -240000.0, 4.0, float("inf")]
        optimizer.step()
    assert given.grad.tolist() == [65504.0, -65504.0, 4.0, float("inf")]


# -- closures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_keyword", [True, False])
@pytest.mark.parametrize("before", [0, K - 1], ids=["all in the closure", "the last one in the closure"])
@pytest.mark.parametrize("kind", ["AdamW, a plain loop", "AdamW, foreach", "AdamW, fused"])
def test_a_closure_hands_over_what_it_leaves(kind: str, before: int, is_keyword: bool) -> None:
    given, others = parameters(), parameters()
    optimizer, other = OPTIMIZERS[kind](given), OPTIMIZERS[kind](others)
    with gradcanary.fp32_accumulators(optimizer):
        for step in range(STEPS):
            micro = micro_gradients(given, K, step)
            accumulate(given, micro[:before])

            def closure(rest: list[list[torch.Tensor]] = micro[before:]) -> float:
                accumulate(given, rest)
                return 7.0

            assert (optimizer.step(closure=closure) if is_keyword else optimizer.step(closure)) == 7.0
            optimizer.zero_grad()
            step_by_truth(other, others, truth(micro))
    assert_same(given, others)


def test_lbfgs_evaluates_its_closure_often() -> None:
    """With nothing to lose in bfloat16 both must go the same way."""
    found = []
    for is_helped in (True, False):
        given = parameters(BF16, [(8,)])
        optimizer = torch.optim.LBFGS(given, lr=0.5, max_iter=5)
        accumulators = gradcanary.fp32_accumulators(optimizer) if is_helped else None

        def closure(given: list[nn.Parameter] = given, optimizer: torch.optim.Optimizer = optimizer) -> torch.Tensor:
            optimizer.zero_grad()
            loss = given[0].square().sum()
            loss.backward()
            return loss

        first = float(optimizer.step(closure).detach())
        assert float(closure().detach()) < first
        found.append(given[0].detach())
        if accumulators is not None:
            accumulators.close()
    assert torch.equal(*found)
