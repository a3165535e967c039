"""Micro-gradients that are known beforehand, and what float64 says that they add up to. Imported, not run.

Elements are multiples of 1/1024 below 1/8 in magnitude: bfloat16 holds each, float32 any sum of thousands of them. So
what is summed in float32 is exact, and its rounding to bfloat16 is that of the truth.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

SIZES = ((8, 16), (16,), (5,))


def parameters(dtype: torch.dtype = torch.bfloat16, sizes: Sequence[tuple[int, ...]] = SIZES) -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(size).to(dtype)) for size in sizes]


def micro_gradients(given: Sequence[Tensor], micro_steps: int, seed: int) -> list[list[Tensor]]:
    """Return for each micro-step a gradient per parameter."""
    generator = torch.Generator().manual_seed(seed)
    return [
        [(torch.randint(-127, 128, each.shape, generator=generator) / 1024).to(each.dtype) for each in given]
        for _ in range(micro_steps)
    ]


def loss_of(given: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
    """Return a loss whose gradients are these."""
    return torch.stack([(each * gradient).sum() for each, gradient in zip(given, gradients, strict=True)]).sum()


def accumulate(given: Sequence[Tensor], micro: Sequence[Sequence[Tensor]]) -> None:
    for gradients in micro:
        loss_of(given, gradients).backward()


def truth(micro: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """Return the sums in float64."""
    return [torch.stack([each.double() for each in column]).sum(0) for column in zip(*micro, strict=True)]


def step_by_truth(optimizer: torch.optim.Optimizer, given: Sequence[Tensor], sums: Sequence[Tensor]) -> None:
    """Let a stock optimizer step with the true gradients, rounded once."""
    for each, total in zip(given, sums, strict=True):
        each.grad = total.to(each.dtype)
    optimizer.step()
    optimizer.zero_grad()


def assert_same(given: Sequence[Tensor], others: Sequence[Tensor]) -> None:
    """Compare bit for bit."""
    for each, other in zip(given, others, strict=True):
        assert each.dtype is other.dtype
        assert torch.equal(each.detach(), other.detach())


def states_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    states = optimizer.state_dict()["state"].values()
    return [torch.as_tensor(state[key]) for state in states for key in sorted(state) if state[key] is not None]


def adamw(given: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(given, lr=0.05)


def assert_nothing_is_left(given: list[nn.Parameter], optimizer: torch.optim.Optimizer) -> None:
    assert not any(each._post_accumulate_grad_hooks for each in given)
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    assert type(optimizer).step.__name__ == "step"
    assert "step" not in vars(optimizer)
    assert [each.grad_dtype for each in given] == [each.dtype for each in given]
    assert all(each.grad is None or each.grad.dtype is each.dtype for each in given)


def summed_in(given: list[nn.Parameter]) -> list[torch.dtype]:
    """Return the dtypes that gradients are summed in, of those that have one."""
    return [each.grad.dtype for each in given if each.grad is not None]
