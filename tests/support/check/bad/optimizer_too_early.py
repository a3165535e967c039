"""The optimizer has the parameters of the old head: the new one is never updated."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(16, 16)
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        return self.head(torch.tanh(self.body(x)))


model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model.head = nn.Linear(16, 1)  # <- optimizer_too_early

for _ in range(5):
    optimizer.zero_grad()
    model(torch.randn(8, 16)).square().mean().backward()
    optimizer.step()
