"""Meanings of the rules, and when each fires, in words with the numbers in force.

The texts are in ``descriptions.yaml``. ``GET /rules`` and docs/reference/rules.md have them, so that both agree with
the rules.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from importlib.resources import files
from typing import Any

import yaml
from typing_extensions import TypedDict

from gradcanary import wording
from gradcanary_server.rules.config import NAMES, Rules, Section
from gradcanary_server.rules.types import Severity


class RuleCase(TypedDict):
    """When a rule fires, and its severity then."""

    when: str
    severity: Severity


class RuleDescription(TypedDict):
    """One sentence about a rule, and its cases with the numbers in force."""

    means: str
    cases: list[RuleCase]


_TEXTS: dict[str, dict[str, Any]] = yaml.safe_load(files(__package__).joinpath("descriptions.yaml").read_text("utf-8"))


def describe(rules: Rules) -> dict[str, RuleDescription]:
    """Return the description of each rule, by name."""
    return {name: {"means": _TEXTS[name]["means"], "cases": list(_cases(name, rules))} for name in NAMES}


def _cases(name: str, rules: Rules) -> Iterator[RuleCase]:
    words = _words(rules.section(name, None))
    for case in _TEXTS[name]["cases"]:
        # Some cases need a kind of evidence, or a number that may be off.
        if case.get("evidence") in (None, *rules.collapse.evidence) and case.get("needs") in (None, *words):
            yield {"when": case["when"].format_map(words), "severity": case["severity"]}


def _words(section: Section) -> dict[str, str]:
    """Return the numbers of a rule in words, decades with their unit.

    Each is there as ``<key>_percent``, too, and ``<key>_s`` as ``<key>_minutes``.
    """
    words: dict[str, str] = {}
    for each in fields(section):
        value = getattr(section, each.name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            unit = f" decade{'' if value == 1 else 's'}" if each.name.endswith("decades") else ""
            words[each.name] = wording.number(value) + unit
            words[f"{each.name}_percent"] = wording.percent(value).replace(".0 %", " %")
            words[f"{each.name.removesuffix('_s')}_minutes"] = wording.number(value / 60)
    return words
