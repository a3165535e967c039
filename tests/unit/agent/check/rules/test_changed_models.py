"""optimizer_too_early: changes that bring other parameters, and moves that do not."""

import pytest

from support.agent.checked import found

CODE = "optimizer_too_early"
TRAINING = """\
import torch
import torch_xla.core.xla_model as xm
from peft import get_peft_model
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
model = make_model()
optimizer = torch.optim.{optimizer}(model.parameters(), lr=0.1)
{line}
train(model, optimizer)
"""


@pytest.mark.parametrize(
    "line",
    [
        "model.fc = nn.Linear(512, 10)",
        "model.layers[3].fc = nn.Linear(512, 10)",
        "model = get_peft_model(model, config)",
        "model.add_adapter(config)",
        "model.resize_token_embeddings(100)",
        "model.load_state_dict(state, assign=True)",
        "model = FSDP(model)",
        "torch.nn.utils.parametrizations.weight_norm(model.conv)",
        "model.to(xm.xla_device())",
    ],
)
def test_other_parameters(line: str) -> None:
    assert found(TRAINING.format(line=line, optimizer="Adam"), CODE) == [(8, CODE)]


@pytest.mark.parametrize(
    "line",
    [
        "model.to('cuda')",
        "model = model.half()",
        "model.fc.weight = other",
        "model.training = True",
        "model = torch.compile(model)",
        "model = nn.parallel.DistributedDataParallel(model)",
        "model.load_state_dict(state)",
        "other = FSDP(other_model)",
        "model.fc = nn.Linear(512, 10); optimizer = torch.optim.Adam(model.parameters())",
        "model.fc = nn.Linear(5, 1); optimizer.add_param_group({'params': model.fc.parameters()})",
    ],
)
def test_quiet_where_the_optimizer_keeps_them(line: str) -> None:
    assert found(TRAINING.format(line=line, optimizer="Adam"), CODE) == []


def test_adagrad_makes_its_state_at_once() -> None:
    assert found(TRAINING.format(line="model.to('cuda')", optimizer="Adagrad"), CODE) == [(8, CODE)]
    assert found(TRAINING.format(line="model.double()", optimizer="Adagrad"), CODE) == []


def test_quiet_where_the_optimizer_is_not_used_any_more() -> None:
    text = TRAINING.format(line="model.fc = nn.Linear(512, 10)", optimizer="Adam")
    assert found(text.replace("train(model, optimizer)", "evaluate(model)"), CODE) == []
    either = text.replace("model.fc =", "if late: model.fc =").replace(
        "optimizer = torch", "if not late: optimizer = torch"
    )
    assert found(either, CODE) == [(8, CODE)]  # two conditions, which may hold together as far as the file shows
