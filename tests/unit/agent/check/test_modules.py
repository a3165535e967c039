"""What makes a module with parameters."""

import ast

import pytest

from gradcanary.check.modules import makes_parameters, module_classes
from support.agent.checked import program

TEXT = """\
import torch
from torch import nn
import torch.nn as N

class Base(nn.Module):
    def __init__(self):
        self.weight = nn.Parameter(torch.zeros(1))

class Child(Base):
    def __init__(self):
        self.linear = nn.Linear(1, 1)

class Plain(nn.Module):
    pass

made = {made}
"""


@pytest.mark.parametrize(
    ("made", "has_parameters"),
    [
        ("nn.Linear(1, 1)", True),
        ("N.Conv2d(3, 3, 3).to(device).train()", True),
        ("nn.Sequential(nn.ReLU(), nn.Embedding(2, 2))", True),
        ("Child().cuda()", True),
        ("nn.ReLU()", False),
        ("nn.Sequential(nn.ReLU(), nn.Dropout())", False),
        ("nn.BatchNorm1d(4, affine=False)", False),
        ("Plain()", False),
        ("elsewhere.Linear(1, 1)", False),
        ("Linear", False),
    ],
)
def test_makes_parameters(made: str, *, has_parameters: bool) -> None:
    read = program(TEXT.format(made=made))
    last = read.source.tree.body[-1]
    assert isinstance(last, ast.Assign)
    assert makes_parameters(last.value, read) is has_parameters


def test_classes_that_derive_from_each_other() -> None:
    assert {each.name for each in module_classes(program(TEXT.format(made=1)))} == {"Base", "Child", "Plain"}
