"""What is left behind by 100,000 steps under the agent: memory, objects, threads; with a collector and without one.

python tests/benchmarks/endurance.py [--steps 100000]
One process each: a small training in bfloat16 with two micro-steps, alone, watched, and watched while nobody listens.
Memory is the resident set of the process, what is compared is how much it grows from a tenth of the steps to all of
them. Exit status 1 where the agent's grows by more than the training's own does, and a little.
"""

import argparse
import gc
import multiprocessing
import multiprocessing.connection
import os
import tempfile
import threading
from pathlib import Path

import ratios

ratios.need("torch", "psutil")

import psutil
import torch
from servers import collector
from torch import nn

import gradcanary

NOBODY = "http://127.0.0.1:9"
MOST_MIB = 8.0
"""Of growth beside the training alone: what allocators keep of one run and not of another."""


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(2):
        model(torch.randn(4, 16, dtype=torch.bfloat16)).float().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def train(url: str | None, steps: int, says: multiprocessing.connection.Connection) -> None:
    """Train, and say what the process holds after a tenth of the steps and after all of them."""
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 8)).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    watched = None
    if url is not None:
        watched = gradcanary.watch(model, optimizer, url=url, run="endurance")
    for number in range(1, steps + 1):
        step(model, optimizer)
        if number in (steps // 10, steps):
            gc.collect()
            resident = psutil.Process().memory_info().rss / 2**20
            says.send((resident, len(gc.get_objects()), threading.active_count()))
    if watched is not None:
        watched.close()


def held(url: str | None, steps: int) -> list[tuple[float, int, int]]:
    """Return what a training in a process of its own said."""
    context = multiprocessing.get_context("spawn")
    hears, says = context.Pipe(duplex=False)
    process = context.Process(target=train, args=(url, steps, says))
    process.start()
    found = [hears.recv() for _ in range(2)]
    process.join()
    return found


def main() -> int:
    """Measure the three trainings, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100_000)
    steps = parser.parse_args().steps
    print(f"{steps:,} steps\n\n| | MiB after a tenth | grown by | objects grown by | threads |\n|---|---|---|---|---|")
    grown = {}
    with tempfile.TemporaryDirectory(prefix="gradcanary-endurance-") as folder:
        os.environ["GRADCANARY_SPOOL"] = f"{folder}/spool"
        with collector(Path(folder) / "data") as receiver:
            for who, url in (("alone", None), ("watched", receiver.url), ("nobody listens", NOBODY)):
                (first, some, _), (last, all_of_them, threads) = held(url, steps)
                grown[who] = last - first
                print(
                    f"| {who} | {first:.0f} | {last - first:.1f} MiB | {all_of_them - some} | {threads} |", flush=True
                )
    print()
    most = grown.pop("alone") + MOST_MIB
    are_met = [ratios.judged(f"{who}: MiB", more, most) for who, more in grown.items()]
    return int(not all(are_met))


if __name__ == "__main__":
    raise SystemExit(main())
