"""The model is changed first. After that, moves and casts are fine: they keep the parameter objects."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(16, 16)
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        return self.head(torch.tanh(self.body(x)))


device = "cuda" if torch.cuda.is_available() else "cpu"
model = Net()
model.head = nn.Linear(16, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model.to(device)
model = model.double()
model = torch.compile(model, disable=True)

other = Net()
early = torch.optim.SGD(other.parameters(), lr=0.1)
other.head = nn.Linear(16, 1)
early.add_param_group({"params": other.head.parameters()})

for _ in range(5):
    optimizer.zero_grad()
    early.zero_grad()
    model(torch.randn(8, 16, device=device).double()).square().mean().backward()
    other(torch.randn(8, 16)).square().mean().backward()
    optimizer.step()
    early.step()
