"""Incidents and silences as text for a terminal, from the collector's JSON. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

Json = Mapping[str, Any]

SEVERITIES = ("information", "warning", "critical")
SHOWN_LAYERS = 20

RESOLUTIONS = {
    "recovered": "recovered",
    "run_finished": "run ended",
    "rule_changed": "rule changed",
    "layer_gone": "layer gone",
    "resumed": "resumed",
    "rebaselined": "new baseline",
}


def worst_first(incidents: Sequence[Json]) -> list[Json]:
    """Return the open ones before the others, then by severity, then the newest first."""

    def badness(each: Json) -> tuple[bool, int, int]:
        return each["state"] == "open", SEVERITIES.index(each["severity"]), each["id"]

    return sorted(incidents, key=badness, reverse=True)


def listed(incidents: Sequence[Json], width: int | None) -> str:
    """Return a table with a line per incident, wrapped at ``width`` characters, and how many there are."""
    if not incidents:
        return "No incidents."
    head = ("ID", "SEVERITY", "STATE", "RUN", "RULE", "LAYERS", "OPENED (UTC)", "WHAT")
    rows = [
        (
            str(each["id"]),
            each["severity"],
            state(each),
            each["run"],
            each["rule"],
            layers(each),
            minute(each["opened"]),
            each["summary"],
        )
        for each in incidents
    ]
    return f"{table(head, rows, width)}\n\n{_counted(incidents)} One of them in full: gradcanary incidents ID"


def _counted(incidents: Sequence[Json]) -> str:
    opened = sum(each["state"] == "open" for each in incidents)
    ended = sum(each["resolution"] == "run_finished" for each in incidents)
    by_end = f", {ended} over with {'its' if ended == 1 else 'their'} run" if ended else ""
    return f"{opened} open, {len(incidents) - opened - ended} resolved{by_end}."


def state(incident: Json) -> str:
    """Return ``open``, ``open, acked``, ``open, silenced``, or how it ended."""
    if incident["state"] != "open":
        return RESOLUTIONS.get(incident["resolution"], incident["resolution"] or "resolved")
    silenced = incident.get("silenced")
    marks = ["acked"] if incident["acked"] else []
    if silenced:
        marks.append("silenced" if silenced["members"] == silenced["firing"] else "partly silenced")
    return ", ".join(["open", *marks])


def over(incident: Json) -> str:
    """Return what to know who silences an incident that is over, empty of one that is open."""
    if incident["state"] == "open":
        return ""
    return f" #{incident['id']} is over ({state(incident)}): this holds for what its rule finds from now on."


def layers(incident: Json) -> str:
    """Return ``18/300``: layers that fire, of one that is over those that ever did, and all of the run; ``all`` where
    it is about none of them."""
    counts = incident["counts"]
    if not counts["ever"]:
        return "all"
    return f"{counts['firing' if incident['state'] == 'open' else 'ever']}/{counts['layers']}"


def told(incident: Json) -> str:
    """Return everything about one incident: what, since when, who knows, why probably, what to do."""
    cause, fix = incident["likely_cause"], incident["fix"]
    lines = [
        f"#{incident['id']} {incident['rule']} in {incident['run']}: {incident['severity']}, {state(incident)}",
        incident["summary"],
        _when(incident),
        *_marks(incident),
        "",
        f"Likely cause: {cause['text']}",
        *(f"  - {text}" for text in cause["evidence"]),
        "",
        f"Fix{' (' + fix['framework'] + ')' if fix['framework'] else ''}: {fix['text']}",
        *(f"    {line}" for line in fix["code"].splitlines()),
        *_members([each for each in incident["layers"] if each["layer"] is not None]),
        *_deliveries(incident["deliveries"]),
        "",
        incident["url"],
    ]
    return "\n".join(lines)


def silences(found: Sequence[Json], width: int | None) -> str:
    """Return a table of silences."""
    if not found:
        return "No silences: what is due is told."
    head = ("ID", "RUN", "RULE", "LAYERS", "UNTIL (UTC)", "BY", "HIDES", "NOTE")
    rows = [
        (
            str(each["id"]),
            each["run"],
            each["rule"] or "all",
            each["match"] or "all",
            minute(each["until"]),
            each["by"],
            hides(each) or "-",
            " ".join(each["note"].split()),
        )
        for each in found
    ]
    return table(head, rows, width)


def hides(silence: Json) -> str:
    """Return ``#31, #32``: the open incidents that a silence is about."""
    return ", ".join(f"#{number}" for number in silence["incidents"])


def table(head: Sequence[str], rows: Sequence[Sequence[str]], width: int | None) -> str:
    """Return columns as wide as their widest entry; longer lines than ``width`` go on below, None = no line does."""
    wide = [max(len(row[place]) for row in (head, *rows)) for place in range(len(head))]
    lines = (
        "  ".join(text.ljust(size) for text, size in zip(row, wide, strict=True)).rstrip() for row in (head, *rows)
    )
    return "\n".join(wrapped(line, width, "    ") for line in lines)


def wrapped(text: str, width: int | None, indent: str = "") -> str:
    """Return lines of at most ``width`` characters, None = as they are; what goes on below is indented further.

    A line with an address keeps its words whole: a broken address opens nothing.
    """
    if width is None:
        return text
    lines = []
    for line in text.split("\n"):
        lead = line[: len(line) - len(line.lstrip())]
        below = indent or (lead + "  " if lead else "")
        wrapper = textwrap.TextWrapper(width, subsequent_indent=below[: width // 2], break_on_hyphens=False)
        wrapper.break_long_words = "://" not in line
        lines += wrapper.wrap(line) if len(line) > width else [line]
    return "\n".join(lines)


def minute(moment: str) -> str:
    """Return a time of the API, RFC 3339 in UTC, to the minute."""
    return moment[:16].replace("T", " ")


def _when(incident: Json) -> str:
    said = f"Opened {minute(incident['opened'])} UTC at step {incident['opened_step']:,}"
    if incident["reopened"]:
        said += f", reopened {incident['reopened']} times" if incident["reopened"] > 1 else ", reopened once"
    if incident["resolved_step"] is not None:
        said += f"; over at step {incident['resolved_step']:,}"
    return f"{said}."


def _marks(incident: Json) -> list[str]:
    ack, silenced = incident["acked"], incident.get("silenced")
    lines = []
    if ack:
        note = " ".join(ack["note"].split())
        lines.append(f"Acked by {ack['by']}, {minute(ack['at'])} UTC{': ' + note if note else '.'}")
    if silenced:
        part = (
            ""
            if silenced["members"] == silenced["firing"]
            else f", {silenced['members']} of {silenced['firing']} layers"
        )
        lines.append(f"Silenced until {minute(silenced['until'])} UTC{part}.")
    return lines


def _members(members: Sequence[Json]) -> list[str]:
    if not members:
        return []
    rows = [
        (each["name"], _number(each["baseline"]), _number(each["value"]), _span(each))
        for each in members[:SHOWN_LAYERS]
    ]
    more = len(members) - len(rows)
    shown = table(("LAYER", "BASELINE", "VALUE", "STEPS"), rows, None)
    return ["", shown, *([f"and {more} more"] if more else [])]


def _span(member: Json) -> str:
    until = member["until_step"]
    return f"since {member['since_step']:,}" if until is None else f"{member['since_step']:,} to {until:,}"


def _deliveries(deliveries: Sequence[Json]) -> list[str]:
    latest = {each["endpoint"]: each for each in deliveries}
    lines = []
    for each in latest.values():
        trouble = next((tried["error"] for tried in reversed(each["attempts"]) if tried["error"]), None)
        why = f" ({trouble})" if trouble and each["state"] != "delivered" else ""
        whom = f" ({each['name']})" if each["name"] else ""
        lines.append(f"Endpoint {each['endpoint']}{whom}: {each['kind']} {each['state']}{why}")
    return ["", *(lines or ["Nobody was told of it so far."])]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g}"
