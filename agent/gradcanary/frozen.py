"""How many weights stand still: of those in bfloat16 or float16, bit for bit, over fifty steps.

A step that changes a weight by less than half the distance to its neighbour leaves it as it is. In bfloat16 that
distance is 1/256 to 1/128 of the weight, so at small learning rates most weights never move, however healthy their
gradients look. A share needs no more than 65,536 elements, spread over the tensor.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradcanary.references import References
from gradcanary.statistics import LOW_PRECISION, spread
from gradcanary.turns import some
from gradcanary.weights import weight_of

EACH = 50
PER_TURN = 8
ELEMENTS = 2**16


def is_due(step: int) -> bool:
    """Say whether a turn ends after this step: by its number, so that all ranks take the same layers."""
    return step % EACH == 0


class Frozen:
    """Copies of some elements of some layers, by position, since a step."""

    def __init__(self) -> None:
        self._since = -1
        self._copies: dict[int, Tensor] = {}
        self._found: dict[int, Tensor] = {}

    def turn(self, step: int, interval: int, references: References, moving: Sequence[bool]) -> dict[int, Tensor]:
        """After a step that is due, return the share of elements that the steps since the last turn left alone, by
        position, and turn to other layers; ``interval`` lies between two samples. Kernels only, nothing is read.

        ``moving`` tells which layers this step moves and this process speaks for; others stand still for other reasons.
        """
        if step == self._since:
            return self._found  # of an optimizer that steps several times in a step of the main one
        span = max(EACH, interval)
        is_whole = step - self._since == span
        self._found = self._shares(references, moving) if is_whole else {}
        low = [place for place, each in enumerate(references) if _is_low(each())]
        chosen = [place for place in some(low, step // span, PER_TURN) if moving[place]]
        parts = {place: part for place in chosen if (part := _part(references[place]())) is not None}
        self._since, self._copies = step, {place: part.clone() for place, part in parts.items()}
        return self._found

    def _shares(self, references: References, moving: Sequence[bool]) -> dict[int, Tensor]:
        found = {}
        for place, before in self._copies.items():
            now = _part(references[place]()) if moving[place] else None
            if now is not None and (now.shape, now.dtype, now.device) == (before.shape, before.dtype, before.device):
                found[place] = (now == before).mean(dtype=torch.float32)
        return found


def _is_low(parameter: Tensor | None) -> bool:
    return parameter is not None and parameter.requires_grad and parameter.dtype in LOW_PRECISION


def _part(parameter: Tensor | None) -> Tensor | None:
    weight = weight_of(parameter)
    return None if weight is None else spread(weight, ELEMENTS)
