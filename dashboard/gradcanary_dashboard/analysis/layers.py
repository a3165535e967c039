"""The order, choice and rows of layers in the table of a page. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gradcanary import wire
from gradcanary_dashboard.text import numbers
from gradcanary_dashboard.text.names import Common

Layer = Mapping[str, Any]

MAX_ROWS = 200
"""Rows of the table, worst first: each refresh sends all of them, and people do not read more one by one."""

FEWEST_SIBLINGS = 4

URGENCY = ("firing", "recovering", "suspect")
_RANKS = {state: place for place, state in enumerate(URGENCY)}


def worst_first(layers: Sequence[Layer]) -> list[Layer]:
    """Return firing layers, then suspect, non-finite and low ones, then by absmax; layers without a gradient last."""
    return sorted(layers, key=_urgency)


def worst(layers: Iterable[Layer]) -> Layer | None:
    """Return the first of :func:`worst_first`, None without any."""
    return min(layers, key=_urgency, default=None)


def common(layers: Iterable[Layer]) -> Common:
    """Return what the names of all layers share: pages leave it out."""
    return Common.of(layer["name"] for layer in layers)


def find(layers: Sequence[Layer], wanted: str | None) -> Layer | None:
    """Return the layer with this name, else with this number."""
    named = next((layer for layer in layers if layer["name"] == wanted), None)
    if named is None and wanted is not None and wanted.isascii() and wanted.isdigit():
        return _numbered(layers, int(wanted))
    return named


def siblings(layers: Sequence[Layer], layer: Layer) -> list[Layer]:
    """Return the layers of the same shape whose names differ only in numbers, this one included.

    Fewer than four are not siblings: the rules compare no smaller group.
    """
    alike = [other for other in layers if _kind(other) == _kind(layer)]
    return alike if len(alike) >= FEWEST_SIBLINGS else []


def around(listed: Sequence[Layer], layer: Layer) -> list[Layer]:
    """Return the layers nearest to this one in the list, at most a table of them."""
    place = next((index for index, other in enumerate(listed) if other is layer), 0)
    first = max(0, min(place - MAX_ROWS // 2, len(listed) - MAX_ROWS))
    return list(listed[first : first + MAX_ROWS])


def choose(layers: Sequence[Layer], wanted: str | None, member: int | None, shown: int | None) -> Layer | None:
    """Return the layer whose trend is drawn.

    1. the one in the URL, 2. the first member of the incident in the URL, 3. the one shown before, unless another
    layer fires now, 4. the worst.
    """
    named = find(layers, wanted) or _numbered(layers, member)
    first = worst(layers)
    if named is not None or first is None:
        return named
    before = _numbered(layers, shown)
    return first if before is None or (is_firing(first) and not is_firing(before)) else before


def is_firing(layer: Layer) -> bool:
    """Return True if a rule fires for the layer."""
    return "firing" in layer["rules"].values()


def has_incident(layer: Layer) -> bool:
    """Return True if a rule fires for the layer, also while it recovers."""
    states = layer["rules"].values()
    return "firing" in states or "recovering" in states


def frozen(run: Mapping[str, Any], layers: Sequence[Layer]) -> tuple[str, list[str]]:
    """Return what the agent said of frozen parameters, and their names; nothing if all of them are layers by now."""
    known = {layer["name"] for layer in layers}
    for fact in run["facts"]:
        names = [name for name in fact["layers"] if name not in known]
        if fact["code"] == wire.FROZEN_PARAMETERS and names:
            return fact["text"], names
    return "", []


def row(layer: Layer, *, has_ended: bool) -> dict[str, Any]:
    """Return a layer as texts for the table; nothing fires after the end of its run, ``has_ended``.

    Rules of severity information are left out: of a bfloat16 training they are the same for each layer.
    """
    words = dict.fromkeys(("firing", "recovering"), "not recovered") if has_ended else {}
    told = ((rule, state) for rule, state in sorted(layer["rules"].items()) if state != "info")
    rules = ((rule.replace("_", " "), words.get(state, state)) for rule, state in told)
    return {
        "name": layer["name"],
        "absmax": numbers.scientific(layer["absmax"]),
        "norm": numbers.scientific(layer["norm"]),
        "state": numbers.state(layer["state"]),
        "accumulator": numbers.accumulator(layer["accumulator"]),
        "k": numbers.integer(layer["micro_steps"]),
        "rule": ", ".join(f"{rule} {state}" for rule, state in rules),
        "tone": _tone(layer),
        "below_threshold": bool(layer["below_threshold"]),
    }


def _tone(layer: Layer) -> str:
    states = layer["rules"].values()
    if "firing" in states or "recovering" in states:
        return "critical"
    return "warning" if "suspect" in states or layer["below_threshold"] or layer["state"] == "nonfinite" else "quiet"


def _urgency(layer: Layer) -> tuple[int, int, int, float, int]:
    states = layer["rules"].values()
    rules = min((_RANKS.get(state, len(URGENCY)) for state in states), default=len(URGENCY)) if states else len(URGENCY)
    absmax = layer["absmax"]
    known = 0 if layer["state"] == "nonfinite" else 1 if absmax is not None and layer["state"] == "measured" else 2
    if layer["state"] == "zero":
        known = 1
    return rules, known, 0 if layer["below_threshold"] else 1, math.inf if absmax is None else absmax, layer["layer"]


def _kind(layer: Layer) -> tuple[str, tuple[int, ...]]:
    return re.sub(r"\d+", "#", layer["name"]), tuple(layer["shape"])


def _numbered(layers: Sequence[Layer], number: int | None) -> Layer | None:
    return next((layer for layer in layers if layer["layer"] == number), None)
