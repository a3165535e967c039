"""Parameters that are spread over processes: the part of one that lies here, the rank, and the layers that
this process sends."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gradcanary import identity

if TYPE_CHECKING:
    from gradcanary.model.layers import Layers


_has_group: Callable[[], bool] = getattr(torch.distributed, "is_initialized", bool)
"""Torch's own, without a call around it, as each window asks; a torch that was built without groups has none."""


def is_dtensor(tensor: Tensor) -> bool:
    """Say whether it is a DTensor (FSDP2, tensor parallelism): a part of a larger one, or one copy of several."""
    return type(tensor) is not Tensor and hasattr(tensor, "placements") and hasattr(tensor, "to_local")


def local_tensor(tensor: Tensor) -> Tensor:
    """Return the elements that lie in this process: of a DTensor its shard, else the tensor itself.

    A DTensor with a pending reduction is returned as it is: what lies here are addends.
    """
    if not is_dtensor(tensor) or not _is_final(tensor):
        return tensor
    with torch.no_grad():
        here: Tensor = tensor.to_local()  # type: ignore[attr-defined]  # a method of DTensor
    return here


def replicated_value(tensor: Tensor) -> Tensor | None:
    """Return the value that all processes have alike: of a DTensor that is one copy of several, else the tensor itself.

    None of one whose value takes a collective to know.
    """
    if not is_dtensor(tensor):
        return tensor
    is_alike = all(placement.is_replicate() for placement in tensor.placements)  # type: ignore[attr-defined]  # of a DTensor
    return local_tensor(tensor) if is_alike else None


def is_sharded(parameter: Tensor) -> bool:
    """Say whether other processes hold other elements of it."""
    return any(size > 1 and placement.is_shard() for size, placement, _ in _mesh(parameter))


def owned_numel(parameter: Tensor, *, is_first: bool) -> int:
    """Return how many of its elements this process speaks for: of several copies the first one is sent."""
    if not is_dtensor(parameter):
        return parameter.numel() if is_first else 0
    if any(place != 0 and not placement.is_shard() for _, placement, place in _mesh(parameter)):
        return 0
    return local_tensor(parameter).numel()


def unsharded_parameters(modules: Iterable[nn.Module]) -> dict[int, Callable[[], nn.Parameter | None]]:
    """Return a way to the gathered parameter of each shard that FSDP2 offloads, by id of the shard.

    FSDP2 has the gathered parameter from the first forward pass on, and keeps it.
    """
    groups = (group for module in modules for group in _groups(module))
    parameters = (each for group in groups for each in group.fsdp_params if each.offload_to_cpu)
    return {id(each.sharded_param): partial(_unsharded_of, weakref.ref(each)) for each in parameters}


def _groups(module: nn.Module) -> Iterator[Any]:
    """Yield the parameter groups of an FSDP2 module. The names are private, and newer torch has several groups."""
    if hasattr(type(module), "_get_fsdp_state"):
        state: Any = module._get_fsdp_state()  # type: ignore[operator]  # noqa: SLF001 -- as the docstring says
        yield from getattr(state, "_fsdp_param_groups", None) or filter(None, [state._fsdp_param_group])  # noqa: SLF001


def _unsharded_of(reference: Callable[[], Any]) -> nn.Parameter | None:
    return getattr(reference(), "_unsharded_param", None)


def _is_final(tensor: Tensor) -> bool:
    return not any(placement.is_partial() for placement in tensor.placements)  # type: ignore[attr-defined]  # of a DTensor


def _mesh(parameter: Tensor) -> list[tuple[int, Any, int]]:
    """Return per dimension of its mesh: size, placement, and where this process is; nothing of a plain tensor."""
    mesh = getattr(parameter, "device_mesh", None)
    if mesh is None:
        return []
    places = mesh.get_coordinate() or [1] * mesh.ndim  # a process that is not of the mesh holds nothing
    return [
        (mesh.size(number), placement, place)
        for number, (placement, place) in enumerate(zip(parameter.placements, places, strict=True))  # type: ignore[attr-defined]  # of a DTensor
    ]


class Rank:
    """The rank of a process among ``world_size``, and the layers that it follows.

    - ``sends_only_nonfinite``: another process sends the same gradients. The first rank sends those of a replicated
      model.
    - ``measures_local_grads``: its gradients can be measured before they are reduced with those of other ranks.
    - ``is_distributed``: its gradients may be reduced with those of other ranks.
    """

    def __init__(self) -> None:
        self.rank, self.world_size = 0, 1
        self.sends_only_nonfinite = self.measures_local_grads = self.is_distributed = self.is_reported = False
        self._layers: Layers | None = None

    def find(self) -> None:
        """Ask the process group if there is one, else what the launcher says."""
        if _has_group():
            # In this order: what the sender's thread reads in between is no rank out of range.
            self.world_size, self.rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
            self.is_distributed = True  # also of one: its wrapper does the same
        else:
            self.rank, self.world_size = identity.rank(os.environ)
            self.is_distributed = self.world_size > 1
        self.follow(self._layers)

    def as_tuple(self) -> tuple[int, int]:
        """Return rank and world size, which are kept from now on: a session cannot say others later."""
        self.is_reported = True
        return self.rank, self.world_size

    def refresh(self) -> bool:
        """Look for a process group where there was none; return True if it is too late to say its rank."""
        if self.is_distributed or not _has_group():
            return False
        if not self.is_reported:
            self.find()
        self.is_distributed = True
        return self.is_reported

    def follow(self, layers: Layers | None) -> None:
        """Take other layers."""
        self._layers = layers
        if layers is not None:
            self.sends_only_nonfinite = self.rank > 0 and not layers.is_sharded
            self.measures_local_grads = self.world_size > 1 and not layers.has_shards

    def owned(self, mine: Sequence[int]) -> list[bool] | None:
        """Return of which of some layers it speaks, None = all."""
        layers = self._layers
        if layers is None or not layers.is_sharded:
            return None
        return [layers.layer_set.layers[layer].local_numel > 0 for layer in mine]
