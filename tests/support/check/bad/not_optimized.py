"""The encoder is trained by no optimizer, and nothing says that it should stay as it is."""

import torch
from torch import nn

encoder = nn.Linear(16, 8)  # <- not_optimized
head = nn.Linear(8, 1)
optimizer = torch.optim.AdamW(head.parameters(), lr=1e-3)

for _ in range(5):
    optimizer.zero_grad()
    loss = head(torch.tanh(encoder(torch.randn(8, 16)))).square().mean()
    loss.backward()
    optimizer.step()
