"""The state of a run or a layer in one sentence. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gradcanary_dashboard.analysis import severity
from gradcanary_dashboard.analysis.picture import METRIC
from gradcanary_dashboard.text import numbers

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
        text = run["headline"] or numbers.plural(len(run["open_incidents"]), "open incident")
        return Verdict(run["worst"] or "information", _begun(run, text))
    if run["severity_at_end"] is not None:
        return _ended(run)
    if run["state"] == "crashed":
        return Verdict("warning", _crash(run))
    if run["state"] == "finished" and run["step"] is None:
        return Verdict("information", NO_STEP)
    if not run["layers"] or run["step"] is None:
        return Verdict("waiting", "Waiting for the first step")
    low = numbers.low(run["below_threshold"], "; ")
    return Verdict("quiet", f"No open incident in {numbers.plural(run['layers'], 'parameter')}{low}")


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
    where = "" if run["step"] is None else f" at step {numbers.integer(run['step'])}"
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
    return f"{rule} · {numbers.integer(counts['firing'])} of {numbers.integer(counts['layers'])}"


def firing(run: Mapping[str, Any]) -> int:
    """Return the number of firing layers of the rule with most of them."""
    return max(run["firing"].values(), default=0)


def of_layer(layer: Mapping[str, Any], incidents: Iterable[Mapping[str, Any]], *, has_ended: bool = False) -> Verdict:
    """Return the verdict on a layer; ``has_ended`` is True after the end of its run.

    A firing rule comes first, then a suspect, a non-finite value, and a low one.
    """
    states = layer["rules"]
    fires = [rule for rule, state in states.items() if state in ("firing", "recovering")]
    if fires:
        return _fired(fires[0], "ended" if has_ended else states[fires[0]], layer, incidents)
    suspects = [rule for rule, state in states.items() if state == "suspect"]
    if suspects:
        return Verdict("warning", f"{_spoken(suspects[0])} is suspected, and not yet sure")
    if layer["step"] is None and has_ended:
        return Verdict("information", "Nothing was measured of this parameter")
    if layer["step"] is None:
        return Verdict("waiting", "Nothing has been measured of this parameter yet")
    if layer["state"] == "nonfinite":
        return Verdict("warning", f"Its gradient is not finite at step {numbers.integer(layer['step'])}")
    if layer["below_threshold"]:
        return Verdict("information", "Its gradient is low; nothing shows that it fell")
    return Verdict("quiet", "No rule fires for this parameter")


def _fired(rule: str, state: str, layer: Mapping[str, Any], incidents: Iterable[Mapping[str, Any]]) -> Verdict:
    """Return ``Collapse since step 728: from 9.9e-4 to 2.2e-7``, with the numbers of the newest incident.

    ``state`` is firing, recovering, or ended with the run.
    """
    newest = next((incident for incident in incidents if incident["rule"] == rule), None)
    members = newest.get("layers", ()) if newest else ()
    member: Mapping[str, Any] = next((member for member in members if member["layer"] == layer["layer"]), {})
    since = "" if member.get("since_step") is None else f" since step {numbers.integer(member['since_step'])}"
    before, now = member.get("baseline"), layer["absmax"]
    known = before is not None and now is not None and rule == "collapse"
    fell = f": from {numbers.scientific(before)} to {numbers.scientific(now)}" if known else ""
    outcome = {"recovering": ", recovering", "ended": ", not recovered at the end"}.get(state, "")
    return Verdict(newest["severity"] if newest else "critical", f"{_spoken(rule)}{since}{outcome}", fell)


def _order_of_headline(incident: Mapping[str, Any]) -> tuple[int, bool, bool, int]:
    """Return the place of an incident in the order of the collector's headline."""
    is_late = incident["rule"] in severity.PROCESS_RULES
    rank = severity.SEVERITIES.index(incident["severity"])
    return rank, not is_late, not incident.get("acked"), -int(incident["id"])


def _spoken(rule: str) -> str:
    return rule.replace("_", " ").capitalize()
