"""Commands under ``gradcanary run``, in a folder of their own, and what a collector has of them afterwards."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.collectors import Collector

TRAIN = """
import os
import sys

import torch
from torch import distributed, nn


def train(steps=4):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(steps):
        for _ in range(2):
            model(torch.ones(3, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    if distributed.is_initialized():
        distributed.destroy_process_group()
    return model, optimizer


if __name__ == "__main__":
    train()
    print("trained", *sys.argv[1:])
"""

NOBODY = "http://127.0.0.1:9"


class Workplace:
    """A folder with ``train.py`` in it, and a collector to train for."""

    def __init__(self, folder: Path, collector: Collector | None, name: str) -> None:
        self.folder, self.collector, self.name = folder, collector, name
        self.url = NOBODY if collector is None else collector.url
        self.write("train.py", TRAIN)

    def write(self, name: str, text: str) -> Path:
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def launch(self, *words: object, **options: Any) -> "subprocess.CompletedProcess[str]":
        """Run the words under ``gradcanary run``; fails on another status than ``status``, which is 0."""
        return self.run("-m", "gradcanary.cli", "run", f"--url={self.url}", f"--run={self.name}", *words, **options)

    def run(
        self, *words: object, status: int = 0, env: dict[str, str] | None = None, **options: Any
    ) -> "subprocess.CompletedProcess[str]":
        """Run this Python with the words."""
        command = [sys.executable, *map(str, words)]
        environ = {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}
        ended = subprocess.run(
            command, cwd=self.folder, env=environ, capture_output=True, text=True, timeout=120, check=False, **options
        )
        assert ended.returncode == status, ended.stderr
        return ended

    def stored(self, name: str | None = None) -> dict[str, Any]:
        """Return what the collector says of a run."""
        assert self.collector is not None
        found = self.collector.get(f"/api/v1/runs/{name or self.name}")
        assert found.status_code == 200, found.text
        return found.json()

    def is_stored(self, name: str | None = None) -> bool:
        assert self.collector is not None
        return self.collector.get(f"/api/v1/runs/{name or self.name}").status_code == 200
