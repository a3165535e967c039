"""The same keys where the groups are written, added and updated."""

import torch
from torch import nn

base, adapter = nn.Linear(16, 16), nn.Linear(16, 1)
optimizer = torch.optim.SGD(
    [
        {"params": base.parameters(), "lr": 1e-3},
        {"params": adapter.parameters(), "grad_accum_dtype": torch.float32},  # <- dead_key
    ],
    lr=1e-2,
)
optimizer.param_groups[0].update(grad_accumulator_dtype=torch.float32)  # <- dead_key
late = nn.Linear(1, 1)
optimizer.add_param_group({"params": late.parameters(), "accumulator_dtype": "fp32"})  # <- dead_key

for _ in range(5):
    optimizer.zero_grad()
    late(adapter(base(torch.randn(8, 16)))).square().mean().backward()
    optimizer.step()
