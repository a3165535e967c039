"""DDP with no_sync() in all micro-steps but the last one."""

import contextlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}.items():
    os.environ.setdefault(name, value)
dist.init_process_group("gloo")
model = DDP(nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
accum = 4

for step in range(8):
    last = (step + 1) % accum == 0
    with contextlib.nullcontext() if last else model.no_sync():
        loss = model(torch.randn(8, 16)).square().mean() / accum
        loss.backward()
    if last:
        optimizer.step()
        optimizer.zero_grad()
dist.destroy_process_group()
