"""The state of a run in one sentence; no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gradcanary_dashboard import wording

SEVERITIES = ("information", "warning", "critical")


@dataclass(frozen=True)
class Verdict:
    """A sentence and its tone: critical, warning, information, quiet or waiting."""

    tone: str
    text: str


def verdict(run: Mapping[str, Any], incidents: Iterable[Mapping[str, Any]]) -> Verdict:
    """Return what a person should know first about a run.

    An open incident speaks first; then one that the run's end closed, for that is no recovery; else the run is quiet.
    """
    if run["open_incidents"]:
        text = run["headline"] or wording.plural(len(run["open_incidents"]), "open incident")
        return Verdict(run["worst"] or "information", text[0].upper() + text[1:])
    unrecovered = [incident for incident in incidents if incident["resolution"] == "run_finished"]
    if unrecovered:
        worst = max(unrecovered, key=lambda incident: SEVERITIES.index(incident["severity"]))
        return Verdict(worst["severity"], worst["summary"])
    if not run["layers"] or run["step"] is None:
        return Verdict("waiting", "Waiting for the first step")
    low = f", {wording.integer(run['low'])} of them low" if run["low"] else ""
    return Verdict("quiet", f"No open incident in {wording.plural(run['layers'], 'layer')}{low}")


def firing(run: Mapping[str, Any]) -> int:
    """Return how many layers fire, by the rule with most of them."""
    return max(run["firing"].values(), default=0)
