"""What callers gave to ``watch()`` and ``Watch.log()``, checked; the one place that raises."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

RESERVED = re.compile(
    r"lr\d+|step_time_s|scaler_scale|total_norm|clip_factor|peak_memory_bytes|skipped_total|agent_share"
)
UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
MAX_METRIC_NAME = 200
MAX_TAGS = 2000
MAX_TIMEOUT_S = 86_400


def check_watch(model: object, optimizer: object, on_alert: object) -> None:
    """Raise TypeError or ValueError on what ``watch()`` cannot follow."""
    import torch

    if model is not None and not isinstance(model, torch.nn.Module):
        raise TypeError(f"watch(model=) is a {type(model).__name__}: it must be a torch.nn.Module")
    if optimizer is not None and not hasattr(optimizer, "param_groups"):
        raise TypeError(f"watch(optimizer=) is a {type(optimizer).__name__}: it must be a torch optimizer")
    if on_alert is not None and not callable(on_alert):
        raise TypeError(f"watch(on_alert=) is a {type(on_alert).__name__}: it must be callable")


def check_close(state: str, timeout_s: float) -> None:
    """Raise ValueError on what no watch can end with."""
    if state not in ("finished", "crashed"):
        raise ValueError(f"close(state={state!r}): it must be 'finished' or 'crashed'")
    is_number = isinstance(timeout_s, (int, float)) and not isinstance(timeout_s, bool)
    if not is_number or not 0 <= timeout_s <= MAX_TIMEOUT_S:
        raise ValueError(f"close(timeout_s={timeout_s!r}): it must be 0 to {MAX_TIMEOUT_S} seconds")


def check_name(name: str, *, is_own: bool) -> None:
    """Raise ValueError on a name of a series that is taken or cannot be shown; ``is_own`` are loss and lr."""
    if not is_own and RESERVED.fullmatch(name):
        raise ValueError(f"log({name}=): this name is taken by what gradcanary measures itself")
    if not 0 < len(name) <= MAX_METRIC_NAME or UNPRINTABLE.search(name):
        raise ValueError(f"log({name[:50]!r}=): a name has 1 to {MAX_METRIC_NAME} printable characters")


def number_of(name: str, value: object) -> Any:  # noqa: ANN401 -- a float, or a tensor that the sender reads
    """Return a float, or a copy of a tensor of one element; raises TypeError or ValueError."""
    import torch

    from gradcanary.shards import whole

    if isinstance(value, torch.Tensor):
        if value.numel() != 1 or value.is_complex():
            raise ValueError(f"log({name}=) is a tensor of shape {tuple(value.shape)}: it must have one element")
        if value.is_meta:
            raise ValueError(f"log({name}=) is a tensor without a value, on the meta device")
        if (here := whole(value)) is None:
            raise ValueError(f"log({name}=) is a DTensor of which each process has a part: give its .full_tensor()")
        return here.detach().clone()
    if isinstance(value, (str, bytes)) or not hasattr(value, "__float__"):
        raise TypeError(f"log({name}=) is a {type(value).__name__}: it must be a number or a tensor of one element")
    try:
        return float(value)
    except OverflowError as error:
        raise ValueError(f"log({name}=): the number is too large for a float") from error


def check_buffer(name: object, tensor: object) -> None:
    """Raise TypeError or ValueError on what ``Watch.observe_accumulator()`` cannot read."""
    import torch

    if not isinstance(name, str):
        raise TypeError(f"observe_accumulator(name=) is a {type(name).__name__}: it must be the name of a layer")
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"observe_accumulator({name!r}) is a {type(tensor).__name__}: it must be a tensor")
    if tensor.is_meta or not (tensor.is_floating_point() or tensor.is_complex()):
        raise ValueError(f"observe_accumulator({name!r}) is a tensor of {tensor.dtype} on {tensor.device}: no gradient")


def tags_of(tags: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    """Return the pairs in their order; raises TypeError or ValueError."""
    if not isinstance(tags, (Mapping, type(None))):
        raise TypeError(f"log(tags=) is a {type(tags).__name__}: it must be a mapping of texts to texts")
    pairs = tuple((tags or {}).items())
    for key, value in pairs:
        if not (isinstance(key, str) and isinstance(value, str) and key):
            raise TypeError(f"log(tags=) holds {key!r}: {value!r}; both must be texts")
        if max(len(key), len(value)) > MAX_METRIC_NAME or UNPRINTABLE.search(key + value):
            raise ValueError(
                f"log(tags=): {key[:50]!r} and its value have at most {MAX_METRIC_NAME} printable characters"
            )
    if len(json.dumps(dict(pairs))) > MAX_TAGS:
        raise ValueError(f"log(tags=): as JSON they have at most {MAX_TAGS} characters")
    return tuple(sorted(pairs))


def step_of(step: int | None) -> int | None:
    """Return the step; raises ValueError."""
    if step is not None and (isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < 2**31):
        raise ValueError(f"log(step={step!r}): it must be a whole number of steps, 0 or more")
    return step
