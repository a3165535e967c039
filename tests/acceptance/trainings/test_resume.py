"""A training that is resumed from a checkpoint with other layers: each launch keeps its own."""

import csv
import io
from pathlib import Path

import pytest
import torch
from torch import nn

import gradcanary
from support.agent.fixtures import complaints
from support.collectors import Collector

RUN = "resumed"
Norms = dict[tuple[int, str], float]


def train(model: nn.Module, optimizer: torch.optim.Optimizer, url: str, first: int) -> Norms:
    """Make four steps; return the norms by step and name, in float64."""
    read = {}
    with gradcanary.watch(model, optimizer, url=url, run=RUN):
        for step in range(first, first + 4):
            for _ in range(2):
                model(torch.randn(4, 4)).square().mean().backward()
            read.update({(step, name): float(p.grad.double().norm()) for name, p in model.named_parameters()})
            optimizer.step()
            optimizer.zero_grad()
    return read


def exported(collector: Collector) -> Norms:
    rows = csv.DictReader(io.StringIO(collector.get(f"/api/v1/runs/{RUN}/export.csv", stat="norm").text))
    return {
        (int(row["step"]), name.removeprefix("norm ")): float(value)
        for row in rows
        for name, value in row.items()
        if name not in ("step", "time") and value
    }


class Headed(nn.Module):
    def __init__(self, head: str) -> None:
        super().__init__()
        self.base = nn.Linear(4, 4)
        self.head = head
        self.add_module(head, nn.Linear(4, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.get_submodule(self.head)(torch.tanh(self.base(x)))


def resumed(checkpoint: Path) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return the trained base under a new head, with what the optimizer knew of the base."""
    found = torch.load(checkpoint)
    model = Headed("other")
    model.base.load_state_dict(found["base"])
    optimizer = torch.optim.Adam(model.base.parameters(), lr=0.1)
    held = found["optimizer"]
    group = {**held["param_groups"][0], "params": [0, 1]}
    optimizer.load_state_dict({"state": {each: held["state"][each] for each in (0, 1)}, "param_groups": [group]})
    optimizer.add_param_group({"params": model.other.parameters()})
    return model, optimizer


@pytest.mark.loop(
    "a resume with other layers",
    names="model's; each launch has its own",
    caveat="steps go on where the optimizer's state says",
)
def test_a_resume_with_other_layers(collector: Collector, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    model = Headed("first")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    read = train(model, optimizer, collector.url, 0)
    torch.save({"base": model.base.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "checkpoint")
    read.update(train(*resumed(tmp_path / "checkpoint"), collector.url, 4))
    assert exported(collector) == pytest.approx(read, rel=1e-6)
    stored = collector.get(f"/api/v1/runs/{RUN}").json()
    assert [(each["first_step"], each["last_step"]) for each in stored["sessions"]] == [(0, 3), (4, 7)]
    assert len({each["launch"] for each in stored["sessions"]}) == 2
    layers = collector.get(f"/api/v1/runs/{RUN}/layers").json()["layers"]
    assert {each["name"]: (each["step"], each["micro_steps"]) for each in layers} == {
        f"{module}.{kind}": (3 if module == "first" else 7, 2)
        for module in ("base", "first", "other")
        for kind in ("weight", "bias")
    }
    assert complaints(capsys.readouterr().err) == ""
