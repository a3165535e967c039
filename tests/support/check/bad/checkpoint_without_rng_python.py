"""checkpoint restores the random numbers of torch, not those of Python's random: backward may skip another layer."""

import random

import torch
import torch.utils.checkpoint as ckpt
from torch import nn

layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))
optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)


def run_layers(x):
    for layer in layers:
        if random.random() > 0.1:
            x = x + torch.tanh(layer(x))
    return x


random.seed(0)
for _ in range(5):
    optimizer.zero_grad()
    x = torch.randn(8, 16, requires_grad=True)
    ckpt.checkpoint(run_layers, x, use_reentrant=True).square().mean().backward()  # <- checkpoint_without_rng
    optimizer.step()
