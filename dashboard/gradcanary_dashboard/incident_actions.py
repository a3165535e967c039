"""The buttons of an incident: each opens the dialog, which no refresh touches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dash import html

from gradcanary_dashboard import parts
from gradcanary_dashboard.verdict import is_unrecovered

ICONS = {"ack": "check", "silence": "hush", "unsilence": "bell"}


def actions(incident: Mapping[str, Any]) -> list[html.Div]:
    """Return what can be done about an incident now; nothing about one that is over."""
    if incident["state"] != "open" and not is_unrecovered(incident):
        return []
    words = {"ack": "Ack again" if incident["acked"] else "Ack", "silence": "Silence"}
    if incident["silenced"]:
        words["unsilence"] = "Unsilence"
    buttons = [_button(do, text, incident) for do, text in words.items()]
    return [html.Div(buttons, className="actions")]


def _button(do: str, words: str, incident: Mapping[str, Any]) -> html.Button:
    number = str(incident["id"])
    held = {"data-do": do, "data-incident": number, **parts.attributes(aria_label=f"{words} #{number}")}
    return html.Button([parts.icon(ICONS[do]), words], type="button", className="do", **held)
