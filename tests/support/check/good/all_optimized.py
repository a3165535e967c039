"""Both modules are optimized; those that are not are frozen, each in another way, or have no parameters."""

import itertools

import torch
from torch import nn

encoder, head, frozen, judge = nn.Linear(16, 8), nn.Linear(8, 1), nn.Linear(16, 16), nn.Linear(1, 1)
frozen.requires_grad_(False)
activation, criterion = nn.ReLU(), nn.MSELoss()
optimizer = torch.optim.AdamW(itertools.chain(encoder.parameters(), head.parameters()), lr=1e-3)

for _ in range(5):
    optimizer.zero_grad()
    x = torch.randn(8, 16)
    with torch.no_grad():
        target = judge(torch.zeros(8, 1))
    loss = criterion(head(activation(encoder(frozen(x)))), target)
    loss.backward()
    optimizer.step()


def second_stage():
    body, top = nn.Linear(16, 8), nn.Linear(8, 1)
    for p in body.parameters():
        p.requires_grad = False
    parameters = list(top.parameters())
    sgd = torch.optim.SGD(parameters, lr=0.1)
    for _ in range(2):
        sgd.zero_grad()
        top(body(torch.randn(8, 16))).mean().backward()
        sgd.step()


second_stage()
