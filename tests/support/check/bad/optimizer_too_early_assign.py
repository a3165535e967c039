"""load_state_dict(assign=True) puts new parameters in the place of those that the optimizer has."""

import torch
from torch import nn

model = nn.Linear(16, 1)
saved = {name: value.clone() for name, value in model.state_dict().items()}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model.load_state_dict(saved, assign=True)  # <- optimizer_too_early

for _ in range(5):
    optimizer.zero_grad()
    model(torch.randn(8, 16)).square().mean().backward()
    optimizer.step()
