"""A training that meets a bad day: ``spooled_training.py URL STEPS [NAME=VALUE ...]``.

Its gradients are the same in every process, and fall at step 60. It says "step N" as it goes, and ends with a digest
of its weights. Options: ``pause`` (seconds after each tenth step), ``hold`` (a step at which it waits for a line on
stdin), ``flush`` and ``limit`` (of the agent), ``largest_file`` (bytes, as a disk that is full), ``fork`` (a step at
which a child trains on and ends as a process does), ``close`` (seconds that the end may take, long enough for a machine
that does much else).
"""

import hashlib
import os
import resource
import sys
import time
import warnings

import torch
from torch import nn

FALLS_AT = 60


def options(arguments: list[str]) -> dict[str, float]:
    return {"pause": 0.0, "hold": -1, "flush": 0.05, "limit": 0, "largest_file": 0, "fork": -1, "close": 60} | {
        name: float(value) for name, value in (argument.split("=") for argument in arguments)
    }


def train(steps: int, pause_s: float = 0.0, fork_at: float = -1, hold_at: float = -1) -> str:
    model = nn.Sequential(*(module for _ in range(10) for module in (nn.Linear(8, 8), nn.Tanh())))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(16, 8)).square().mean()
        (loss * (1.0 if step < FALLS_AT else 1e-6)).backward()
        optimizer.step()
        if step == fork_at:
            fork()
        if step % 10 == 9:
            print("step", step + 1, flush=True)
            time.sleep(pause_s)
        if step + 1 == hold_at:
            sys.stdin.readline()
    return hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in model.parameters())).hexdigest()


def fork() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads: that is what is tested
        child = os.fork()
    if child == 0:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123 -- until the process ends
        train(100)
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0


def main(url: str, steps: str, *arguments: str) -> None:
    chosen = options(list(arguments))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if url == "none":
        print(train(int(steps)))
        return
    import gradcanary
    from gradcanary import session
    from gradcanary.export import delivery, sender, spool

    assert session
    delivery.RETRY_S, sender.FLUSH_S = (0.05, 0.3), chosen["flush"]
    spool.LIMIT_BYTES = int(chosen["limit"]) or spool.LIMIT_BYTES
    if chosen["largest_file"]:
        largest = int(chosen["largest_file"])
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
    watch = gradcanary.watch(run="spooled", url=url, absmax_below=1e-5)
    digest = train(int(steps), chosen["pause"], chosen["fork"], chosen["hold"])
    watch.close(timeout_s=chosen["close"])
    print(digest)


if __name__ == "__main__":
    main(*sys.argv[1:])
