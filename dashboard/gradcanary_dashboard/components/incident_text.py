"""What is said of an incident, the same on every page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dash import html

from gradcanary_dashboard.components import elements
from gradcanary_dashboard.text import numbers
from gradcanary_dashboard.text.deliveries import message, whom


def outcome(incident: Mapping[str, Any]) -> list[Any]:
    """Return ``open``, or how it ended, with an icon."""
    if incident["state"] == "open":
        return [elements.icon("pulse"), "open"]
    resolution = incident["resolution"]
    return [elements.icon("check"), numbers.RESOLUTIONS.get(resolution, resolution or "resolved")]


def frames(incident: Mapping[str, Any]) -> list[Any]:
    """Return the frames of the exception that ended the training, as a block of code."""
    crash = incident.get("crash")
    return [elements.code("\n".join(crash["frames"]))] if crash and crash["frames"] else []


def quiet(incident: Mapping[str, Any]) -> list[Any]:
    """Return who knows of an incident, and until when nobody is told of it."""
    ack, silenced = incident["acked"], incident["silenced"]
    found: list[Any] = []
    if ack:
        words = f"acked by {ack['by']}" + (f": {ack['note']}" if ack["note"] else "")
        said = html.Span([f"{words}, ", elements.moment(ack["at"])])
        found.append(html.Span([elements.icon("check"), said], className="knows"))
    if silenced:
        some = (
            ""
            if silenced["members"] == silenced["firing"]
            else f"{silenced['members']} of {silenced['firing']} layers "
        )
        said = html.Span([f"{some}silenced, ends ", elements.moment(silenced["until"])])
        found.append(html.Span([elements.icon("hush"), said], className="knows"))
    return found


def told(incident: Mapping[str, Any]) -> html.Span:
    """Return what whom was told last."""
    heard: dict[str, list[str]] = {}
    for each in incident["last_deliveries"]:
        heard.setdefault(message(each), []).append(whom(each))
    said = "; ".join(f"{', '.join(names)}: {words}" for words, names in heard.items())
    return html.Span([elements.icon("send"), said or "nobody was told"], className="knows")
