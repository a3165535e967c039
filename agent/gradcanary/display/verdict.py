"""The state of a run in one sentence, the same in a notebook as on its page. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gradcanary.wording import count, low

SEVERITIES = ("information", "warning", "critical")
"""The least first."""

ABSENCE_RULES = ("silent", "stalled")
"""Rules about missing requests or steps: the end of the run resolves them."""

PROCESS_RULES = (*ABSENCE_RULES, "crash")
"""Rules about the process, not about layers: what they report comes last in a headline."""

METRIC = "metric"
"""The rule whose members are series of metrics."""

NO_STEP = (
    "The training finished, and no optimizer step was seen: "
    "call optimizer.step(), or gradcanary.step() after each update"
)

LABELS = {"critical": "incident", "warning": "crashed", "information": "no step", "quiet": "OK", "waiting": "waiting"}
"""The label of a verdict without an incident, by its tone."""


@dataclass(frozen=True)
class Verdict:
    """A sentence and its tone: critical, warning, information, quiet or waiting.

    ``beside`` follows it with numbers that change with each step.
    """

    tone: str
    text: str
    beside: str = ""


def verdict(run: Mapping[str, Any]) -> Verdict:
    """Return the verdict on a run: its most important state.

    An open incident comes first; then one that the end of the run closed, as that is not a recovery; else the run is
    quiet. A crash is always included, and comes before incidents of severity information.
    """
    if run["open_incidents"]:
        text = run["headline"] or count(len(run["open_incidents"]), "open incident")
        return Verdict(run["worst"] or "information", _begun(run, text))
    if run["severity_at_end"] is not None:
        return _ended(run)
    if run["state"] == "crashed":
        return Verdict("warning", _crash(run))
    if run["state"] == "finished" and run["step"] is None:
        return Verdict("information", NO_STEP)
    if not run["layers"] or run["step"] is None:
        return Verdict("waiting", "Waiting for the first step")
    small = low(run["below_threshold"], "; ")
    return Verdict("quiet", f"No open incident in {count(run['layers'], 'parameter')}{small}")


def _ended(run: Mapping[str, Any]) -> Verdict:
    """Return the verdict on a run that ended on an incident."""
    text = run["headline"] or "ended on an incident"
    if run["state"] != "crashed" or "crash" in run["firing"]:  # its incident has the headline
        return Verdict(run["severity_at_end"], _begun(run, text))
    if run["severity_at_end"] == "information":
        return Verdict("warning", f"{_crash(run)}; {text}")
    crash = _crash(run)
    return Verdict(run["severity_at_end"], f"{_begun(run, text)}; {crash[0].lower()}{crash[1:]}")


def _begun(run: Mapping[str, Any], text: str) -> str:
    """Return a headline as a sentence begins; the name of a metric is as it is."""
    worst = run.get("worst_incident")
    return text if worst and worst["rule"] == METRIC else text[0].upper() + text[1:]


def _crash(run: Mapping[str, Any]) -> str:
    where = "" if run["step"] is None else f" at step {run['step']:,}"
    return f"The training crashed{where}"


def is_unrecovered(incident: Mapping[str, Any]) -> bool:
    """Return True if a run ended on an incident."""
    return bool(incident["state"] == "ended")


def worst_standing(incidents: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the incident of a run's verdict: the worst open one, else the worst that the run ended on."""
    known = list(incidents)
    standing = [each for each in known if each["state"] == "open"] or list(filter(is_unrecovered, known))
    return max(standing, key=_order_of_headline, default=None)


def label(said: Verdict, incidents: Iterable[Mapping[str, Any]]) -> str:
    """Return the label of a run's verdict: ``collapse · 8 of 48``, ``crash``, ``OK``."""
    worst = worst_standing(incidents)
    if worst is None or worst["severity"] != said.tone:
        return LABELS[said.tone]
    rule, counts = worst["rule"].replace("_", " "), worst["counts"]
    if not counts["firing"]:
        return str(rule)
    return f"{rule} · {counts['firing']:,} of {counts['layers']:,}"


def _order_of_headline(incident: Mapping[str, Any]) -> tuple[int, bool, bool, int]:
    """Return the place of an incident in the order of the collector's headline."""
    is_late = incident["rule"] in PROCESS_RULES
    rank = SEVERITIES.index(incident["severity"])
    return rank, not is_late, not incident.get("acked"), -int(incident["id"])
