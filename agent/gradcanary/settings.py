"""Arguments over ``GRADCANARY_*`` over defaults, and what ``log()`` and ``observe_accumulator()`` accept.

Everything is checked here, before the training is touched. No other module raises.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from gradcanary import wire

DEFAULT_URL = "http://127.0.0.1:8787"
DEFAULT_EVERY = "auto"
DEFAULT_BUDGET = 0.01

RESERVED = re.compile(
    r"lr\d+|step_time_s|scaler_scale|total_norm|clip_factor|peak_memory_bytes|skipped_total|agent_share"
)
UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
MAX_METRIC_NAME = 200
MAX_TAGS = 2000
MAX_METRIC_BOUNDS = 100
MAX_TIMEOUT_S = 86_400

INTERVALS = (1, 10, 100, 1000)

STOPPING = ("warning", "critical")
"""Severities that ``stop_on`` may be, in ascending order."""


@dataclass(frozen=True)
class Settings:
    """Checked settings; ``every`` is "auto" or an interval in steps, ``include`` and ``exclude`` search layer names;
    ``budget`` is the share of the time that "auto" keeps to; ``crash_message`` is False if the message of an exception
    must not be sent, ``environment`` if command, code and machine are not recorded; ``metrics`` are bounds of metrics
    that are logged; ``stop_on`` is the least severity of an incident that should stop the training, None for none."""

    url: str
    run: str | None
    token: str | None
    every: int | str
    include: re.Pattern[str] | None
    exclude: re.Pattern[str] | None
    absmax_below: float | None
    norm_below: float | None
    step: int | None
    budget: float = DEFAULT_BUDGET
    crash_message: bool = True
    environment: bool = True
    metrics: tuple[wire.MetricBound, ...] = ()
    collapse_below: float | None = None
    stop_on: str | None = None

    @classmethod
    def resolve(cls, environ: Mapping[str, str], spelled: str = "watch({}=)", **arguments: Any) -> Settings:  # noqa: ANN401 -- checked by the readers
        """Return the settings; raises ValueError that names the argument or variable, its value and what is allowed.

        ``spelled`` is the caller's spelling of an argument. A default value counts as not given.
        """
        chosen: dict[str, Any] = {}
        for name, read in READERS.items():
            variable = f"GRADCANARY_{name.upper()}"
            given, where = arguments.get(name), spelled.format(name)
            is_given = given is not None and given != _DEFAULTS.get(name)
            if not is_given and environ.get(variable):
                given, where = environ[variable], variable
            chosen[name] = None if given is None else read_value(read, given, where)
        filled: dict[str, Any] = {
            name: _DEFAULTS.get(name) if value is None else value for name, value in chosen.items()
        }
        return cls(**filled)


def read_value(read: Callable[[Any], Any], given: object, where: str) -> Any:  # noqa: ANN401 -- as the reader returns it
    """Return a value as its reader does; raises ValueError that begins with ``where``, and says what is allowed."""
    try:
        return read(given)
    except (TypeError, ValueError) as error:
        shown = "not usable" if read is _token else repr(given)  # a token must not appear in a log
        raise ValueError(f"{where} is {shown}: {error}") from None  # its text is here: one traceback, not two


def _url(given: str) -> str:
    if not _text(given).isascii() or not given.isprintable() or " " in given:
        raise ValueError("it must be printable ASCII without spaces")
    parts = urlsplit(given)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"it must be the address of a collector, such as {DEFAULT_URL}")
    if parts.query or parts.fragment or parts.username or (parts.port is not None and parts.port < 1):
        raise ValueError("it must be scheme, host, port and path only")
    return given.rstrip("/")


def _text(given: str) -> str:
    if not isinstance(given, str) or not given.strip():
        raise ValueError("it must be a text that is not empty")
    return given


def _token(given: str) -> str:
    if not _text(given).isascii() or not given.isprintable():
        raise ValueError("it must be printable ASCII")
    return given


def _every(given: int | str) -> int | str:
    if given == "auto":
        return "auto"
    if isinstance(given, bool) or str(given) not in map(str, INTERVALS):
        raise ValueError('it must be "auto" or one of 1, 10, 100, 1000 steps')
    return int(given)


def _pattern(given: str) -> re.Pattern[str]:
    try:
        return re.compile(_text(given))
    except re.error as error:
        raise ValueError(f"it must be a regular expression ({error})") from error


def to_float(given: float | str) -> float:
    """Return a number, or the number of a text; NaN of anything else."""
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        return math.nan if isinstance(given, bool) else float(given)
    return math.nan


def _threshold(given: float | str) -> float:
    threshold = to_float(given)
    if not (math.isfinite(threshold) and threshold > 0):
        raise ValueError("it must be a number above 0")
    return threshold


def _budget(given: float | str) -> float:
    share = to_float(given)
    if not 0 < share <= 1:
        raise ValueError("it must be a share of the step time above 0, at most 1")
    return share


def _flag(given: bool | str) -> bool:
    if str(given).lower() not in ("0", "1", "false", "true"):
        raise ValueError("it must be True or False, in the environment 1 or 0")
    return str(given).lower() in ("1", "true")


def _step(given: int | str) -> int:
    if isinstance(given, (bool, float)) or not 0 <= int(given) < 2**31:
        raise ValueError("it must be a whole number of steps, 0 or more")
    return int(given)


def _severity(given: str) -> str:
    if given not in STOPPING:
        raise ValueError("it must be 'warning' or 'critical'")
    return given


_BOUND_KEYS = ("below", "above", "falls_by", "rises_by")
_METRICS = (
    f"it must name metrics with one of {', '.join(_BOUND_KEYS)} at least, and perhaps observations and severity: "
    '{"clip_score": {"below": 0.25, "falls_by": 0.2}}'
)


def _metrics(given: Mapping[str, Mapping[str, Any]] | str) -> tuple[wire.MetricBound, ...]:
    bounds = json.loads(given) if isinstance(given, str) else given
    is_named = isinstance(bounds, Mapping) and all(
        isinstance(name, str) and isinstance(keys, Mapping) for name, keys in bounds.items()
    )
    if not is_named or len(bounds) > MAX_METRIC_BOUNDS:
        raise ValueError(_METRICS)
    return tuple(_metric_bound(name, keys) for name, keys in bounds.items())


def _metric_bound(name: str, keys: Mapping[str, Any]) -> wire.MetricBound:
    check_name(name, is_own=True)
    for key, value in keys.items():
        if key not in _BOUND_VALUES:
            raise ValueError(f"{name} has an unknown key {key!r}; known are {', '.join(_BOUND_VALUES)}")
        is_allowed, words = _BOUND_VALUES[key]
        if value is not None and not is_allowed(value):
            raise ValueError(f"{key} of {name} is {value!r}; it must be {words}")
    bounds = {key: float(keys[key]) for key in _BOUND_KEYS if keys.get(key) is not None}
    if not bounds:
        raise ValueError(_METRICS)
    if bounds.get("above", math.inf) <= bounds.get("below", -math.inf):
        raise ValueError(f"above of {name} is {keys['above']!r}; it must be over below, {keys['below']!r}")
    return wire.MetricBound(
        name,
        **bounds,
        observations=keys.get("observations"),
        severity=keys.get("severity"),
    )


def _is_finite(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= wire.MAX_METRIC_OBSERVATIONS


_BOUND_VALUES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "below": (_is_finite, "a finite number"),
    "above": (_is_finite, "a finite number"),
    "falls_by": (lambda value: _is_finite(value) and 0 < value <= 1, "a share of its own level above 0, at most 1"),
    "rises_by": (lambda value: _is_finite(value) and value > 0, "a share of its own level above 0"),
    "observations": (_is_count, f"a whole number from 1 to {wire.MAX_METRIC_OBSERVATIONS}"),
    "severity": (lambda value: value in STOPPING, "'warning' or 'critical'"),
}

_DEFAULTS: dict[str, Any] = {
    "url": DEFAULT_URL,
    "every": DEFAULT_EVERY,
    "budget": DEFAULT_BUDGET,
    "crash_message": True,
    "environment": True,
    "metrics": (),
}
READERS: dict[str, Callable[[Any], Any]] = {
    "url": _url,
    "run": _text,
    "token": _token,
    "every": _every,
    "include": _pattern,
    "exclude": _pattern,
    "absmax_below": _threshold,
    "norm_below": _threshold,
    "collapse_below": _threshold,
    "step": _step,
    "budget": _budget,
    "crash_message": _flag,
    "environment": _flag,
    "metrics": _metrics,
    "stop_on": _severity,
}


def check_watch(model: object, optimizer: object, on_alert: object) -> None:
    """Raise TypeError on arguments that ``watch()`` cannot follow."""
    import torch

    if model is not None and not isinstance(model, torch.nn.Module):
        raise TypeError(f"watch(model=) is a {type(model).__name__}: it must be a torch.nn.Module")
    if optimizer is not None and not hasattr(optimizer, "param_groups"):
        raise TypeError(f"watch(optimizer=) is a {type(optimizer).__name__}: it must be a torch optimizer")
    if on_alert is not None and not callable(on_alert):
        raise TypeError(f"watch(on_alert=) is a {type(on_alert).__name__}: it must be callable")


def check_close(state: str, timeout_s: float) -> None:
    """Raise ValueError on a state or a timeout that no watch can end with."""
    if state not in ("finished", "crashed"):
        raise ValueError(f"close(state={state!r}): it must be 'finished' or 'crashed'")
    is_number = isinstance(timeout_s, (int, float)) and not isinstance(timeout_s, bool)
    if not is_number or not 0 <= timeout_s <= MAX_TIMEOUT_S:
        raise ValueError(f"close(timeout_s={timeout_s!r}): it must be 0 to {MAX_TIMEOUT_S} seconds")


def check_name(name: str, *, is_own: bool) -> None:
    """Raise ValueError on a series name that is reserved or not printable; ``is_own`` is True for loss and lr."""
    if not is_own and RESERVED.fullmatch(name):
        raise ValueError(f"log({name}=): this name is taken by what gradcanary measures itself")
    if not 0 < len(name) <= MAX_METRIC_NAME or UNPRINTABLE.search(name):
        raise ValueError(f"log({name[:50]!r}=): a name has 1 to {MAX_METRIC_NAME} printable characters")


def check_number(name: str, value: object) -> Any:  # noqa: ANN401 -- a float, or a tensor that the sender reads
    """Return a float, or the given tensor of one element; raises TypeError or ValueError."""
    import torch

    if isinstance(value, torch.Tensor):
        if value.numel() != 1 or value.is_complex():
            raise ValueError(f"log({name}=) is a tensor of shape {tuple(value.shape)}: it must have one element")
        if value.is_meta:
            raise ValueError(f"log({name}=) is a tensor without a value, on the meta device")
        return value
    if isinstance(value, (str, bytes)) or not hasattr(value, "__float__"):
        raise TypeError(f"log({name}=) is a {type(value).__name__}: it must be a number or a tensor of one element")
    try:
        return float(value)
    except OverflowError as error:
        raise ValueError(f"log({name}=): the number is too large for a float") from error


def check_buffer(name: object, tensor: object) -> None:
    """Raise TypeError or ValueError on a buffer that ``Watch.observe_accumulator()`` cannot read."""
    import torch

    if not isinstance(name, str):
        raise TypeError(f"observe_accumulator(name=) is a {type(name).__name__}: it must be the name of a parameter")
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"observe_accumulator({name!r}) is a {type(tensor).__name__}: it must be a tensor")
    if tensor.is_meta or not (tensor.is_floating_point() or tensor.is_complex()):
        raise ValueError(f"observe_accumulator({name!r}) is a tensor of {tensor.dtype} on {tensor.device}: no gradient")


def check_tags(tags: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
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


def check_step(step: int | None) -> int | None:
    """Return the step; raises ValueError."""
    if step is not None and (isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < 2**31):
        raise ValueError(f"log(step={step!r}): it must be a whole number of steps, 0 or more")
    return step
