"""One small training job: what it trains, what happens at which step, and how it runs under ``gradcanary.watch()``.

The loop is a plain one. Between the backward pass and the step it reads every ``.grad`` in float64: the truth that a
case is judged by, and all that the rules of others are given.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer


def nothing(_step: int) -> None:
    """Let a step be as any other."""


@dataclass
class Job:
    """A training; ``loss`` gives that of one micro-step of a step, ``happens`` comes before each step.

    ``advance`` stands for ``optimizer.step()`` where more is done there, ``clear`` for ``optimizer.zero_grad()``,
    ``logged`` for a loss that the loop logs itself, ``proof`` for what else it can tell of its layers in the end,
    ``first_step`` for where a resumed one begins.
    """

    model: nn.Module
    optimizer: Optimizer
    loss: Callable[[int], Tensor]
    steps: int = 300
    happens: Callable[[int], None] = nothing
    micro_steps: int = 1
    advance: Callable[[int], None] | None = None
    clear: Callable[[], None] | None = None
    scaled: Callable[[Tensor], Tensor] | None = None
    logged: Callable[[], float] | None = None
    proof: Callable[[], dict[str, float]] = dict
    first_step: int = 0


PLANES = ("absmax", "mean", "norm", "zeros", "moved", "weights", "left")
"""What is read of each step and layer."""

Build = Callable[[], Job | Iterable[Job]]


class Reading:
    """Per step and layer, in float64: of the gradient, and of what the step did to the weights.

    Of the gradient: absmax and mean of |g|, the L2 norm, the share of exact zeros; a layer without one is NaN in all of
    them, and one that is not finite is infinite. ``left``: the absmax of ``.grad`` as the step begins, NaN without one.
    ``moved``: the L2 norm of the difference of the weights from one step's end to the next; ``weights``: their own.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.is_matrix: list[bool] = []
        self.sizes: list[int] = []
        self._rows: list[list[tuple[float, float, float, float]]] = []
        self._left: list[list[float]] = []
        self._steps: list[list[tuple[float, float]]] = []
        self._weights: list[np.ndarray] = []
        self._losses: list[float] = []

    def begin(self, model: nn.Module) -> None:
        """Read what is in ``.grad`` before the first backward pass of a step."""
        if not self.names:
            named = list(model.named_parameters())
            self.names = [name for name, _ in named]
            self.is_matrix = [each.dim() > 1 for _, each in named]
            self.sizes = [each.numel() for _, each in named]
            self._weights = [_doubles(each) for each in model.parameters()]
        self._left.append([_numbers(each.grad)[0] for each in model.parameters()])

    def take(self, model: nn.Module, loss: float) -> None:
        """Read all gradients as they are."""
        self._rows.append([_numbers(each.grad) for each in model.parameters()])
        self._losses.append(loss)

    def end(self, model: nn.Module) -> None:
        """Read how far the weights moved since the last step's end."""
        now = [_doubles(each) for each in model.parameters()]
        pairs = zip(now, self._weights, strict=True)
        with np.errstate(invalid="ignore", over="ignore"):  # weights that are not finite
            self._steps.append([(_norm(each - before), _norm(each)) for each, before in pairs])
        self._weights = now

    def write(self, path: Path, proof: dict[str, float]) -> None:
        """Write what was read to a file for :class:`detection.truths.Read`."""
        planes = (*np.array(self._rows).transpose(2, 0, 1), *np.array(self._steps).transpose(2, 0, 1), self._left)
        names = dict(zip(PLANES, planes, strict=True))
        told = [proof.get(name, np.nan) for name in self.names]
        np.savez(
            path, names=self.names, is_matrix=self.is_matrix, sizes=self.sizes, loss=self._losses, proof=told, **names
        )


def _numbers(gradient: Tensor | None) -> tuple[float, float, float, float]:
    if gradient is None:
        return (np.nan,) * 4
    size = np.abs(_doubles(gradient))
    most = float(size.max())
    if not np.isfinite(most):
        return (np.inf, np.inf, np.inf, 0.0)
    return most, float(size.mean()), _norm(size), 1 - np.count_nonzero(size) / size.size


def _doubles(tensor: Tensor) -> np.ndarray:
    return tensor.detach().double().numpy().ravel().copy()


def _norm(numbers: np.ndarray) -> float:
    return float(numbers @ numbers) ** 0.5


def train(job: Job, reading: Reading, log: Callable[[float], None], wait: Callable[[int], None] = nothing) -> None:
    """Train a job to its end; ``log`` takes a loss that the loop logs itself, ``wait`` comes after each step."""
    for step in range(job.first_step, job.first_step + job.steps):
        reading.begin(job.model)
        job.happens(step)
        total = 0.0
        for _ in range(job.micro_steps):
            loss = job.loss(step) / job.micro_steps
            (loss if job.scaled is None else job.scaled(loss)).backward()
            total += float(loss.detach())
        if job.logged is not None:
            total = job.logged()
            log(total)
        reading.take(job.model, total)
        if job.advance is None:
            job.optimizer.step()
        else:
            job.advance(step)
        (job.optimizer.zero_grad if job.clear is None else job.clear)()
        reading.end(job.model)
        wait(step)


def launches(build: Build) -> Iterator[Job]:
    """Return the launches of a case, most have one."""
    torch.manual_seed(0)
    built = build()
    yield from [built] if isinstance(built, Job) else built


def run(
    build: Build,
    watched: Callable[[int], AbstractContextManager[object]],
    path: Path,
    wait: Callable[[int], None] = nothing,
) -> None:
    """Run all launches, each in what ``watched(first_step)`` gives, and write what was read."""
    reading, proof = Reading(), {}
    for job in launches(build):
        with watched(job.first_step) as watch:
            train(job, reading, lambda loss, watch=watch: watch.log(loss=loss), wait)  # type: ignore[misc]
        proof = job.proof()
    reading.write(path, proof)
