"""Nothing in this file is random in the forward pass: the random state need not be kept."""

import random

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x):
        return x + torch.tanh(self.linear(x))


def augment(x):
    return x.flip(-1) if random.random() < 0.5 else x


block = Block()
optimizer = torch.optim.SGD(block.parameters(), lr=0.1)
for _ in range(5):
    optimizer.zero_grad()
    x = augment(torch.randn(8, 16))
    checkpoint(block, x, use_reentrant=False, preserve_rng_state=False).square().mean().backward()
    optimizer.step()
