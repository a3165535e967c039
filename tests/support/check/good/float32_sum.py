"""The same mean in float32, a Python number, and one bfloat16 tensor that is added to once."""

import torch
from torch import nn

model = nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
total = torch.zeros((), dtype=torch.float32)
plain = 0.0

for _ in range(20):
    noise = torch.zeros(8, 16, dtype=torch.bfloat16)
    noise += 0.5
    optimizer.zero_grad()
    loss = model(torch.ones(8, 16) + noise.float()).square().mean()
    loss.backward()
    optimizer.step()
    total += loss.detach()
    plain += loss.item()
print(total / 20, plain / 20)
