"""References to parameters that do not keep the tensor alive; parameter groups; live objects."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import nn

References = Sequence[Callable[[], nn.Parameter | None]]

Location = tuple[torch.optim.Optimizer, int, int]
"""The optimizer that holds a parameter, the number of its group, and the position in the group."""

Optimizer = torch.optim.Optimizer

Kind = TypeVar("Kind")
LAZY = ("xla",)


class ParameterRef:
    """A callable that returns the parameter, or None if neither its optimizer nor its module holds it.

    The optimizer comes first: under FSDP2 the module holds the unsharded parameter for a part of each step. The id
    identifies the parameter: it is unique as long as one of the two holds it, and a later tensor with the same id in
    the same location has replaced the layer's parameter.
    """

    __slots__ = ("_attribute", "_group", "_id", "_is_searched", "_optimizer", "_owner", "_position")

    def __init__(self, parameter: nn.Parameter, held: Location | None, owner: nn.Module | None) -> None:
        optimizer, self._group, self._position = held or (None, 0, 0)
        if owner is not None and optimizer is not None and "param_groups" not in vars(optimizer):
            optimizer = None  # its groups are made at each access, which takes too long for each layer
        self._id = id(parameter)
        self._optimizer = _nothing if optimizer is None else weakref.ref(optimizer)
        self._owner = _nothing if owner is None else weakref.ref(owner)
        self._attribute = _attribute(owner, parameter)
        self._is_searched = owner is not None

    def __call__(self) -> nn.Parameter | None:
        if (optimizer := self._optimizer()) is not None:
            try:
                found: nn.Parameter = optimizer.param_groups[self._group]["params"][self._position]
            except Exception:  # noqa: BLE001 -- its groups have changed, and may be of any class
                return self._elsewhere()
            if id(found) == self._id:
                return found
        return self._elsewhere()

    def _elsewhere(self) -> nn.Parameter | None:
        owner = self._owner()
        found = None if owner is None else owner._parameters.get(self._attribute)  # noqa: SLF001 -- the present parameter
        if id(found) == self._id:
            return found
        optimizer = self._optimizer()
        if self._is_searched or optimizer is None:
            return None
        self._is_searched = True  # once: after the parameter's end another tensor may get its id, in another location
        held = locations([optimizer]).get(self._id)
        if held is None:
            return None
        _, self._group, self._position = held
        return self()


def locations(optimizers: Iterable[torch.optim.Optimizer]) -> dict[int, Location]:
    """Return the location of each parameter of the optimizers, by the parameter's id."""
    found: dict[int, Location] = {}
    for optimizer in optimizers:
        for number, group in enumerate(optimizer.param_groups):
            for position, parameter in enumerate(group["params"]):
                found.setdefault(id(parameter), (optimizer, number, position))
    return found


def refer_to_same(some: References, others: References) -> bool:
    """Return True if both refer to the same parameters, and all of these exist."""
    if len(some) != len(others):
        return False
    return all(a() is b() is not None for a, b in zip(some, others, strict=True))


def _nothing() -> None:
    return None


def _attribute(owner: nn.Module | None, parameter: nn.Parameter) -> str:
    held = {} if owner is None else owner._parameters  # noqa: SLF001 -- named_parameters() leaves out the shared ones
    return next((name for name, each in held.items() if each is parameter), "")


def groups_of(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return the parameter groups; an optimizer that is half made has none."""
    try:
        return list(optimizer.param_groups)
    except Exception:  # noqa: BLE001 -- any optimizer of the process, maybe one whose __init__ raised
        return []


def parameters_of(optimizer: Optimizer) -> list[nn.Parameter]:
    """Return the parameters of all groups."""
    return [parameter for group in groups_of(optimizer) for parameter in group["params"]]


def group_sizes(optimizer: Optimizer) -> list[int]:
    """Return the number of parameters in each group; a change of it means that the layers have changed."""
    return [len(group["params"]) for group in groups_of(optimizer)]


def count_elements(optimizer: Optimizer) -> int:
    """Return the number of elements of all parameters."""
    return sum(parameter.numel() for parameter in parameters_of(optimizer))


_shared: list[list[Any]] | None = None
"""The objects that the present :func:`one_scan` has found, after the first search in it."""


@contextmanager
def one_scan() -> Iterator[None]:
    """Have all searches inside share one scan. It keeps every object alive: the training must not run meanwhile."""
    global _shared
    if _shared is not None:
        yield  # the outer one shares
        return
    own: list[list[Any]] = []
    _shared = own
    try:
        yield
    finally:
        own.clear()  # it is one of the objects that it holds: only the garbage collector would free them
        _shared = None


def live_objects(kind: type[Kind]) -> list[Kind]:
    """Return all objects of a class. ``isinstance`` would call into the object, and raises on a dead proxy."""
    shared = _shared
    objects = shared[0] if shared else gc.get_objects()
    if shared is not None and not shared:
        shared.append(objects)
    kinds = dict(zip(map(id, map(type, objects)), map(type, objects), strict=True))  # by id: some cannot be hashed
    wanted = {key for key, each in kinds.items() if issubclass(each, kind)}
    return [found for found in objects if id(type(found)) in wanted] if wanted else []


def learning_rates(optimizers: Iterable[torch.optim.Optimizer]) -> tuple[float | torch.Tensor, ...]:
    """Return a copy of the learning rate of each group that has one."""
    rates = [group["lr"] for optimizer in optimizers for group in optimizer.param_groups if "lr" in group]
    return tuple([each.detach().clone() if isinstance(each, torch.Tensor) else float(each) for each in rates])


def is_lazy(device: torch.device) -> bool:
    """Return True for a device on which torch gathers a graph: reading a value there would cut the graph."""
    return device.type in LAZY
