"""One rank of a training that makes its process group in the middle of a watch, after some steps of its own.

Run as a script: ``late_group.py RANK PORT URL``. With rank 1 the third step after that has a NaN.
"""

import os
import sys
import time

import data_parallel
import torch
from torch import distributed, nn

import gradcanary

ALONE, TOGETHER, SICK = 3, 5, 5
RUN = "late-group"


def main(rank: str, port: str, url: str) -> None:
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, GRADCANARY_LAUNCH="late")
    torch.manual_seed(0)
    model = data_parallel.Model("plain")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradcanary.watch(model, optimizer, url=url, run=RUN) as watch:
        train(model, model, optimizer, range(ALONE), int(rank))
        while not watch._session.sender.is_heard:  # it has said where it stands: alone
            time.sleep(0.01)
        distributed.init_process_group("gloo", rank=int(rank), world_size=2)
        wrapped = nn.parallel.DistributedDataParallel(model)
        train(model, wrapped, optimizer, range(ALONE, ALONE + TOGETHER), int(rank))
        distributed.barrier()
    distributed.destroy_process_group()


def train(model: nn.Module, wrapped: nn.Module, optimizer: torch.optim.Optimizer, steps: range, rank: int) -> None:
    for step in steps:
        loss = wrapped(data_parallel.inputs(step, 0, rank)).square().mean()
        if (step, rank) == (SICK, 1):
            loss = loss * float("nan")
        loss.backward()
        if all(bool(each.grad.isfinite().all()) for each in model.parameters()):
            optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main(*sys.argv[1:])
