"""Sharded parameters: the local part of a DTensor, the rank of this process, and the layers that it sends."""

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
"""Torch's function without a wrapper: each window calls it. A torch that was built without groups has none."""


def is_later_rank() -> bool:
    """Return True if the group of this process has a rank before it."""
    return _has_group() and torch.distributed.get_rank() > 0


def is_dtensor(tensor: Tensor) -> bool:
    """Return True for a DTensor (FSDP2, tensor parallelism): a shard, or one of several copies."""
    return type(tensor) is not Tensor and hasattr(tensor, "placements") and hasattr(tensor, "to_local")


def local_tensor(tensor: Tensor) -> Tensor:
    """Return the shard of a DTensor that this process holds; any other tensor is returned as it is.

    So is a DTensor with a pending reduction: its local elements are addends.
    """
    if not is_dtensor(tensor) or not _is_final(tensor):
        return tensor
    with torch.no_grad():
        here: Tensor = tensor.to_local()  # type: ignore[attr-defined]  # a method of DTensor
    return here


def replicated_value(tensor: Tensor) -> Tensor | None:
    """Return the tensor, or the local copy of a replicated DTensor; None if the value needs a collective."""
    if not is_dtensor(tensor):
        return tensor
    is_replicated = all(placement.is_replicate() for placement in tensor.placements)  # type: ignore[attr-defined]  # of a DTensor
    return local_tensor(tensor) if is_replicated else None


def is_sharded(parameter: Tensor) -> bool:
    """Return True if other processes hold other elements of the parameter."""
    return any(size > 1 and placement.is_shard() for size, placement, _ in _mesh(parameter))


def owned_numel(parameter: Tensor, *, is_first: bool) -> int:
    """Return the number of elements that this process reports: of several copies only the first is reported."""
    if not is_dtensor(parameter):
        return parameter.numel() if is_first else 0
    if any(coordinate != 0 and not placement.is_shard() for _, placement, coordinate in _mesh(parameter)):
        return 0
    return local_tensor(parameter).numel()


def unsharded_parameters(modules: Iterable[nn.Module]) -> dict[int, Callable[[], nn.Parameter | None]]:
    """Return a reference to the unsharded parameter of each shard that FSDP2 offloads, by the shard's id.

    FSDP2 makes the unsharded parameter in the first forward pass, and keeps it.
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
    """Return size, placement and own coordinate for each dimension of the mesh; a plain tensor has none."""
    mesh = getattr(parameter, "device_mesh", None)
    if mesh is None:
        return []
    coordinates = mesh.get_coordinate() or [1] * mesh.ndim  # a process outside of the mesh holds nothing
    return [
        (mesh.size(number), placement, coordinate)
        for number, (placement, coordinate) in enumerate(zip(parameter.placements, coordinates, strict=True))  # type: ignore[attr-defined]  # of a DTensor
    ]


class Rank:
    """The rank of a process among ``world_size``, and the layers that it follows.

    - ``sends_only_nonfinite``: another process sends the same gradients. The first rank sends those of a replicated
      model; of other layers the collector decides, by :meth:`send_own_layers`.
    - ``measures_local_grads``: its gradients can be measured before they are reduced with those of other ranks.
    - ``is_distributed``: its gradients may be reduced with those of other ranks.
    """

    def __init__(self) -> None:
        self.rank, self.world_size = 0, 1
        self.sends_only_nonfinite = self.measures_local_grads = self.is_distributed = self.is_reported = False
        self._has_own_layers = False
        self._layers: Layers | None = None

    def find(self) -> None:
        """Read rank and world size from the process group, else from the launcher's environment."""
        if _has_group():
            # In this order: the sender's thread may read in between, and must not find a rank out of range.
            self.world_size, self.rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
            self.is_distributed = True  # also of one: its wrapper does the same
        else:
            self.rank, self.world_size = identity.rank_and_world_size(os.environ)
            self.is_distributed = self.world_size > 1
        self.follow(self._layers)

    def as_tuple(self) -> tuple[int, int]:
        """Return rank and world size. From now on they are kept: a session cannot change them."""
        self.is_reported = True
        return self.rank, self.world_size

    def refresh(self) -> bool:
        """Look for a process group if there was none; return True if its rank comes too late to be reported."""
        if self.is_distributed or not _has_group():
            return False
        if not self.is_reported:
            self.find()
        self.is_distributed = True
        return self.is_reported

    def follow(self, layers: Layers | None) -> None:
        """Follow other layers."""
        self._layers = layers
        if layers is not None:
            self.sends_only_nonfinite = self.rank > 0 and not (layers.is_sharded or self._has_own_layers)
            self.measures_local_grads = self.world_size > 1 and not layers.has_shards

    def send_own_layers(self) -> None:
        """Send all gradients from now on: no other rank trains these layers. Called by the sender's thread."""
        self._has_own_layers = True
        self.sends_only_nonfinite = False

    def owned(self, positions: Sequence[int]) -> list[bool] | None:
        """Return True for each of these layers that this process reports; None means all."""
        layers = self._layers
        if layers is None or not layers.is_sharded:
            return None
        return [layers.layer_set.layers[layer].local_numel > 0 for layer in positions]
