"""Rules as text that keeps every number: what the store remembers of them, and what ``GET /rules`` answers. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any, TypeVar

from gradcanary_server.rules import OF_RUN, LayerRule, Rules

Part = TypeVar("Part")


def dump(rules: Rules) -> str:
    """Return rules as JSON."""
    return json.dumps(asdict(rules), sort_keys=True)


def load(found: Mapping[str, Any]) -> Rules:
    """Return rules from parsed JSON; what another version did not know keeps its default, and what it knew is left."""
    rules = _part(Rules(), {name: value for name, value in found.items() if name != "layers"})
    return replace(rules, layers=tuple(_entry(entry, rules) for entry in found.get("layers", [])))


def _entry(found: Mapping[str, Any], rules: Rules) -> LayerRule:
    own = {name: _part(getattr(rules, name), found[name]) for name in OF_RUN if found.get(name) is not None}
    return LayerRule(found["match"], **own)


def _part(default: Part, found: Mapping[str, Any]) -> Part:
    values: dict[str, Any] = {}
    for each in fields(default):  # type: ignore[arg-type]  # rules are dataclasses of dataclasses
        if each.name in found:
            value, known = found[each.name], getattr(default, each.name)
            is_part = isinstance(value, Mapping)
            values[each.name] = _part(known, value) if is_part else tuple(value) if isinstance(value, list) else value
    return replace(default, **values)  # type: ignore[type-var]  # likewise
