"""The micro-steps are an inner loop, in a function."""

import torch
import torch.nn.functional as F
from torch import nn, optim


def train(model, batches, micro_steps=4):
    opt = optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(3):
        opt.zero_grad()
        for _ in range(micro_steps):
            x, y = next(batches)
            loss = F.cross_entropy(model(x), y)
            loss.backward()  # <- loss_not_divided
        opt.step()


def random_batches():
    while True:
        yield torch.randn(8, 16), torch.randint(4, (8,))


if __name__ == "__main__":
    train(nn.Linear(16, 4), random_batches())
