"""The scheduler goes with the optimizer; another one goes with the epochs."""

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, StepLR

model = nn.Linear(16, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = CosineAnnealingLR(optimizer, T_max=8)
by_epoch = StepLR(optimizer, step_size=1, gamma=0.9)
accum = 4

for _ in range(2):
    for i in range(16):
        loss = model(torch.randn(8, 16)).square().mean() / accum
        loss.backward()
        if (i + 1) % accum == 0:
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    by_epoch.step()
