"""Two ranks with other layers, as ``torchrun`` starts them: stages of a pipeline that is cut by hand, or two jobs.

Run as a script: ``unlike_ranks.py KIND RANK PORT URL DONE``. Each trains until the collector has admitted the second
rank, and then as many steps as the kind says; jobs until there is a file DONE.
"""

import json
import os
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import torch
from torch import distributed, nn

import gradcanary

HEALTHY, SICK = 150, 150
"""Steps of a pipeline after the second stage is admitted; in the latter ones its gradients are smaller by a factor."""

FACTOR = 1e-8
ADMITTED = "other_layers"
WAIT_S = 60.0


def is_admitted(url: str, run: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/api/v1/runs/{run}") as answer:
            return any(fact["code"] == ADMITTED for fact in json.load(answer)["facts"])
    except urllib.error.HTTPError as error:  # 404 before its hello
        error.close()
        return False


def train_first_stage(stage: nn.Module, optimizer: torch.optim.Optimizer, url: str) -> None:
    left, deadline = -1, time.monotonic() + WAIT_S
    while left != 0:
        assert left > 0 or time.monotonic() < deadline
        left = left - 1 if left > 0 else HEALTHY + SICK if is_admitted(url, "pipeline") else -1
        made = stage(torch.randn(4, 8))
        distributed.send(torch.tensor([left]), 1)
        distributed.send(made.detach(), 1)
        gradient = torch.empty_like(made)
        distributed.recv(gradient, 1)
        made.backward(gradient)
        optimizer.step()
        optimizer.zero_grad()


def train_second_stage(stage: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    left, made = torch.tensor([-1]), torch.empty(4, 16)
    while left != 0:
        distributed.recv(left, 0)
        distributed.recv(made, 0)
        factor = FACTOR if 0 <= left <= SICK else 1.0
        (stage(made.requires_grad_()).square().mean() * factor).backward()
        distributed.send(made.grad / factor, 0)
        optimizer.step()
        optimizer.zero_grad()
        made = torch.empty(4, 16)


def pipeline(rank: int, port: str, url: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    distributed.init_process_group("gloo")
    stage = nn.ModuleDict({"embed": nn.Linear(8, 16)} if rank == 0 else {"head": nn.Linear(16, 4)})
    optimizer = torch.optim.SGD(stage.parameters(), lr=1e-4)
    with gradcanary.watch(stage, optimizer, url=url, run="pipeline", every=1):
        if rank == 0:
            train_first_stage(stage["embed"], optimizer, url)
        else:
            train_second_stage(stage["head"], optimizer)
    distributed.barrier()
    distributed.destroy_process_group()


def jobs(run: str, rank: int, url: str, done: Path) -> None:
    """Train one of two models, both of which have a ``net``, until there is a file."""
    names = {"net": nn.Linear(8, 4)} if rank == 0 else {"net": nn.Linear(8, 6), "extra": nn.Linear(6, 2)}
    model = nn.Sequential()
    for name, module in names.items():
        model.add_module(name, module)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    deadline = time.monotonic() + WAIT_S
    with gradcanary.watch(model, optimizer, url=url, run=run, every=1):
        while not done.exists():
            assert time.monotonic() < deadline
            model(torch.randn(4, 8)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(0.02)


def main(kind: str, rank: int, port: str, url: str, done: str) -> None:
    torch.manual_seed(rank)
    places = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ.update(places, GRADCANARY_LAUNCH="one")
    if kind == "pipeline":
        pipeline(rank, port, url)
    else:
        jobs(kind, rank, url, Path(done))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
