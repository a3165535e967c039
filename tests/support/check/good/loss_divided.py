"""The loss divided by the number of micro-steps, and what is left of the last window is stepped, too."""

import torch
from torch import nn

model = nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
accumulation_steps = 4
batches = [torch.randn(8, 16) for _ in range(10)]

for step, x in enumerate(batches):
    loss = model(x).square().mean()
    loss = loss / accumulation_steps
    loss.backward()
    if (step + 1) % accumulation_steps == 0 or step + 1 == len(batches):
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
