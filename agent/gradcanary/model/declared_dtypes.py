"""In which dtype somebody asked for gradients to be summed: by a wrapper, a framework's config, or a parameter group.

All of it is duck-typed: nothing is imported that the training has not imported. What torch itself has is tested with
it; DeepSpeed and Megatron are experimental: they do not run without GPUs, and are tested with stand-ins of their
attribute names. Accelerate declares nothing itself: what it hands to DDP, FSDP or DeepSpeed is read there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from gradcanary import wire

_KEY = re.compile("grad|accum|reduce")
_PRECISION = re.compile("dtype|precision|fp16|fp32|bf16")
_NAMES = {"fp32": "float32", "float": "float32", "bf16": "bfloat16", "fp16": "float16", "half": "float16"}
_OF_DEEPSPEED = ("gradient_accumulation_dtype", "grad_acc_dtype")
"""Of its optimizers: those of ZeRO, and ``BF16_Optimizer``."""

_HOOKS = {"bf16_compress": "bfloat16", "fp16_compress": "float16"}

_registered: dict[int, Callable[[], object]] = {}
"""By id of the parameter: what is in here is asked whether it is still the same one."""

_revision = 0


def declared(roots: Iterable[nn.Module], optimizers: Iterable[torch.optim.Optimizer]) -> dict[int, str]:
    """Return the dtypes that were asked for, by id of the parameter.

    What is said of the parameter itself (``grad_dtype``) comes before its group's keys, and those before its modules'.
    """
    found = {id(parameter): name for parameter, name in _of_modules(roots)}
    for group in (group for optimizer in optimizers for group in optimizer.param_groups):
        names = [name for key in group if _KEY.search(str(key)) and (name := _name(group[key])) is not None]
        found.update({id(parameter): names[0] for parameter in group["params"] if names and _own(parameter) is None})
    return found


def dead_keys(optimizers: Iterable[torch.optim.Optimizer], names: dict[int, str]) -> Iterator[wire.Fact]:
    """Yield what is to be said of keys of parameter groups that are about precision and that the optimizer has not.

    ``names`` are those of the layers, by id of the parameter.
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
    """Yield parameters and the dtype that they ask for, or that the nearest module around them that does asks for."""
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
    """Return what a wrapper asks for, None of any other module. Classes by name: most of them are not imported."""
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
    """Return what was set on the parameter itself (torch 2.10 or newer); unset it is the parameter's dtype.

    ``fp32_accumulators()`` asks for float32 by a call, and so that stock optimizers can step sets that it may be any.
    """
    if is_summed(parameter):
        return "float32"
    dtype = getattr(parameter, "grad_dtype", None)
    return None if dtype is None or dtype == parameter.dtype else _name(dtype)


def _name(value: object) -> str | None:
    """Return a dtype as the wire says it, of a torch.dtype or of one of its names; None of anything else."""
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
    """Forget a parameter, unless another one has been registered under its id."""
    global _revision
    if _registered.get(key) is parameter:
        del _registered[key]
        _revision += 1


def is_summed(parameter: Tensor) -> bool:
    """Say whether the gradients of a parameter are summed in float32 by us."""
    found = _registered.get(id(parameter))
    return found is not None and found() is parameter


def revision() -> int:
    """Return a number that is another one after each change of what :func:`is_summed` says."""
    return _revision
