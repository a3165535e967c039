"""The state of a layer in one sentence; that of a run is ``gradcanary.display.verdict``. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gradcanary.display.verdict import Verdict
from gradcanary_dashboard.text import numbers


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


def _spoken(rule: str) -> str:
    return rule.replace("_", " ").capitalize()
