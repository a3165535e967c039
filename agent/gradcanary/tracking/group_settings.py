"""The settings of the optimizers' parameter groups: their first values, and each change.

Compared at sampled steps, by the identity of the values: to compare two tensors of a GPU would wait for it. A value
that is a tensor is left out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import is_

import torch

NAMES = (
    "weight_decay",
    "momentum",
    "betas",
    "eps",
    "alpha",
    "dampening",
    "nesterov",
    "amsgrad",
    "maximize",
    "decoupled_weight_decay",
)
"""The keys of a group that are compared. The learning rate is a series; its value is noted with each change."""

MAX_WAITING = 1_000
"""Changes that the sender has not taken: more come only if all settings change at each step and it is held up."""

Value = bool | float | str


@dataclass(frozen=True)
class GroupChange:
    """The settings of each group at ``step``; the former ones were seen last at ``checked``, None for the first."""

    step: int
    checked: int | None
    groups: tuple[dict[str, Value], ...]


class GroupSettings:
    """Notes changes in the training's thread; the sender's thread takes them from ``changes``."""

    def __init__(self) -> None:
        self.changes: deque[GroupChange] = deque()
        self._seen: list[object] = []
        self._groups: list[dict[str, Value]] = []
        self._checked: int | None = None

    def note(self, step: int, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """Note the settings of all groups that have a learning rate, if one of them is not the same as before."""
        groups = [
            (type(optimizer), group) for optimizer in optimizers for group in optimizer.param_groups if "lr" in group
        ]
        seen = [value for kind, group in groups for value in (kind, *map(group.get, NAMES))]
        if len(seen) != len(self._seen) or not all(map(is_, seen, self._seen)):
            self._seen = seen
            self._take(step, [_plain(kind.__name__, group) for kind, group in groups])
        self._checked = step

    def _take(self, step: int, groups: list[dict[str, Value]]) -> None:
        without_rates = [{name: value for name, value in group.items() if name != "lr"} for group in groups]
        if without_rates != self._groups and len(self.changes) < MAX_WAITING:
            self._groups = without_rates
            self.changes.append(GroupChange(step, self._checked, tuple(groups)))


def _plain(kind: str, group: Mapping[str, object]) -> dict[str, Value]:
    """Return the settings of a group by name: ``betas`` as ``beta1`` and ``beta2``, other pairs alike."""
    found: dict[str, Value] = {"optimizer": kind}
    for name in ("lr", *NAMES):
        value = group.get(name)
        parts: dict[str, object] = {name: value}
        if isinstance(value, (tuple, list)):
            parts = {f"{'beta' if name == 'betas' else name}{n}": part for n, part in enumerate(value, 1)}
        found.update({key: part for key, part in parts.items() if isinstance(part, (bool, int, float, str))})
    return found
