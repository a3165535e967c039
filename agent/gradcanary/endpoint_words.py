"""Endpoints and what was sent to them as text for a terminal, from the collector's JSON. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gradcanary.incident_words import Json, minute, table

__all__ = ["listed", "log", "minute", "told_of"]

NOBODY = "Nobody is told of incidents: gradcanary endpoints add URL, or gradcanary up --webhook URL."


def listed(endpoints: Sequence[Json], width: int | None) -> str:
    """Return a table with a line per endpoint, and below it why some are disabled or fail."""
    if not endpoints:
        return NOBODY
    head = ("ID", "STATE", "SINCE (UTC)", "FROM", "TELLS", "LAST SUCCESS", "PENDING", "WHOM")
    rows = [
        (
            str(each["id"]),
            state(each),
            minute(each["since"]),
            "command line" if each["origin"] == "operator" else "api",
            each["min_severity"],
            "-" if each["last_success"] is None else minute(each["last_success"]),
            str(each["pending"]),
            told_of(each),
        )
        for each in endpoints
    ]
    return "\n".join([table(head, rows, width), *(line for each in endpoints for line in _trouble(each))])


def state(endpoint: Json) -> str:
    """Return ``enabled``, ``failing`` or ``disabled``."""
    return "failing" if endpoint["state"] == "enabled" and endpoint["failing_since"] else str(endpoint["state"])


def told_of(endpoint: Json) -> str:
    """Return who is told: a name, an address, or both."""
    return " ".join(part for part in (endpoint["name"], endpoint["url"]) if part) or endpoint["kind"]


def log(deliveries: Sequence[Json], width: int | None) -> str:
    """Return a table with a line per message."""
    if not deliveries:
        return "Nothing was sent to it so far."
    head = ("DELIVERY", "SEALED (UTC)", "RUN", "INCIDENT", "KIND", "STATE", "TRIES", "LAST ANSWER")
    rows = [
        (
            each["id"],
            minute(each["enqueued"]),
            each["run"],
            f"#{each['incident']}",
            each["kind"],
            each["state"],
            str(len(each["attempts"])),
            _answer(each),
        )
        for each in deliveries
    ]
    return table(head, rows, width)


def _trouble(endpoint: Json) -> list[str]:
    if endpoint["state"] == "disabled":
        return [f"{endpoint['id']} is disabled: {endpoint['reason']}."]
    if endpoint["failing_since"]:
        return [f"{endpoint['id']} fails since {minute(endpoint['failing_since'])} UTC: {endpoint['last_error']}."]
    return []


def _answer(delivery: Json) -> str:
    last = delivery["attempts"][-1] if delivery["attempts"] else None
    if last is None:
        return "-"
    return last["error"] or (f"{last['status']} after {last['ms']} ms" if last["status"] else f"after {last['ms']} ms")
