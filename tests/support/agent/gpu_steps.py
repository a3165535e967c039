"""Kinds of training steps, on one device; a step makes its own numbers there and reads none. Imported, not run."""

import os
import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar

import torch
from torch import Tensor, nn

import gradcanary
from support.agent.recorded import Recorded

DEVICE = torch.device(os.environ.get("GRADCANARY_TEST_DEVICE", "cuda"))


class Plain:
    """AdamW, ``foreach`` as torch chooses on a GPU."""

    dtype: ClassVar[torch.dtype] = torch.float32
    micro_steps: ClassVar[int] = 1
    waits_itself: ClassVar[bool] = False

    def __init__(self) -> None:
        torch.manual_seed(0)
        layers = (nn.Linear(64, 96), nn.Tanh(), nn.Linear(96, 96), nn.Tanh(), nn.Linear(96, 8))
        self.model: nn.Module = nn.Sequential(*layers).to(DEVICE, self.dtype)
        self.optimizer = self.optimizer_of(list(self.model.parameters()))
        self.generator = torch.Generator(DEVICE).manual_seed(1)

    def optimizer_of(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=1e-3)

    def loss(self) -> Tensor:
        x = torch.randn(16, 64, device=DEVICE, dtype=self.dtype, generator=self.generator)
        loss: Tensor = self.model(x).float().square().mean()
        return loss

    def accumulate(self) -> None:
        """Make the gradients of a window."""
        for _ in range(self.micro_steps):
            self.loss().backward()

    def finish(self) -> None:
        """Step, and clear them."""
        self.optimizer.step()
        self.optimizer.zero_grad()


class Accumulated(Plain):
    micro_steps = 4


class Fused(Accumulated):
    def optimizer_of(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=1e-3, fused=True)


class Capturable(Plain):
    def optimizer_of(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=torch.tensor(1e-3, device=DEVICE), capturable=DEVICE.type == "cuda")


class Clipped(Accumulated):
    def finish(self) -> None:
        nn.utils.clip_grad_norm_(self.model.parameters(), 1e-2)
        super().finish()


class Uncleared(Plain):
    """Where marks, copies and comparisons go on until it is found."""

    def finish(self) -> None:
        self.optimizer.step()


class LowPrecision(Accumulated):
    """Where sums are shadowed, weights stand still, and something is foreseen."""

    dtype = torch.bfloat16

    def optimizer_of(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=1e-6)


class Scaled(Accumulated):
    """Under float16 autocast, with a GradScaler whose own step waits for ``found_inf``."""

    waits_itself = True

    def __init__(self) -> None:
        super().__init__()
        self.scaler = torch.amp.GradScaler(DEVICE.type, init_scale=2.0**10, growth_interval=5)

    def accumulate(self) -> None:
        for _ in range(self.micro_steps):
            with torch.autocast(DEVICE.type, torch.float16 if DEVICE.type == "cuda" else torch.bfloat16):
                loss = self.loss()
            self.scaler.scale(loss).backward()

    def finish(self) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()


class ScaledFused(Scaled):
    """The fused kernel looks at ``found_inf`` itself, so that nobody waits."""

    waits_itself = False

    def optimizer_of(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=1e-3, fused=True)


class Remedied(LowPrecision):
    def __init__(self) -> None:
        super().__init__()
        self.sums = gradcanary.fp32_accumulators(self.optimizer)


KINDS: tuple[type[Plain], ...] = (
    *(Plain, Accumulated, Fused, Capturable, Clipped),
    *(Uncleared, LowPrecision, Scaled, ScaledFused, Remedied),
)


def watching(kind: Plain, collector: Recorded, *, is_watched: bool) -> AbstractContextManager[gradcanary.Watch | None]:
    if not is_watched:
        return nullcontext()
    return gradcanary.watch(kind.model, kind.optimizer, url=collector.url, run="gpu", every=1)


def norms_of(model: nn.Module, scale: float = 1.0) -> dict[str, float]:
    """Return the L2 norms of the gradients in float64."""
    gradients = {name: each.grad for name, each in model.named_parameters()}
    return {name: float(each.double().norm()) / scale for name, each in gradients.items() if each is not None}


def debug(mode: str) -> None:
    if DEVICE.type == "cuda":
        with warnings.catch_warnings():
            # Said by the first call of a process, whatever the mode.
            warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype feature")
            torch.cuda.set_sync_debug_mode(mode)


def waits(kind: type[Plain], collector: Recorded, steps: int, mode: str, *, is_watched: bool) -> int:
    """Return how often torch waited for the device in steps after the first two, which prepare.

    In mode "error" what would wait raises, also in our hooks, where it is caught and counted.
    """
    trained = kind()
    with watching(trained, collector, is_watched=is_watched) as watch, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for step in range(steps):
            if step == 2:
                told.clear()
                debug(mode)
            trained.accumulate()
            trained.finish()
        debug("default")
    if watch is not None:
        assert watch._session.guard.caught == watch._session._queue.dropped == 0, watch._session.guard.facts
    return sum("synchronizing CUDA operation" in str(each.message) for each in told)
