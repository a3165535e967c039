"""What is said of an incident, the same on every page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from dash import html

from gradcanary_dashboard import parts, wording

WHY = {"expired": "not delivered in time", "disabled": "its endpoint was disabled"}
"""Why a message in such a state did not arrive; the states are those of the API and of the command line."""


def outcome(incident: Mapping[str, Any]) -> list[Any]:
    """Return ``open``, or how it ended, with an icon."""
    if incident["state"] == "open":
        return [parts.icon("pulse"), "open"]
    resolution = incident["resolution"]
    return [parts.icon("check"), wording.RESOLUTIONS.get(resolution, resolution or "resolved")]


def quiet(incident: Mapping[str, Any]) -> list[Any]:
    """Return who knows of an incident, and until when nobody is told of it."""
    ack, silenced = incident["acked"], incident["silenced"]
    found: list[Any] = []
    if ack:
        words = f"acked by {ack['by']}" + (f": {ack['note']}" if ack["note"] else "")
        said = html.Span([f"{words}, ", parts.moment(ack["at"])])
        found.append(html.Span([parts.icon("check"), said], className="knows"))
    if silenced:
        some = (
            ""
            if silenced["members"] == silenced["firing"]
            else f"{silenced['members']} of {silenced['firing']} layers "
        )
        said = html.Span([f"{some}silenced, ends ", parts.moment(silenced["until"])])
        found.append(html.Span([parts.icon("hush"), said], className="knows"))
    return found


def told(incident: Mapping[str, Any]) -> html.Span:
    """Return what whom was told last."""
    heard: dict[str, list[str]] = {}
    for each in incident["last_deliveries"]:
        heard.setdefault(message(each), []).append(whom(each))
    said = "; ".join(f"{', '.join(names)}: {words}" for words, names in heard.items())
    return html.Span([parts.icon("send"), said or "nobody was told"], className="knows")


def whom(told: Mapping[str, Any]) -> str:
    """Return the name of an endpoint, or its host."""
    name = str(told["name"])
    return urlsplit(name).netloc or name if "://" in name else name or "webhook"


def message(told: Mapping[str, Any]) -> str:
    """Return what a message said and what became of it: ``opened, delivered``."""
    return f"{told['kind']}, {fate(told['state'])}"


def fate(state: str) -> str:
    """Return what became of a message: ``delivered``, ``pending``, ``expired: not delivered in time``."""
    return f"{state}: {WHY[state]}" if state in WHY else state
