"""How many weights stand still: of those in bfloat16 or float16, bit for bit, over fifty steps.

A step that changes a weight by less than half the distance to its neighbour leaves it as it is. In bfloat16 that
distance is 1/256 to 1/128 of the weight, so at small learning rates most weights never move, however healthy their
gradients look. A share needs no more than 65,536 elements, spread over the tensor.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradcanary.shards import local
from gradcanary.statistics import LOW_PRECISION, spread
from gradcanary.weights import References

EACH = 50
PER_TURN = 8
ELEMENTS = 2**16


class Frozen:
    """Copies of some elements of some layers, by position, since a step."""

    def __init__(self) -> None:
        self._since = -1
        self._copies: dict[int, Tensor] = {}

    def turn(self, step: int, interval: int, references: References, owned: Sequence[bool] | None) -> dict[int, Tensor]:
        """After a step that is sampled, return the share of elements that the steps since the last turn left alone, by
        position, and turn to other layers; ``interval`` lies between two samples. Nothing at steps that are no turn.

        ``owned`` tells which layers this process speaks for, None = all. Kernels only, nothing is read.
        """
        if step % EACH:
            return {}
        found = self._shares(references) if step - self._since == max(EACH, interval) else {}
        low = [place for place, each in enumerate(references) if _is_low(each()) and (owned is None or owned[place])]
        first = step // EACH * PER_TURN % max(len(low), 1)
        chosen = (low[first:] + low[:first])[:PER_TURN]
        parts = {place: part for place in chosen if (part := _part(references[place]())) is not None}
        self._since, self._copies = step, {place: part.clone() for place, part in parts.items()}
        return found

    def _shares(self, references: References) -> dict[int, Tensor]:
        found = {}
        for place, before in self._copies.items():
            now = _part(references[place]())
            if now is not None and (now.shape, now.dtype, now.device) == (before.shape, before.dtype, before.device):
                found[place] = (now == before).mean(dtype=torch.float32)
        return found


def _is_low(parameter: Tensor | None) -> bool:
    return parameter is not None and parameter.requires_grad and parameter.dtype in LOW_PRECISION


def _part(parameter: Tensor | None) -> Tensor | None:
    weight = None if parameter is None else local(parameter).detach()
    return None if weight is None or type(weight) is not Tensor or not weight.numel() else spread(weight, ELEMENTS)
