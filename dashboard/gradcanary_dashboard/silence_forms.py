"""Making a silence, and ending those of an incident: the forms, and what is sent for what was put in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from dash import dcc, html
from dash.development.base_component import Component

from gradcanary_dashboard import forms, wording

SPANS = {"1h": "1 hour", "8h": "8 hours", "1d": "1 day", "7d": "1 week", "own": "other"}
LAYERS = {"all": "all of it", "prefix": "names that begin with", "regex": "names with a regex"}
PREFIXES = 60
"""Beginnings that are offered."""

HOW_LONG = "Say how long, such as 30m, 8h or 3d, or until when in UTC, as YYYY-MM-DD HH:MM."
_UNITS = {"m": "minutes", "h": "hours", "d": "days"}


def fields(names: Iterable[str]) -> list[Component]:
    """Return which layers and until when; ``names`` are those of the incident's layers."""
    offered = [html.Option(value=each) for each in prefixes(names)[:PREFIXES]]
    words = dcc.Input(id="silence-words", type="text", list="silence-prefixes", autoComplete="off", spellCheck=False)
    own = dcc.Input(
        id="silence-own", type="text", placeholder="30m, 3d or YYYY-MM-DD HH:MM", autoComplete="off", spellCheck=False
    )
    return [
        _choice("silence-layers", "Layers", LAYERS, "all", forms.field("Which", words)),
        html.Datalist(offered, id="silence-prefixes"),
        _choice("silence-span", "For how long", SPANS, "8h", forms.field("How long, or until when in UTC", own)),
    ]


def match(layers: str, words: str | None) -> str | None:
    """Return the expression for layers' names, None for all of them; raises ValueError in words."""
    text = (words or "").strip()
    if layers == "all":
        return None
    if not text:
        raise ValueError(f"Say which layers: {LAYERS[layers]} what?")
    return f"^{_escaped(text)}" if layers == "prefix" else text


def until(span: str, own: str | None, now: datetime) -> str:
    """Return the moment at which a silence ends, RFC 3339; raises ValueError in words."""
    text = (own or "").strip() if span == "own" else span
    found = re.fullmatch(r"([0-9]{1,5})\s*([mhd])", text)
    if found is not None:
        return (now + timedelta(**{_UNITS[found[2]]: int(found[1])})).isoformat(timespec="seconds")
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(HOW_LONG) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).isoformat(timespec="seconds")


def prefixes(names: Iterable[str]) -> list[str]:
    """Return the beginnings up to the first number, ``blocks.4.``, in the order in which they come."""
    found = (re.match(r".*?[0-9]+\.", name) for name in names)
    return list(dict.fromkeys(each[0] for each in found if each is not None))


def ending(silences: Sequence[Mapping[str, Any]]) -> html.Ul:
    """Return the silences with a button each that ends it."""
    return html.Ul([html.Li([html.Div(_told(each)), _end(each)]) for each in silences], className="silences")


def covered(silence: Mapping[str, Any]) -> str:
    """Return ``collapse in sdxl-*, layers with lora_A``."""
    rule = (silence["rule"] or "every rule").replace("_", " ")
    runs = "every run" if silence["run"] == "*" else silence["run"]
    layers = f", layers with {silence['match']}" if silence["match"] else ""
    return f"{rule} in {runs}{layers}"


def _told(silence: Mapping[str, Any]) -> list[Any]:
    others = ", ".join(f"#{number}" for number in silence["incidents"])
    by = f"by {silence['by']}" + (f": {silence['note']}" if silence["note"] else "")
    hides = [html.P(f"hides {others}", className="dim")] if len(silence["incidents"]) > 1 else []
    until = f"until {wording.minute(silence['until'])} UTC, {by}"
    return [html.P(covered(silence)), html.P(until, className="dim"), *hides]


def _end(silence: Mapping[str, Any]) -> html.Button:
    return forms.button("End now", {"do": "unsilence", "silence": int(silence["id"])}, icon="bell")


def _choice(name: str, words: str, options: Mapping[str, str], chosen: str, own: Component) -> html.Div:
    """Return a choice; with some of its buttons ``own`` comes up."""
    return html.Div([forms.choice(name, words, options, chosen), own], className=f"chosen-from {name}")


def _escaped(text: str) -> str:
    """Return a text as RE2 finds it, whatever is in it."""
    return re.sub(r"([^A-Za-z0-9_\x80-\U0010ffff])", r"\\\1", text)
