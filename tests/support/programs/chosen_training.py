"""A small seeded training whose arguments choose dtype, rate, micro-steps, batch and checkpointing.

``--undivided`` does not divide the loss by the micro-steps; ``--forgets-masks`` checkpoints without the random state.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

WIDTH, CLASSES = 64, 8
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Classifier(nn.Module):
    def __init__(self, *, is_checkpointed: bool, keeps_rng: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Dropout(0.1)) for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, CLASSES)
        self.is_checkpointed, self.keeps_rng = is_checkpointed, keeps_rng

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            if self.is_checkpointed:
                x = x + checkpoint(block, x, use_reentrant=False, preserve_rng_state=self.keeps_rng)
            else:
                x = x + block(x)
        return self.head(x)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", choices=DTYPES, default="fp32")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--checkpointing", type=int, default=0)
    parser.add_argument("--undivided", action="store_true")
    parser.add_argument("--forgets-masks", action="store_true")
    parser.add_argument("--sums", choices=DTYPES, default="fp32")
    return parser.parse_args()


def train(arguments: argparse.Namespace) -> None:
    torch.manual_seed(0)
    truth = torch.randn(WIDTH, CLASSES)
    data = torch.Generator().manual_seed(1)
    model = Classifier(is_checkpointed=bool(arguments.checkpointing), keeps_rng=not arguments.forgets_masks)
    model.to(DTYPES[arguments.sums])
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=0.9)
    while True:
        for _ in range(arguments.accumulate):
            x = torch.randn(arguments.batch, WIDTH, generator=data)
            with torch.autocast("cpu", torch.bfloat16, enabled=arguments.dtype == "bf16"):
                scores = model(x.to(DTYPES[arguments.sums]))
            loss = functional.cross_entropy(scores.float(), (x @ truth).argmax(1))
            (loss if arguments.undivided else loss / arguments.accumulate).backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    train(parse())
