"""A real LoRA training on CPU, small enough to watch: eight blocks learn to follow eight others.

The fault is one honest change of a hyper-parameter. From a step on, the parameter group of ``lora_B`` in three blocks
has a wrong weight decay: with the small learning rate of that group it halves the weights each step. A LoRA layer
computes ``B A x``, so the gradient of ``lora_A`` is proportional to ``lora_B`` and dies with it. The gradient of
``lora_B``, all other blocks and the loss stay healthy. Nothing here touches a gradient.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gradcanary.demo.verdict import FAULT_STEP

BLOCKS = 8
WIDTH = 128
RANK = 8
MICRO_STEPS = 8
EXAMPLES = 16
"""In one micro-batch."""

FAULTY_BLOCKS = (3, 4, 5)
LEARNING_RATE = 1e-3


@dataclass(frozen=True)
class Fault:
    """A wrong weight decay of one parameter group: from ``step`` on these values, for ``steps``, and then none at all.

    AdamW multiplies a weight with ``1 - lr * weight_decay`` in each step (decoupled weight decay,
    https://arxiv.org/abs/1711.05101).
    """

    step: int = FAULT_STEP
    lr: float = 5e-6
    weight_decay: float = 1e5
    steps: int | None = None

    @classmethod
    def shrinking(cls, by: float, over: int, step: int = FAULT_STEP) -> Fault:
        """Return the schedule that makes the weights ``by`` times smaller over ``over`` steps, then holds them."""
        lr = 1e-8
        return cls(step, lr, (1 - by ** (-1 / over)) / lr, over)

    def apply(self, group: dict[str, object], step: int) -> None:
        """Set the values of this step in the parameter group."""
        if step == self.step:
            group.update(lr=self.lr, weight_decay=self.weight_decay)
        elif self.steps is not None and step == self.step + self.steps:
            group.update(lr=0.0, weight_decay=0.0)


class LoraBlock(nn.Module):
    """A frozen linear map with a low-rank correction, inside a residual connection."""

    def __init__(self, width: int, correction: float = 0.0) -> None:
        super().__init__()
        self.base = nn.Linear(width, width, bias=False).requires_grad_(requires_grad=False)
        self.lora_A = nn.Linear(width, RANK, bias=False)
        self.lora_B = nn.Linear(RANK, width, bias=False)
        nn.init.orthogonal_(self.base.weight)
        nn.init.orthogonal_(self.lora_A.weight)
        nn.init.normal_(self.lora_B.weight, std=correction)

    def forward(self, x: Tensor) -> Tensor:
        """Return the input and half of the corrected map of it, [examples, width]."""
        return x + 0.5 * torch.tanh(self.base(x) + self.lora_B(self.lora_A(x)))


class Model(nn.Module):
    """Blocks in a row."""

    def __init__(self, width: int = WIDTH, correction: float = 0.0) -> None:
        super().__init__()
        self.width = width
        self.blocks = nn.ModuleList(LoraBlock(width, correction) for _ in range(BLOCKS))

    def forward(self, x: Tensor) -> Tensor:
        """Return [examples, width]."""
        for block in self.lora_blocks():
            x = block(x)
        return x

    def lora_blocks(self) -> list[LoraBlock]:
        """Return the blocks in their order."""
        return [block for block in self.blocks if isinstance(block, LoraBlock)]


@dataclass(frozen=True)
class Job:
    """A student, the teacher it follows, and its optimizer; parameter group 1 is ``lora_B`` of the faulty blocks."""

    model: Model
    teacher: Model
    optimizer: torch.optim.AdamW

    @classmethod
    def build(cls, seed: int = 0, width: int = WIDTH) -> Job:
        """Return a job that does the same for the same seed."""
        torch.manual_seed(seed)
        model, teacher = Model(width), Model(width, correction=0.3)
        for student, other in zip(model.lora_blocks(), teacher.lora_blocks(), strict=True):
            other.base.load_state_dict(student.base.state_dict())
        faulty = [model.lora_blocks()[block].lora_B.weight for block in FAULTY_BLOCKS]
        faulty_ids = set(map(id, faulty))
        others = [each for each in model.parameters() if each.requires_grad and id(each) not in faulty_ids]
        groups: list[dict[str, Any]] = [{"params": others}, {"params": faulty}]
        return cls(model, teacher, torch.optim.AdamW(groups, lr=LEARNING_RATE, weight_decay=0.0))

    def accumulate(self) -> float:
        """Add up the gradients of one step, and return its loss."""
        total = 0.0
        for _ in range(MICRO_STEPS):
            x = torch.randn(EXAMPLES, self.model.width)
            with torch.no_grad():
                target = self.teacher(x) + 0.3 * torch.randn_like(x)
            loss = (self.model(x) - target).square().sum(1).mean() / 32 / MICRO_STEPS
            loss.backward()
            total += loss.item()
        return total


def train(
    job: Job, steps: int, fault: Fault | None = None, on_gradients: Callable[[int, Model], None] | None = None
) -> float:
    """Train, and return the last loss; ``on_gradients`` is called before each step."""
    loss = float("nan")
    for step in range(steps):
        loss = job.accumulate()
        if on_gradients is not None:
            on_gradients(step, job.model)
        if fault is not None:
            fault.apply(job.optimizer.param_groups[1], step)
        job.optimizer.step()
        job.optimizer.zero_grad()
    return loss


def main(argv: Sequence[str] | None = None) -> None:
    """Train and watch, as a user's script does."""
    import gradcanary

    parser = argparse.ArgumentParser(description="A LoRA training that gradcanary watches.")
    parser.add_argument("--run", required=True, help="name of the run")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--width", type=int, default=WIDTH)
    parser.add_argument("--fault", action="store_true", help="give lora_B of blocks 3-5 a wrong weight decay")
    parser.add_argument("--fault-step", type=int, default=FAULT_STEP)
    parser.add_argument("--shrink", type=float, help="make it so many times smaller, then hold it")
    parser.add_argument("--over", type=int, default=20, help="steps that this takes (default: %(default)s)")
    arguments = parser.parse_args(argv)
    fault = Fault(arguments.fault_step) if arguments.fault else None
    if arguments.shrink is not None:
        fault = Fault.shrinking(arguments.shrink, arguments.over, arguments.fault_step)
    torch.set_num_threads(1)
    job = Job.build(arguments.seed, arguments.width)
    with gradcanary.watch(run=arguments.run):
        train(job, arguments.steps, fault)


if __name__ == "__main__":
    main()
