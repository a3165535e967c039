"""A mean over an epoch, summed in bfloat16: from 256 times a summand on the sum stands still."""

import torch
from torch import nn

model = nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
total = torch.zeros((), dtype=torch.bfloat16)

for _ in range(600):
    optimizer.zero_grad()
    loss = model(torch.ones(8, 16)).square().mean()
    loss.backward()
    optimizer.step()
    total += loss.detach()  # <- low_precision_sum
print(total / 600)
