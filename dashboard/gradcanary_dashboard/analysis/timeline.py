"""The timeline of an incident: its changes, and every message with every attempt. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gradcanary_dashboard.analysis import picture
from gradcanary_dashboard.text import deliveries, numbers

SHOWN = 60
"""Entries of a page: the first, and the newest."""


@dataclass(frozen=True)
class Entry:
    """An event with its time as in the API; None if only its step is known."""

    at: str | None
    icon: str
    words: str
    tone: str = "plain"
    attempts: Sequence[Mapping[str, Any]] = field(default_factory=tuple)


def entries(incident: Mapping[str, Any]) -> list[Entry]:
    """Return the events in order."""
    opened, *others = _dated(incident)
    return [opened, *_growth(incident), *sorted(others, key=lambda entry: entry.at or "")]


def shortened(story: Sequence[Entry]) -> tuple[list[Entry], int]:
    """Return the entries that a page shows, and the number of those left out after the first ones."""
    if len(story) <= SHOWN:
        return list(story), 0
    return [story[0], *story[-SHOWN + 1 :]], len(story) - SHOWN


def _dated(incident: Mapping[str, Any]) -> Iterator[Entry]:
    tone = incident["severity"]
    opened, since = (numbers.integer(incident[key]) for key in ("opened_step", "since_step"))
    sure = f"Opened at step {opened}" + ("" if opened == since else f"; the first sign was step {since}")
    yield Entry(incident["opened"], "pulse", sure, tone)
    if incident["reopened_at"]:
        times = incident["reopened"]
        again = "Opened again" + (f", for the {_ordinal(times)} time" if times > 1 else "")
        yield Entry(incident["reopened_at"], "pulse", again, tone)
    ack = incident["acked"]
    if ack:
        yield Entry(ack["at"], "check", f"Acked by {ack['by']}" + (f": {ack['note']}" if ack["note"] else ""))
    if incident["resolved"]:
        yield Entry(incident["resolved"], "check", _over(incident), "quiet")
    for delivery in incident["deliveries"]:
        yield _message(delivery)


def _growth(incident: Mapping[str, Any]) -> list[Entry]:
    """Return the entry for layers that joined after the opening."""
    later = [each["since_step"] for each in incident["layers"] if each["since_step"] > incident["opened_step"]]
    if not later:
        return []
    steps = numbers.steps(min(later), max(later)).lower()
    return [Entry(None, "trend", f"Grew by {picture.tally(incident, len(later))}, since {steps}")]


def _over(incident: Mapping[str, Any]) -> str:
    how = numbers.RESOLUTIONS.get(incident["resolution"], incident["resolution"] or "resolved")
    return f"{incident['state'].capitalize()} at step {numbers.integer(incident['resolved_step'])}: {how}"


def _message(delivery: Mapping[str, Any]) -> Entry:
    tone = "plain" if delivery["state"] in ("delivered", "pending") else "warning"
    words = f"{deliveries.whom(delivery)}: {deliveries.message(delivery)}"
    return Entry(delivery["enqueued"], "send", words, tone, delivery["attempts"])


def _ordinal(number: int) -> str:
    ending = "th" if 10 < number % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{numbers.integer(number)}{ending}"
