"""A training of some steps, without gradcanary and then watched: ``training.py URL RUN``.

It runs in an environment that has torch and the agent, and nothing else. It prints its facts as JSON, and ends with
status 1 if a parameter differs by a bit.
"""

import json
import sys

import torch
from torch import nn

import gradcanary

STEPS = 40


def train(url: str | None = None, run: str | None = None) -> list[torch.Tensor]:
    """Train, watched if there is a run, and return the parameters."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    watch = gradcanary.watch(model, optimizer, url=url, run=run) if run else None
    for _ in range(STEPS):
        samples = torch.randn(64, 16)
        loss = nn.functional.cross_entropy(model(samples), samples[:, :4].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if watch:
        watch.close(timeout_s=60)
    return [parameter.detach() for parameter in model.parameters()]


if __name__ == "__main__":
    unwatched, watched = train(), train(*sys.argv[1:])
    print(json.dumps({"torch": torch.__version__, "steps": STEPS, "layers": len(watched)}))
    if not all(map(torch.equal, unwatched, watched)):
        sys.exit("the watched training has other parameters")
