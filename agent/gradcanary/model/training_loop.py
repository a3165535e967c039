"""The framework that drives the training, found among the live objects: its first step and its run's name."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.optim import Optimizer

from gradcanary.model.parameters import live_objects

_ADAPTED = ("peft", "diffusers")
"""Frameworks of models whose remedies fit better than those of the framework of the loop."""

_LOOKED_AT = 8
"""Parameters whose step counter is read. All agree, except those that never had a gradient."""


class Loop(NamedTuple):
    """The framework that drives an optimizer, and the steps it has counted; None if it does not count them."""

    framework: str
    step: int | None


def loop_of(optimizer: Optimizer, failed: Callable[[str, Exception], None]) -> Loop | None:
    """Return the loop that drives an optimizer, None if no framework does.

    ``failed`` gets the error if the framework's step cannot be read. Errors of other objects are ignored: they may be
    half made, or have another use.
    """
    for (module, name), (framework, held, step) in _LOOPS.items():
        for driver in _living(module, name):
            is_ours = False
            with suppress(Exception):  # a driver that is half made has no optimizer yet
                is_ours = any(_is_inside(optimizer, each) for each in held(driver))
            if is_ours:
                try:
                    return Loop(framework, step(driver))
                except Exception as error:  # noqa: BLE001 -- maybe another version; the framework is known all the same
                    failed(f"asking {framework} for its step", error)
                    return Loop(framework, None)
    return None


def unwrapped(optimizer: Optimizer) -> Optimizer:
    """Return the optimizer that steps: one that Accelerate prepared wraps another."""
    for _ in range(4):  # deeper than any wrapping; an optimizer that holds itself must not hang the training
        inner = None
        with suppress(Exception):  # a property of any class may raise
            inner = getattr(optimizer, "optimizer", None)
        optimizer = inner if isinstance(inner, Optimizer) else optimizer
    return optimizer


def framework_of(model: str | None, loop: Loop | None) -> str | None:
    """Return the framework to write remedies for: the model's or the loop's."""
    return loop.framework if loop is not None and model not in _ADAPTED else model


def run_name() -> str | None:
    """Return the name that the only ``TrainingArguments`` with one gives the run."""
    names = set()
    for arguments in _living("transformers.training_args", "TrainingArguments"):
        with suppress(Exception):  # as above
            name, folder = getattr(arguments, "run_name", None), getattr(arguments, "output_dir", None)
            if isinstance(name, str) and name.strip() and name != folder:  # older versions use the folder as name
                names.add(name)
    return names.pop() if len(names) == 1 else None


def _living(module: str, name: str) -> list[Any]:
    kind = getattr(sys.modules.get(module), name, None)
    return live_objects(kind) if isinstance(kind, type) else []


def _is_inside(optimizer: Optimizer, wrapper: Any) -> bool:  # noqa: ANN401 -- any object that may hold an optimizer
    return isinstance(wrapper, Optimizer) and unwrapped(wrapper) is unwrapped(optimizer)


def _step_of_lightning(trainer: Any) -> int | None:  # noqa: ANN401 -- a Trainer of a framework that is not imported here
    # It adds up the steps of all optimizers.
    return int(trainer.global_step) if len(trainer.optimizers) == 1 else None


_LIGHTNING = ("lightning", lambda trainer: trainer.optimizers, _step_of_lightning)
_LOOPS: dict[tuple[str, str], tuple[str, Callable[[Any], Iterable[Any]], Callable[[Any], int | None]]] = {
    ("transformers.trainer", "Trainer"): (
        "transformers",
        lambda trainer: [trainer.optimizer],
        lambda trainer: int(trainer.state.global_step),
    ),
    ("lightning.pytorch.trainer.trainer", "Trainer"): _LIGHTNING,
    ("pytorch_lightning.trainer.trainer", "Trainer"): _LIGHTNING,
    # Counts micro-steps only. Last, because the Trainer of transformers holds one too.
    ("accelerate.accelerator", "Accelerator"): (
        "accelerate",
        lambda accelerator: accelerator._optimizers,  # noqa: SLF001 -- suppressed where it is missing
        lambda _: None,
    ),
}
"""By module and name of a class: the framework, the optimizers that an object drives, and its step count."""


def find_first_step(
    optimizer: torch.optim.Optimizer | None,
    given: int | None,
    failed: Callable[[str, Exception], None],
    *,
    is_late: bool = False,
) -> FirstStep:
    """Return the first step; ``failed`` gets the error if the framework's step cannot be read.

    In this order: ``watch(step=)``, the framework's count, the optimizer's count (Adam and its family), and a relative
    0. Reads the optimizer's counters: once, when the first window begins. ``is_late`` is True if the training is known
    to have run before, whatever its counters are.
    """
    optimizer = None if optimizer is None else unwrapped(optimizer)
    name, loop = "unknown", None
    if optimizer is not None:
        name, loop = type(optimizer).__name__, loop_of(optimizer, failed)
    if given is not None:
        return FirstStep(given, "given", is_late=is_late, optimizer=name, loop=loop)
    if loop is not None and loop.step is not None:
        return FirstStep(loop.step, "framework", is_late=is_late or loop.step > 0, optimizer=name, loop=loop)
    counted = [] if optimizer is None else [_number(state["step"]) for state in _states(optimizer) if "step" in state]
    if counted:
        step = max(counted)
        return FirstStep(step, "optimizer", is_late=is_late or step > 0, optimizer=name, loop=loop)
    source = "optimizer" if _counts(optimizer) else "relative"
    return FirstStep(0, source, is_late=is_late, optimizer=name, loop=loop)


def _states(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    return [state for state in itertools.islice(optimizer.state.values(), _LOOKED_AT) if isinstance(state, dict)]


def _number(step: object) -> int:
    return int(step) if isinstance(step, (int, float, torch.Tensor)) else 0


def _counts(optimizer: torch.optim.Optimizer | None) -> bool:
    """Return True if the optimizer counts its steps and has made none."""
    kinds = (torch.optim.Adam, torch.optim.AdamW, torch.optim.Adamax, torch.optim.NAdam, torch.optim.RAdam)
    return isinstance(optimizer, kinds) and not optimizer.state


@dataclass(frozen=True)
class FirstStep:
    """The first step of a session; ``source`` is the wire's ``step_source``, ``loop`` the framework's."""

    number: int
    source: str
    is_late: bool
    optimizer: str
    loop: Loop | None
