"""Gradients of the micro-steps gathered by hand, in float16 and bfloat16 buffers."""

import torch
from torch import nn

model = nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
sums = [torch.zeros_like(p, dtype=torch.bfloat16) for p in model.parameters()]
norms = torch.zeros(2).half()

for step in range(16):
    loss = model(torch.randn(8, 16)).square().mean() / 8
    loss.backward()
    for buffer, p in zip(sums, model.parameters(), strict=True):
        buffer.add_(p.grad)  # <- low_precision_sum
    norms = norms + torch.stack([p.grad.norm() for p in model.parameters()])  # <- low_precision_sum
    optimizer.zero_grad()
    if (step + 1) % 8 == 0:
        for buffer, p in zip(sums, model.parameters(), strict=True):
            p.grad = buffer.to(p.dtype)
            buffer.zero_()
        optimizer.step()
        optimizer.zero_grad()
