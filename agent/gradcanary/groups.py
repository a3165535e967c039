"""What the parameter groups of an optimizer hold."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

Optimizer = torch.optim.Optimizer


def groups(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return the parameter groups, none of an optimizer that has not become one."""
    try:
        return list(optimizer.param_groups)
    except Exception:  # noqa: BLE001 -- any optimizer that lives in the process, maybe one whose __init__ raised
        return []


def parameters(optimizer: Optimizer) -> list[nn.Parameter]:
    """Return the parameters of all groups."""
    return [parameter for group in groups(optimizer) for parameter in group["params"]]


def sizes(optimizer: Optimizer) -> list[int]:
    """Return how many parameters each group has: another number tells that what is followed has changed."""
    return [len(group["params"]) for group in groups(optimizer)]


def elements(optimizer: Optimizer) -> int:
    """Return how many numbers the parameters have."""
    return sum(parameter.numel() for parameter in parameters(optimizer))
