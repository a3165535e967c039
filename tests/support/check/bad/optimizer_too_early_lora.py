"""Adapters added after the optimizer was made: it has none of them."""

import torch
from peft import LoraConfig, get_peft_model
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 1)

    def forward(self, x):
        return self.linear(x)


model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model = get_peft_model(model, LoraConfig(target_modules=["linear"]))  # <- optimizer_too_early

for _ in range(5):
    optimizer.zero_grad()
    model(torch.randn(8, 16)).square().mean().backward()
    optimizer.step()
