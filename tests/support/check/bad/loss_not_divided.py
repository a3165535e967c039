"""Four micro-steps are summed, not averaged: the gradient is four times as large as that of the whole batch."""

import torch
from torch import nn

model = nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
accumulation_steps = 4

for step in range(8):
    loss = model(torch.randn(8, 16)).square().mean()
    loss.backward()  # <- loss_not_divided
    if (step + 1) % accumulation_steps == 0:
        optimizer.step()
        optimizer.zero_grad()
