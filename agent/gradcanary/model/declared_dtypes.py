"""The dtype in which gradients should be summed, as a wrapper, a framework's config or a parameter group declares it.

All of it is duck-typed: nothing is imported that the training has not imported. Classes of torch are tested with torch.
DeepSpeed and Megatron are experimental: they do not run without GPUs, and are tested with stand-ins that have their
attribute names. Accelerate passes its settings to DDP, FSDP or DeepSpeed, and they are read there.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from gradcanary import wire

_KEY = re.compile("grad|accum|reduce")
_PRECISION = re.compile("dtype|precision|fp16|fp32|bf16")
_NAMES = {"fp32": "float32", "float": "float32", "bf16": "bfloat16", "fp16": "float16", "half": "float16"}
_OF_DEEPSPEED = ("gradient_accumulation_dtype", "grad_acc_dtype")
"""Attributes of DeepSpeed's optimizers: ZeRO's, and ``BF16_Optimizer``."""

_HOOKS = {"bf16_compress": "bfloat16", "fp16_compress": "float16"}

_registered: dict[int, Callable[[], object]] = {}
"""Parameters that are summed in float32, by id; the callable returns the parameter that the id stands for."""

_masters: weakref.WeakKeyDictionary[torch.optim.Optimizer, Mapping[int, Tensor]] = weakref.WeakKeyDictionary()
"""The float32 copies that an optimizer steps in the place of its parameters, by the parameters' ids."""

_revision = 0


def declared(roots: Iterable[nn.Module], optimizers: Iterable[torch.optim.Optimizer]) -> dict[int, str]:
    """Return the declared dtypes by id of the parameter.

    The parameter's own ``grad_dtype`` comes before its group's keys, and these before its modules.
    """
    found = {id(parameter): name for parameter, name in _of_modules(roots)}
    for group in (group for optimizer in optimizers for group in optimizer.param_groups):
        names = [name for key in group if _KEY.search(str(key)) and (name := _name(group[key])) is not None]
        found.update({id(parameter): names[0] for parameter in group["params"] if names and _own(parameter) is None})
    return found


def dead_keys(optimizers: Iterable[torch.optim.Optimizer], names: dict[int, str]) -> Iterator[wire.Fact]:
    """Yield a fact for each key of a parameter group that is about precision and unknown to the optimizer.

    ``names`` are the layers' names by id of the parameter.
    """
    for optimizer in (each for each in optimizers if hasattr(each, "defaults")):  # a wrapper may have none
        keys = dict.fromkeys(key for group in optimizer.param_groups for key in group)
        for key in (key for key in keys if key not in optimizer.defaults and _PRECISION.search(str(key))):
            groups = (group for group in optimizer.param_groups if key in group)
            layers = tuple(names[id(each)] for group in groups for each in group["params"] if id(each) in names)
            text = (
                f"{type(optimizer).__name__} has no setting {key!r}: in its parameter groups it does nothing. PyTorch "
                "sums gradients in the dtype of the parameter; gradcanary.fp32_accumulators(optimizer) has them summed "
                "in float32."
            )
            yield wire.Fact("dead_config_key", text, () if len(layers) == len(names) else layers)


def _of_modules(roots: Iterable[nn.Module]) -> Iterator[tuple[nn.Parameter, str]]:
    """Yield parameters with the dtype that they declare, or that the nearest enclosing module declares."""
    seen: set[int] = set()
    left: list[tuple[nn.Module, str | None]] = [(root, None) for root in roots]
    while left:
        module, inherited = left.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        asked = _asked_by(module) or inherited
        for parameter in module.parameters(recurse=False):
            if (name := _own(parameter) or asked) is not None:
                yield parameter, name
        left += [(child, asked) for child in module.children()]


def _asked_by(module: nn.Module) -> str | None:
    """Return the dtype that a wrapper declares, None for other modules. Classes by name: most are not imported."""
    kinds, has = {kind.__name__ for kind in type(module).__mro__}, module.__dict__
    if "FSDPModule" in kinds:
        return _of_policy(getattr(module._get_fsdp_state(), "_mp_policy", None))  # type: ignore[operator]  # noqa: SLF001 -- the only place that has it
    if "FullyShardedDataParallel" in kinds:
        return _of_policy(has.get("mixed_precision"))
    if "DistributedDataParallel" in kinds and "ddp_config" in has:  # of Megatron
        return "float32" if getattr(has["ddp_config"], "grad_reduce_in_fp32", False) else None
    if "DistributedDataParallel" in kinds:
        hooks = [getattr(hook, "__name__", "") for hook, _ in has.get("_comm_hooks", ())]
        return next((dtype for hook in hooks for name, dtype in _HOOKS.items() if name in hook), None)
    if "DeepSpeedEngine" in kinds:
        asked = (_name(getattr(has.get("optimizer"), name, None)) for name in _OF_DEEPSPEED)
        return next((dtype for dtype in asked if dtype is not None), None)
    return None


def _of_policy(policy: Any) -> str | None:  # noqa: ANN401 -- a MixedPrecisionPolicy of FSDP2, or a MixedPrecision of FSDP
    return _name(getattr(policy, "reduce_dtype", None)) or _name(getattr(policy, "param_dtype", None))


def _own(parameter: torch.Tensor) -> str | None:
    """Return the ``grad_dtype`` of a parameter (torch 2.10 or newer), None if it is the parameter's dtype.

    ``fp32_accumulators()`` sets it to any dtype, so that stock optimizers can step; the parameter is registered then.
    """
    if is_summed(parameter):
        return "float32"
    dtype = getattr(parameter, "grad_dtype", None)
    return None if dtype is None or dtype == parameter.dtype else _name(dtype)


def _name(value: object) -> str | None:
    """Return the wire's name of a torch.dtype or of one of its names; None for anything else."""
    if not isinstance(value, (torch.dtype, str)):
        return None
    text = str(value).removeprefix("torch.")
    text = _NAMES.get(text, text)
    return text if isinstance(getattr(torch, text, None), torch.dtype) else None


def register(key: int, parameter: Callable[[], object]) -> None:
    """Note that the gradients of a parameter are summed in float32 from now on; ``key`` is its id."""
    global _revision
    _registered[key] = parameter
    _revision += 1


def unregister(key: int, parameter: Callable[[], object]) -> None:
    """Remove a parameter, unless another one has been registered under its id."""
    global _revision
    if _registered.get(key) is parameter:
        del _registered[key]
        _revision += 1


def is_summed(parameter: Tensor) -> bool:
    """Return True if ``fp32_accumulators()`` sums the gradients of a parameter."""
    found = _registered.get(id(parameter))
    return found is not None and found() is parameter


def register_masters(optimizer: torch.optim.Optimizer, masters: Mapping[int, Tensor]) -> None:
    """Note the float32 copies that an optimizer steps from now on, by id of the parameter."""
    global _revision
    _masters[optimizer] = masters
    _revision += 1


def unregister_masters(optimizer: torch.optim.Optimizer) -> None:
    """Remove the copies of an optimizer."""
    global _revision
    _masters.pop(optimizer, None)
    _revision += 1


def has_masters(optimizer: torch.optim.Optimizer) -> bool:
    """Return True if ``fp32_masters()`` is on for an optimizer."""
    return optimizer in _masters


def has_master(parameter: Tensor) -> bool:
    """Return True if an optimizer steps a float32 copy of a parameter."""
    return any(id(parameter) in each for each in _masters.values())


def revision() -> int:
    """Return a number that changes with each call that registers, or removes, something."""
    return _revision
