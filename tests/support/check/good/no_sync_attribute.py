"""DDP told by its attribute when to average; and DDP without accumulation, which has nothing to save."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}.items():
    os.environ.setdefault(name, value)
dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
accum = 4

for _ in range(2):
    for micro_step in range(accum):
        model.require_backward_grad_sync = micro_step == accum - 1
        loss = model(torch.randn(8, 16)).square().mean() / accum
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
