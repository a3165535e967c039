"""Parameters of the model that are frozen are no layers, and said in one fact, with their names."""

import pytest
import torch
from torch import nn

import gradcanary
from support.agent.recorded import Recorded


class Tuned(nn.Module):
    """A frozen body of ``depth`` layers, and a head."""

    def __init__(self, depth: int = 3, *, is_frozen: bool = True) -> None:
        super().__init__()
        self.body = nn.Sequential(*[nn.Linear(4, 4) for _ in range(depth)])
        self.head = nn.Linear(4, 2)
        self.body.requires_grad_(not is_frozen)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


class Lora(nn.Module):
    """A frozen weight beside two small matrices that are trained."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(4, 4, bias=False).requires_grad_(requires_grad=False)
        self.lora_A, self.lora_B = nn.Linear(4, 2, bias=False), nn.Linear(2, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.lora_B(self.lora_A(x))


def trainable(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 3) -> None:
    for _ in range(steps):
        model(torch.randn(3, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def said(collector: Recorded) -> list[str]:
    return [fact["text"] for fact in collector.facts("frozen_parameters")]


@pytest.mark.parametrize("given", ["nothing", "optimizer", "model", "both"])
def test_a_frozen_encoder(collector: Recorded, capsys: pytest.CaptureFixture[str], given: str) -> None:
    model = Tuned()
    optimizer = torch.optim.SGD(trainable(model), lr=0.1)
    arguments = {"model": {"model": model}, "optimizer": {"optimizer": optimizer}, "nothing": {}}
    both = {"model": model, "optimizer": optimizer}
    with gradcanary.watch(**arguments.get(given, both), url=collector.url, run="encoder"):
        train(model, optimizer)
    (fact,) = collector.facts("frozen_parameters")
    assert fact["text"] == "6 of 8 parameters are frozen: requires_grad is False."
    assert fact["layers"] == [f"body.{number}.{kind}" for number in range(3) for kind in ("weight", "bias")]
    assert collector.names == ["head.weight", "head.bias"]
    assert "frozen" not in capsys.readouterr().err


def test_base_weights_of_a_lora(collector: Recorded) -> None:
    model = nn.Sequential(Lora(), Lora())
    optimizer = torch.optim.AdamW(trainable(model), lr=0.1)
    with gradcanary.watch(url=collector.url, run="lora"):
        train(model, optimizer)
    assert said(collector) == ["2 of 6 parameters are frozen: requires_grad is False."]
    assert collector.facts("frozen_parameters")[0]["layers"] == ["0.base.weight", "1.base.weight"]


def test_names_are_bounded_and_the_count_is_not(collector: Recorded) -> None:
    model = Tuned(depth=120)
    optimizer = torch.optim.SGD(trainable(model), lr=0.1)
    with gradcanary.watch(url=collector.url, run="deep"):
        train(model, optimizer, 1)
    assert said(collector) == ["240 of 242 parameters are frozen: requires_grad is False. The first 200 are listed."]
    assert len(collector.facts("frozen_parameters")[0]["layers"]) == 200


def test_nothing_is_said_where_all_parameters_train(collector: Recorded) -> None:
    model = Tuned(is_frozen=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradcanary.watch(model, url=collector.url, run="whole"):
        train(model, optimizer)
    assert said(collector) == []


def test_nothing_is_said_of_tensors_without_a_model(collector: Recorded) -> None:
    weight = nn.Parameter(torch.randn(4, 4))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with gradcanary.watch(optimizer=optimizer, url=collector.url, run="tensors"):
        for _ in range(3):
            (torch.randn(3, 4) @ weight).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert said(collector) == []


def test_nothing_is_said_of_a_frozen_layer_that_an_optimizer_holds(collector: Recorded) -> None:
    """It is in the table, where its state says it: a GAN freezes one network while the other one steps."""
    model = Tuned()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradcanary.watch(url=collector.url, run="held"):
        train(model, optimizer)
    assert said(collector) == []
    assert {state for name, state in collector.states()[0].items() if name.startswith("body")} == {"not_trainable"}


def test_exclude_leaves_out_frozen_parameters_too(collector: Recorded) -> None:
    model = Tuned()
    optimizer = torch.optim.SGD(trainable(model), lr=0.1)
    with gradcanary.watch(exclude=r"body\.[12]", url=collector.url, run="excluded"):
        train(model, optimizer)
    assert said(collector) == ["2 of 4 parameters are frozen: requires_grad is False."]


def test_unfreezing_in_stages_replaces_the_fact(collector: Recorded) -> None:
    model = Tuned()
    optimizer = torch.optim.SGD(trainable(model), lr=0.1)
    with gradcanary.watch(url=collector.url, run="stages"):
        train(model, optimizer)
        for stage in (2, 1):
            optimizer.add_param_group({"params": list(model.body[stage].requires_grad_().parameters())})
            train(model, optimizer)
    assert said(collector) == ["From step 6, 2 of 8 parameters are frozen: requires_grad is False."]
    assert collector.facts("frozen_parameters")[0]["layers"] == ["body.0.weight", "body.0.bias"]


def test_when_all_train_at_last_that_is_said(collector: Recorded) -> None:
    model = Tuned(depth=1)
    optimizer = torch.optim.SGD(trainable(model), lr=0.1)
    with gradcanary.watch(url=collector.url, run="thawed"):
        train(model, optimizer)
        optimizer.add_param_group({"params": list(model.body.requires_grad_().parameters())})
        train(model, optimizer)
    assert said(collector) == ["From step 3, 0 of 4 parameters are frozen."]
