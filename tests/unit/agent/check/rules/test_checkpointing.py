"""checkpoint_without_rng: switched off, or drawn from a source that checkpoint does not know."""

import pytest

from support.agent.checked import found

CODE = "checkpoint_without_rng"
MODEL = """\
import random
import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

class Block(nn.Module):
    def __init__(self):
        self.linear = nn.Linear(4, 4)
        self.drop = {layer}

    def inner(self, x):
        return self.linear(x) * {factor}

    def forward(self, x):
        return checkpoint({arguments})
"""


def checked(arguments: str, layer: str = "nn.Dropout(0.1)", factor: str = "1") -> list[tuple[int, str]]:
    return found(MODEL.format(arguments=arguments, layer=layer, factor=factor), CODE)


@pytest.mark.parametrize("layer", ["nn.Dropout(0.1)", "DropPath(0.1)", "make(attn_dropout=0.1)"])
def test_switched_off(layer: str) -> None:
    assert checked("self.inner, x, preserve_rng_state=False", layer) == [(16, CODE)]


def test_switched_off_and_nothing_is_random() -> None:
    assert checked("self.inner, x, preserve_rng_state=False", "nn.ReLU()") == []
    assert checked("self.inner, x, preserve_rng_state=False", "nn.ReLU()", "torch.rand(1)") == [(16, CODE)]


@pytest.mark.parametrize("arguments", ["self.inner, x, use_reentrant=True", "self.inner, x, preserve_rng_state=keep"])
def test_quiet_by_default_also_reentrant_with_dropout(arguments: str) -> None:
    assert checked(arguments) == []


@pytest.mark.parametrize("factor", ["random.random()", "np.random.rand()", "torch.rand(1, generator=self.generator)"])
def test_other_random_numbers(factor: str) -> None:
    assert checked("self.inner, x, use_reentrant=False", factor=factor) == [(16, CODE)]
    assert checked("self.linear, x, use_reentrant=False", factor=factor) == []


def test_arguments_of_transformers_on_a_model_from_elsewhere() -> None:
    text = "args = TrainingArguments('out', gradient_checkpointing_kwargs={'preserve_rng_state': %s})\n"
    assert found(text % "False", CODE) == [(1, CODE)]
    assert found(text % "True", CODE) == []
