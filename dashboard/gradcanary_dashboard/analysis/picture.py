"""The picture of an incident: which steps, which stat, which parameters, and the levels to hold them against. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from gradcanary.display.rule_values import value_of
from gradcanary.display.verdict import METRIC, SEVERITIES
from gradcanary_dashboard.analysis import launches
from gradcanary_dashboard.analysis.arrays import decode
from gradcanary_dashboard.analysis.launches import Steps
from gradcanary_dashboard.text import numbers

AROUND = 100
"""Steps before and after the first sign, more where samples are rare."""

ENOUGH = 12
"""Samples on each side that show a course well."""

PARAMETERS = 5
MAX_STEP = 2**53

Member = Mapping[str, Any]

_ENDS = {METRIC: "not finite", "nonfinite": "not finite", "vanished": "no gradient"}
"""The end of a parameter without a last value."""

FEWEST = 4
"""A stat that was measured at fewer steps does not show when it changed."""


@dataclass(frozen=True)
class Curves:
    """The run, a stat of the worst parameters (None if it has no value there) and metrics, of the same steps.

    ``members`` are the worst series of an incident of metrics, None for another one.
    """

    run: Mapping[str, Any]
    series: Mapping[str, Any] | None
    metrics: Mapping[str, Any] | None
    members: Mapping[str, Any] | None = None


def stats(rule: str) -> list[str]:
    """Return the stats that show the incidents of a rule, the best one first."""
    return list(dict.fromkeys((value_of(rule).stat, "absmax")))


def steps(incident: Mapping[str, Any], run: Mapping[str, Any]) -> Steps:
    """Return the first and the last step: those around the first sign that the run has, with the opening."""
    since, known = int(incident["since_step"]), launches.launches(run)
    every = max((each.every for each in known if each.steps and each.steps[0] <= since <= each.steps[1]), default=1)
    certain = incident["opened_step"] - since
    margin = max(AROUND, ENOUGH * every, 2 * certain)
    if incident["rule"] == METRIC:  # evaluations are rare: as many steps as some of them took, else all
        margin = 2 * ENOUGH * certain or MAX_STEP
    first, last = launches.measured(known) or (0, since)
    return min(max(first, since - margin), since), max(min(last, since + margin), since)


def members(incident: Mapping[str, Any]) -> list[Member]:
    """Return the parameters of an incident, without the run as a whole."""
    return [member for member in incident["layers"] if member["layer"] is not None or member.get("metric")]


def noun(incident: Mapping[str, Any]) -> tuple[str, str]:
    """Return the singular and the plural of the members: parameters, or series of a metric."""
    return ("series", "series") if incident.get("rule") == METRIC else ("parameter", "parameters")


def tally(incident: Mapping[str, Any], many: int) -> str:
    """Return ``12 parameters`` or ``12 series``."""
    return f"{numbers.integer(many)} {noun(incident)[many != 1]}"


def worst(incident: Mapping[str, Any]) -> list[Member]:
    """Return the parameters that are worst, as in messages: firing before resolved, by severity, then by value."""
    sign = -1 if value_of(incident["rule"]).more_is_worse else 1
    ranked = sorted(
        members(incident),
        key=lambda each: (
            each["until_step"] is not None,
            -SEVERITIES.index(each["severity"]),
            _shift(each) if each.get("metric") else sign * (each["value"] or 0.0),
        ),
    )
    return ranked[:PARAMETERS]


def _shift(member: Member) -> float:
    """Return a number that is the smaller, the further a series of a metric is from its level."""
    level = member["baseline"] or 0.0
    return -math.inf if member["value"] is None else -abs(member["value"] - level) / (abs(level) or 1.0)


def is_of_absmax(rule: str) -> bool:
    """Return True if the values of members are as large as their baselines, and not a share or an error."""
    return value_of(rule).stat == "absmax"


def values(rule: str, member: Member) -> str:
    """Return what a parameter had: ``0.0038 → 1.6e-7``, ``7.2e-9, similar 1.9e-4``, ``8.9 % lost``."""
    value, baseline, siblings = (gradient(member, key) for key in ("value", "baseline", "siblings"))
    if not is_of_absmax(rule):
        if value is None:
            return ""
        share = value_of(rule).share
        return numbers.scientific(value) if share is None else f"{numbers.percent(value)} {share}"
    now = _ENDS.get(rule, "") if value is None else numbers.scientific(value)
    if baseline is not None and now:
        return f"{numbers.scientific(baseline)} → {now}"
    return f"{now}, similar {numbers.scientific(siblings)}" if now and siblings else now


def has_values(series: Mapping[str, Any], least: int = 1) -> bool:
    """Return True if a series or metric has values, finite or not, in so many buckets."""
    return bool(((decode(series["count"]) + decode(series["nonfinite"])) > 0).sum() >= least)


def level(known: Sequence[Member], key: str) -> float | None:
    """Return the median of a value of members, such as their baseline; None if none of them has it."""
    found = [value for member in known if (value := gradient(member, key)) is not None]
    return median(found) if found else None


def gradient(member: Member, key: str) -> float | None:
    """Return a value of a member; None of a sporadic one, whose numbers are counts of samples."""
    value: float | None = None if member.get("evidence") == "sporadic" else member[key]
    return value
