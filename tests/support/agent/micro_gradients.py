"""The gradients of a training by float64, without the agent: what torch hands to each parameter, summed up by us."""

import gc
import hashlib
import importlib
import random
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType

import pytest
import torch
from torch import nn

from gradcanary import api
from support.agent.recorded import Recorded

EXACT = 1e-6
"""Relative: float32 sums of the same micro-gradients, of the same elements."""

K, BATCHES, EPOCHS = 4, 10, 2
COUNTS = [4, 4, 2, 4, 4, 2]
"""The micro-steps of each window: an epoch ends with one that is cut short."""
CUT_SHORT = {2, 5}


class MicroGradients:
    """Keeps each gradient that a backward pass brings to a trainable parameter of a model, before it is added."""

    def __init__(self, model: nn.Module) -> None:
        self._of: dict[str, list[torch.Tensor]] = {}
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                self._of[name] = []
                parameter.register_hook(lambda gradient, name=name: self._keep(name, gradient))

    def _keep(self, name: str, gradient: torch.Tensor) -> None:
        self._of[name].append(gradient.detach().double())

    @property
    def names(self) -> list[str]:
        return list(self._of)

    def windows(self, counts: Sequence[int]) -> list[dict[str, torch.Tensor]]:
        """Return the accumulated gradients of windows of so many micro-steps each, which must be all there are."""
        assert {len(each) for each in self._of.values()} == {sum(counts)}
        starts = [sum(counts[:window]) for window in range(len(counts))]
        return [
            {name: sum(each[start : start + count]) for name, each in self._of.items()}
            for start, count in zip(starts, counts, strict=True)
        ]


def total_norms(windows: Sequence[dict[str, torch.Tensor]]) -> list[float]:
    """Return the norm over all layers of each window."""
    return [float(torch.stack([each.norm() for each in window.values()]).norm()) for window in windows]


def sums_of(losses: Sequence[float], counts: Sequence[int], divisor: float) -> dict[int, float]:
    """Return what the losses of the micro-steps add up to, by step."""
    starts = [sum(counts[:step]) for step in range(len(counts))]
    return {step: sum(losses[start : start + counts[step]]) / divisor for step, start in enumerate(starts)}


def clip_factors(windows: Sequence[dict[str, torch.Tensor]], max_norm: float) -> list[float]:
    """Return what ``clip_grad_norm_`` multiplies the gradients of each window with."""
    return [min(1.0, max_norm / (total + 1e-6)) for total in total_norms(windows)]


def assert_sent(
    collector: Recorded,
    windows: Sequence[dict[str, torch.Tensor]],
    *,
    first: int = 0,
    factors: dict[int, float] | None = None,
    rel: float = EXACT,
) -> None:
    """Compare all that was sent with all windows; ``factors`` are of those that were read after a clip."""
    assert collector.steps() == list(range(first, first + len(windows)))
    for step, window in enumerate(windows, first):
        factor = (factors or {}).get(step, 1.0)
        absmax = {name: factor * float(each.abs().max()) for name, each in window.items()}
        norm = {name: factor * float(each.norm()) for name, each in window.items()}
        assert collector.stat("absmax")[step] == pytest.approx(absmax, rel=rel, abs=0), step
        assert collector.stat("norm")[step] == pytest.approx(norm, rel=rel, abs=0), step


def assert_clipped_windows(
    collector: Recorded, micro: MicroGradients, counts: Sequence[int], max_norm: float, *, late: Collection[int]
) -> None:
    """Compare what a loop that clips must have sent; ``late`` are the steps that say ``post_clip``."""
    windows = micro.windows(counts)
    totals = dict(enumerate(total_norms(windows)))
    factors = dict(enumerate(clip_factors(windows, max_norm)))
    early = [step for step in factors if step not in late]
    assert {factors[step] < 1 for step in early} == {True, False}, "some are clipped"
    assert collector.names == micro.names
    assert_sent(collector, windows, factors={step: factors[step] for step in late})
    assert collector.phase_of("norm") == {step: "post_clip" if step in late else "accumulated" for step in factors}
    assert collector.per_step("micro_steps") == counts
    assert set(collector.per_step("skipped")) == {0}
    assert collector.metric("total_norm") == pytest.approx({step: totals[step] for step in early}, rel=EXACT)
    assert [collector.per_step("clipped")[step] for step in early] == [int(factors[step] < 1) for step in early]
    assert collector.metric("clip_factor") == pytest.approx({step: factors[step] for step in early}, rel=1e-5)


def imported(loops: str) -> ModuleType:
    """Import the loops of a framework: whoever runs their tests, not all who collect them.

    Its objects are frozen, or each search among the living ones would pass them, in all tests that this process runs.
    """
    module = importlib.import_module(loops)
    gc.collect()
    gc.freeze()
    return module


@contextmanager
def launched(url: str) -> Iterator[None]:
    """Watch as ``gradcanary run`` does once torch is imported."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("GRADCANARY_URL", url)
        patched.setenv("GRADCANARY_RUN", "launched")
        api.watch_when_training()
    (watched,) = api._open
    with watched:
        yield


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Threads that wait for each other cost more than such models."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def handed_to(optimizer: torch.optim.Optimizer) -> list[list[torch.Tensor]]:
    """Return, of each step from now on, the gradients that the optimizer got, in the order of its parameters."""
    steps: list[list[torch.Tensor]] = []

    def stepped(inner: torch.optim.Optimizer, _args: object, _kwargs: object) -> None:
        steps.append([parameter.grad.clone() for group in inner.param_groups for parameter in group["params"]])

    optimizer.register_step_post_hook(stepped)
    return steps


def assert_handed(steps: Sequence[Sequence[torch.Tensor]], micro: MicroGradients, counts: Sequence[int]) -> None:
    """Compare with float64: what an optimizer of bfloat16 parameters got are the sums, rounded once."""
    windows = micro.windows(counts)
    assert len(steps) == len(windows)
    for gradients, window in zip(steps, windows, strict=True):
        for gradient, total in zip(gradients, window.values(), strict=True):
            assert gradient.dtype is torch.bfloat16
            assert torch.equal(gradient, total.float().to(torch.bfloat16))


def left_behind(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Return a digest of what a training leaves: parameters, optimizer state, generators of random numbers."""
    found = hashlib.sha256()
    tensors = [*model.state_dict().values()]
    for state in optimizer.state_dict()["state"].values():
        tensors += [torch.as_tensor(state[key]) for key in sorted(state) if state[key] is not None]
    for tensor in tensors:
        found.update(tensor.numpy().tobytes())
    found.update(torch.get_rng_state().numpy().tobytes() + repr(random.getstate()).encode())
    return found.hexdigest()
