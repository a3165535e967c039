"""Other ways to the mean of a batch: divide the gradients, or the sum of losses by the number of tokens."""

import torch
import torch.nn.functional as F
from torch import nn

model = nn.Linear(16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
K = 4

for _ in range(2):
    optimizer.zero_grad()
    for _ in range(K):
        loss = model(torch.randn(8, 16)).square().mean()
        loss.backward()
    for p in model.parameters():
        p.grad.div_(K)
    optimizer.step()

for _ in range(2):
    batches = [(torch.randn(n, 16), torch.randint(4, (n,))) for n in (3, 8, 5, 7)]
    tokens = sum(len(y) for _, y in batches)
    optimizer.zero_grad()
    for x, y in batches:
        loss = F.cross_entropy(model(x), y, reduction="sum")
        (loss / tokens).backward()
    optimizer.step()
