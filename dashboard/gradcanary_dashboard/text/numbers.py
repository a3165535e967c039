"""Numbers and states as text: thousands separators, two digits of a small value. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any

import numpy as np

from gradcanary import wording
from gradcanary_dashboard.text import units

NOTHING = wording.NOTHING
STATES = {
    "measured": "measured",
    "no_gradient": "no gradient",
    "zero": "exact zero",
    "nonfinite": "non-finite",
    "not_trainable": "not trainable",
    "partial": "partial",
}
RESOLUTIONS = {
    "recovered": "recovered",
    "run_finished": "run ended",
    "run_deleted": "run deleted",
    "rule_changed": "rule changed",
    "layer_gone": "parameter gone",
    "resumed": "resumed",
    "rebaselined": "new baseline",
}


ENDED = ("finished", "crashed")
"""States of a run or a launch after its last step."""

SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64"}
"""Short names of dtypes."""

KEPT = 2**12
"""Numbers whose texts are cached: a page has nearly the same numbers each second."""


def outcome(incident: Mapping[str, Any]) -> str:
    """Return the state of an incident, and how it was resolved if not by a recovery."""
    resolution = incident["resolution"]
    if incident["state"] != "resolved" or resolution in (None, "recovered"):
        return str(incident["state"])
    return f"resolved: {RESOLUTIONS.get(resolution, resolution)}"


def yet(states: Iterable[str]) -> str:
    """Return " yet" unless all of these runs or launches have ended."""
    return "" if all(state in ENDED for state in states) else " yet"


@lru_cache(maxsize=KEPT)
def integer(number: float | None) -> str:
    """Return 19999 as ``19,999``, None as a dash."""
    # -0.0 and 0.0 are one key of the cache: without the sign the text does not depend on which came first.
    return NOTHING if number is None else f"{number + 0.0:,.0f}"


scientific = lru_cache(maxsize=KEPT)(wording.number)
percent = wording.percent
plural = wording.count
low = wording.low


def setting(value: bool | float | str) -> str:
    """Return a value as it was set: ``100,000``, ``0.9999999``, ``1e-8``."""
    if isinstance(value, (bool, str)):
        return str(value)
    return re.sub(r"e([+-])0*", lambda sign: f"e{sign[1].strip('+')}", f"{value:,.12g}")


def seconds(number: float | None) -> str:
    """Return ``163 ms``, ``2.04 s``, ``3 min 20 s`` or ``3 h 20 min``, None as a dash."""
    if number is None:
        return NOTHING
    if number >= 7170:
        hours, minutes = divmod(round(number / 60), 60)
        return f"{hours:,} h {minutes} min"
    if number >= 119.5:
        minutes, rest = divmod(round(number), 60)
        return f"{minutes:,} min {rest} s"
    unit = units.of_seconds(number)
    return f"{scientific(round(number / unit.size, 3))} {unit.name}"


def duration(number: float) -> str:
    """Return seconds as ``45 s``, ``12 min``, ``2 h 5 min`` or ``3 d 4 h``."""
    minutes, rest = divmod(max(0, round(number)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{integer(days)} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min" if minutes else f"{rest} s"


def size(number: float | None) -> str:
    """Return bytes as ``21.9 GiB``, None as a dash."""
    if number is None:
        return NOTHING
    unit = units.of_bytes(number)
    return f"{scientific(number / unit.size)} {unit.name}"


def exact(number: float) -> str:
    """Return a float32 with all its digits: ``6.1035156e-7``, ``0.03125``, ``12,340``; other floats with seven."""
    if not math.isfinite(number) or number == 0:
        return f"{number:,.7g}"
    with np.errstate(over="ignore", under="ignore"):
        single = np.float32(number)
    shortest = float(str(single) if float(single) == number else f"{number:.7g}")
    if 1e-3 <= abs(number) < 1e6:
        whole, dot, rest = np.format_float_positional(abs(shortest), unique=True, trim="-").partition(".")
        return f"{'-' if number < 0 else ''}{int(whole):,}{dot}{rest}"
    mantissa, exponent = np.format_float_scientific(shortest, unique=True, trim="-").split("e")
    return f"{mantissa}e{int(exponent)}"


def moment(unix_s: float) -> str:
    """Return a time as in the API, RFC 3339 in UTC."""
    return datetime.fromtimestamp(unix_s, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def steps(first: float, last: float) -> str:
    """Return ``Step 5`` or ``Steps 5 to 9``."""
    return f"Step {integer(first)}" if first == last else f"Steps {integer(first)} to {integer(last)}"


def state(name: str | None) -> str:
    """Return the state of a layer in words; None before its first sample."""
    return "not measured" if name is None else STATES.get(name, name)


def dtypes(counts: Mapping[str, int]) -> str:
    """Return accumulator dtypes, most frequent first: ``bfloat16``, or ``float32 280, bfloat16 20``."""
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    if len(ranked) <= 1:
        return next(iter(counts), NOTHING)
    return ", ".join(f"{name} {integer(number)}" for name, number in ranked)


def accumulator(told: Mapping[str, str | None]) -> str:
    """Return the dtypes of an accumulator, declared, stored and effective: ``fp32 / bf16 / bf16``."""
    return _dtypes(told["declared"], told["stored"], told["effective"])


@lru_cache(maxsize=KEPT)
def _dtypes(*names: str | None) -> str:
    return " / ".join(SHORT.get(name or NOTHING, name or NOTHING) for name in names)


def short_block(name: str, limit: int = 14) -> str:
    """Return the end of a block's name, whole parts first, at most ``limit`` characters."""
    parts = name.split(".")
    while len(parts) > 1 and len(".".join(parts)) > limit:
        parts = parts[1:]
    text = ".".join(parts)
    return text if len(text) <= limit else "…" + text[-(limit - 1) :]
