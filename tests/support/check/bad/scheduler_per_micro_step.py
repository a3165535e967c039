"""The scheduler is made for optimizer steps, and stepped four times as often."""

import torch
from torch import nn

model = nn.Linear(16, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
accum = 4

for i in range(16):
    loss = model(torch.randn(8, 16)).square().mean() / accum
    loss.backward()
    if (i + 1) % accum == 0:
        optimizer.step()
        optimizer.zero_grad()
    scheduler.step()  # <- scheduler_per_micro_step
