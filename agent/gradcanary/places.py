"""Where this process stands among those of its job, and so of which layers it speaks."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import torch

from gradcanary import naming
from gradcanary.layers import Layers

_has_group: Callable[[], bool] = getattr(torch.distributed, "is_initialized", bool)
"""Torch's own, without a call around it, as each window asks; a torch that was built without groups has none."""


class Place:
    """The rank of a process among ``world_size``, and the layers that it follows.

    ``is_silent``: another process sends the same gradients; of a replicated model the first one does. ``looks_at_own``:
    its gradients are seen before they are reduced with those of others. ``is_one_of_many``: somebody may reduce them.
    """

    def __init__(self) -> None:
        self.rank, self.world_size = 0, 1
        self.is_silent = self.looks_at_own = self.is_one_of_many = self.is_said = False
        self._layers: Layers | None = None

    def find(self) -> None:
        """Ask the process group if there is one, else what the launcher says."""
        if _has_group():
            # In this order: what the sender's thread reads in between is no rank out of range.
            self.world_size, self.rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
            self.is_one_of_many = True  # also of one: its wrapper does the same
        else:
            self.rank, self.world_size = naming.rank(os.environ)
            self.is_one_of_many = self.world_size > 1
        self.follow(self._layers)

    def told(self) -> tuple[int, int]:
        """Return rank and world size, which are kept from now on: a session cannot say others later."""
        self.is_said = True
        return self.rank, self.world_size

    def find_again(self) -> bool:
        """Look for a process group where there was none; return True if it is too late to say its rank."""
        if self.is_one_of_many or not _has_group():
            return False
        if not self.is_said:
            self.find()
        self.is_one_of_many = True
        return self.is_said

    def follow(self, layers: Layers | None) -> None:
        """Take other layers."""
        self._layers = layers
        if layers is not None:
            self.is_silent = self.rank > 0 and not layers.is_sharded
            self.looks_at_own = self.world_size > 1 and not layers.has_shards

    def owned(self, mine: Sequence[int]) -> list[bool] | None:
        """Return of which of some layers it speaks, None = all."""
        layers = self._layers
        if layers is None or not layers.is_sharded:
            return None
        return [layers.layer_set.layers[layer].local_numel > 0 for layer in mine]
