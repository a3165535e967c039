"""The framework that drives the training, found among the living objects: its first step and its run's name."""

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
"""Models whose words are more to the point than those of the loop that they are trained in."""

_LOOKED_AT = 8
"""Parameters whose state is asked: they agree, but for those that have no gradient yet."""


class Loop(NamedTuple):
    """What drives an optimizer; ``step`` counts the steps behind it, None where the framework does not."""

    framework: str
    step: int | None


def loop_of(optimizer: Optimizer, failed: Callable[[str, Exception], None]) -> Loop | None:
    """Return the loop that an optimizer was handed to, None where no framework has it.

    ``failed`` is told where the one that has it does not say its step; others may be half made, or of another use.
    """
    for (module, name), (framework, held, step) in _LOOPS.items():
        for driver in _living(module, name):
            is_ours = False
            with suppress(Exception):
                is_ours = any(_is_inside(optimizer, each) for each in held(driver))
            if is_ours:
                try:
                    return Loop(framework, step(driver))
                except Exception as error:  # noqa: BLE001 -- another version of it, maybe; whose loop it is we know
                    failed(f"asking {framework} for its step", error)
                    return Loop(framework, None)
    return None


def unwrapped(optimizer: Optimizer) -> Optimizer:
    """Return the optimizer that steps: what Accelerate prepared has another one inside."""
    for _ in range(4):  # more than anybody wraps; one that holds itself must not hold the training
        inner = None
        with suppress(Exception):
            inner = getattr(optimizer, "optimizer", None)
        optimizer = inner if isinstance(inner, Optimizer) else optimizer
    return optimizer


def framework_of(model: str | None, loop: Loop | None) -> str | None:
    """Return whose words to use: those of the model's framework, or of the loop's."""
    return loop.framework if loop is not None and model not in _ADAPTED else model


def run_name() -> str | None:
    """Return the name that the only ``TrainingArguments`` with one gives the run."""
    names = set()
    for told in _living("transformers.training_args", "TrainingArguments"):
        with suppress(Exception):
            name, folder = getattr(told, "run_name", None), getattr(told, "output_dir", None)
            if isinstance(name, str) and name.strip() and name != folder:  # older versions take the folder for a name
                names.add(name)
    return names.pop() if len(names) == 1 else None


def _living(module: str, name: str) -> list[Any]:
    kind = getattr(sys.modules.get(module), name, None)
    return live_objects(kind) if isinstance(kind, type) else []


def _is_inside(optimizer: Optimizer, wrapper: Any) -> bool:  # noqa: ANN401 -- anything with an optimizer in it
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
    # Counts micro-steps only; last, because the Trainer of transformers has one, too.
    ("accelerate.accelerator", "Accelerator"): (
        "accelerate",
        lambda accelerator: accelerator._optimizers,  # noqa: SLF001 -- suppressed where it is missing
        lambda _: None,
    ),
}
"""Classes, by module and name, to the framework, the optimizers that one of it drives, and its count of steps."""


def find_first_step(
    optimizer: torch.optim.Optimizer | None,
    given: int | None,
    failed: Callable[[str, Exception], None],
    *,
    is_late: bool = False,
) -> FirstStep:
    """Return the number of the first window; ``failed`` is told of a framework that does not say its step.

    What ``watch(step=)`` said; else the framework; else what the optimizer counted (Adam and its family); else 0, and
    that is relative. Reads the optimizer's counters: once, when the first window begins. ``is_late`` is known where the
    training ran before, whatever its counters say.
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
    """Say whether the optimizer is one that counts steps, and so has none behind it while its state is empty."""
    kinds = (torch.optim.Adam, torch.optim.AdamW, torch.optim.Adamax, torch.optim.NAdam, torch.optim.RAdam)
    return isinstance(optimizer, kinds) and not optimizer.state


@dataclass(frozen=True)
class FirstStep:
    """Where a session began; ``source`` as in the wire's ``step_source``, ``loop`` is a framework's."""

    number: int
    source: str
    is_late: bool
    optimizer: str
    loop: Loop | None
