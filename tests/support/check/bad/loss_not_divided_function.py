"""In a function, with the condition turned around."""

import torch
import torch.nn.functional as F
from torch import nn, optim


def train(model, batches, micro_steps=4):
    opt = optim.AdamW(model.parameters(), lr=1e-3)
    for step, (x, y) in enumerate(batches, start=1):
        loss = F.cross_entropy(model(x), y)
        loss.backward()  # <- loss_not_divided
        if step % micro_steps != 0:
            continue
        opt.step()
        opt.zero_grad()


if __name__ == "__main__":
    train(nn.Linear(16, 4), [(torch.randn(8, 16), torch.randint(4, (8,))) for _ in range(9)])
