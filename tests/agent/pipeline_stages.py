"""One of two stages of a model that is cut by hand, as ``torchrun`` starts them: each trains layers of its own.

Run as a script: ``pipeline_stages.py RANK PORT URL``. The second stage is watched once the collector knows the first.
"""

import json
import os
import sys
import time
import urllib.error
import urllib.request

import torch
from torch import distributed, nn

import gradcanary

STEPS, WAIT_S = 4, 60.0


def train(rank: int, stage: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(STEPS):
        if rank == 0:
            made = stage(torch.randn(4, 8))
            distributed.send(made.detach(), 1)
            gradient = torch.empty_like(made)
            distributed.recv(gradient, 1)
            made.backward(gradient)
        else:
            made = torch.empty(4, 16)
            distributed.recv(made, 0)
            stage(made.requires_grad_()).square().mean().backward()
            distributed.send(made.grad, 0)
        optimizer.step()
        optimizer.zero_grad()


def wait_until_known(url: str, rank: int) -> None:
    """Wait until the collector has the layers of the first stage, or the fact about the second one."""
    address, deadline = f"{url}/api/v1/runs/stages{'/layers' if rank == 0 else ''}", time.monotonic() + WAIT_S
    while True:
        try:
            with urllib.request.urlopen(address) as answer:
                if json.load(answer)["layers" if rank == 0 else "facts"]:
                    return
        except urllib.error.HTTPError as error:  # 404 before its hello
            error.close()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def main(rank: int, port: str, url: str) -> None:
    torch.manual_seed(rank)
    places = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ.update(places, MASTER_ADDR="127.0.0.1", MASTER_PORT=port, GRADCANARY_LAUNCH="one")
    distributed.init_process_group("gloo")
    model = nn.ModuleDict({"embed": nn.Linear(8, 16), "head": nn.Linear(16, 4)})
    stage = nn.ModuleDict({"embed": model["embed"]} if rank == 0 else {"head": model["head"]})
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.1)
    for is_watched in (rank == 0, True):
        if is_watched:
            with gradcanary.watch(stage, optimizer, url=url, run="stages"):
                train(rank, next(iter(stage.values())), optimizer)
                wait_until_known(url, rank)
        else:
            train(rank, next(iter(stage.values())), optimizer)
        distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
