"""Each way to clear gradients: of the optimizer, of the model, parameter by parameter, in a helper."""

import torch
from torch import nn

model = nn.Linear(16, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def clear():
    for p in model.parameters():
        p.grad = None


for way in range(4):
    for _ in range(3):
        loss = model(torch.randn(8, 16)).square().mean()
        loss.backward()
        optimizer.step()
        if way == 0:
            model.zero_grad()
        elif way == 1:
            optimizer.zero_grad(set_to_none=True)
        else:
            clear()


def train_by_parameter(net):
    sgd = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        for p in net.parameters():
            p.grad = None
        net(torch.randn(8, 16)).square().mean().backward()
        sgd.step()


train_by_parameter(model)
