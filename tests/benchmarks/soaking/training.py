"""One small real training of the soak, with a record of its own gradients. Started by the soak as a program.

python training.py FOLDER KIND SEED RUN. It trains until FOLDER has a file ``finish`` or ``crash``. With an empty RUN it
does not watch itself: the soak attaches to it. ``FOLDER/truth`` gets a row for each step, before the optimizer's.
"""

import random
import struct
import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn

import gradcanary

BLOCKS, WIDTH, LAYERS = 6, 16, 14
PAUSE_S = 0.25
FAULT_STEP = 300
FAULTY_STEPS = 150
"""A training with a fault makes as many steps after it before it ends."""

ROW = struct.Struct(f"<qd{LAYERS}f")
"""Of the truth: the step, the time, the absmax of each parameter's gradient."""


class Residual(nn.Module):
    """Blocks beside a way around them: without one of them the others go on learning."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, WIDTH)
        self.gates = [1.0] * BLOCKS
        self.register_buffer("target", torch.randn(WIDTH, WIDTH) / 4)

    def loss(self) -> Tensor:
        """Return the loss of a new batch, with noise: the gradients never end."""
        inputs = torch.randn(16, WIDTH)
        hidden = inputs
        for gate, block in zip(self.gates, self.blocks, strict=True):
            hidden = hidden + gate * torch.tanh(block(hidden))
        return (self.head(hidden) - inputs @ self.target - 0.3 * torch.randn_like(inputs)).square().mean()


def train(folder: Path, kind: str, run: str) -> None:
    """Train until the order comes, and write down each gradient as autograd left it."""
    model = Residual()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    parameters = list(model.parameters())
    if run:
        gradcanary.watch(model, optimizer, run=run, every=1)
    least = FAULT_STEP + FAULTY_STEPS if kind in ("collapse", "nan") else 0
    with (folder / "truth").open("ab", buffering=0) as truth:
        step = 0
        while not ((folder / "finish").exists() and step >= least):
            if kind == "collapse" and step == FAULT_STEP:
                model.gates[2] = 1e-7
            loss = model.loss() * (float("nan") if kind == "nan" and 0 <= step - FAULT_STEP < 3 else 1.0)
            loss.backward()
            absmax = torch.stack([each.grad.abs().max() for each in parameters]).tolist()
            truth.write(ROW.pack(step, time.time(), *absmax))
            for each in parameters:
                each.grad.nan_to_num_()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if (folder / "crash").exists():
                raise RuntimeError("the soak ordered this crash")
            time.sleep(PAUSE_S * random.uniform(0.8, 1.2))


def main() -> None:
    """Train, watched by itself or not."""
    folder, kind, seed, run = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    train(folder, kind, run)


if __name__ == "__main__":
    main()
