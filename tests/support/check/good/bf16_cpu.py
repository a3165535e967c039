"""bfloat16 on a CPU, which needs no question: nothing in this file moves to a GPU."""

import torch
from torch import nn

model = nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(torch.randn(8, 16)).square().mean()
    loss.backward()
    optimizer.step()
