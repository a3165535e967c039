"""Keys of parameter groups that no optimizer of torch reads: the sums stay in bfloat16."""

import torch
from torch import nn

model = nn.Linear(16, 1, dtype=torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
optimizer.param_groups[0]["grad_accumulator_dtype"] = torch.float32  # <- dead_key
for group in optimizer.param_groups:
    group["accumulator_dtype"] = torch.float32  # <- dead_key

for step in range(8):
    loss = model(torch.randn(8, 16, dtype=torch.bfloat16)).square().mean()
    (loss / 4).backward()
    if (step + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
