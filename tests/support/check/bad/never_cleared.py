"""Gradients add up from step to step: zero_grad() is missing."""

import torch
from torch import nn

model = nn.Linear(16, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

for _ in range(5):
    loss = model(torch.randn(8, 16)).square().mean()
    loss.backward()
    optimizer.step()  # <- never_cleared
