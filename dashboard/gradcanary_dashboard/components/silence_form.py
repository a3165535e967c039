"""Making, moving and ending silences: the forms, what a silence would hide, and what is sent for what was put in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from dash import dcc, html
from dash.development.base_component import Component

from gradcanary_dashboard.components import elements, forms
from gradcanary_dashboard.text import numbers

SPANS = {"1h": "1 hour", "8h": "8 hours", "1d": "1 day", "7d": "1 week", "own": "other"}
LAYERS = {"all": "all of it", "prefix": "names that begin with", "regex": "names with a regex"}
PREFIXES = 60
"""Beginnings that are offered."""

PREVIEWED = 5
"""Incidents that a preview names."""

HOW_LONG = "Say how long, such as 30m, 8h or 3d, or until when in UTC, as YYYY-MM-DD HH:MM."
_UNITS = {"m": "minutes", "h": "hours", "d": "days"}


def layers(names: Iterable[str], of: str = "silence", more: Mapping[str, Any] | None = None) -> list[Component]:
    """Return the choice of layers; ``names`` are some that there are, ``of`` is what the ids begin with.

    ``more`` are properties of the field.
    """
    offered = [html.Option(value=each) for each in prefixes(names)[:PREFIXES]]
    known = f"{of}-prefixes"
    words = forms.text(f"{of}-words", "Which", offers=known if offered else None, more=more)
    choice = _choice(f"{of}-layers", "Parameters", LAYERS, "all", words, kind="of-layers")
    return [choice, *([html.Datalist(offered, id=known)] if offered else [])]


def span(of: str = "silence") -> html.Div:
    """Return the choice of an end, from now on."""
    own = forms.text(f"{of}-own", "How long, or until when in UTC", placeholder="30m, 3d or YYYY-MM-DD HH:MM")
    return _choice(f"{of}-span", "For how long", SPANS, "8h", own, kind="of-span")


def preview(found: Mapping[str, Any]) -> list[Any]:
    """Return what a silence would hide now, as the collector answers it, and how many runs it is about."""
    hidden, runs = found["incidents"], found["runs"]
    named = f"Matches {numbers.plural(runs, 'run')}." if runs else "No run has such a name so far."
    if not hidden:
        return [html.P([named, " No open incident would be silenced right now."])]
    listed = [html.Li(_hidden(each)) for each in hidden[:PREVIEWED]]
    more = len(hidden) - PREVIEWED
    rest = [html.Li(f"and {numbers.integer(more)} more")] if more > 0 else []
    count = html.Strong(f"Would silence {numbers.plural(len(hidden), 'open incident')}")
    return [html.P([elements.icon("hush"), html.Span([count, f". {named}"])]), html.Ul([*listed, *rest])]


def _hidden(incident: Mapping[str, Any]) -> list[Any]:
    number = incident["id"]
    some = (
        ""
        if incident["members"] == incident["firing"]
        else f", {incident['members']} of {incident['firing']} parameters"
    )
    where = f" {incident['rule'].replace('_', ' ')} in {incident['run']}{some}"
    return [dcc.Link(f"#{number}", href=f"/incidents/{number}"), where]


def match(layers: str, words: str | None) -> str | None:
    """Return the expression for layers' names, None for all of them; raises ValueError in words."""
    text = (words or "").strip()
    if layers == "all":
        return None
    if not text:
        raise ValueError(f"Say which parameters: {LAYERS[layers]} what?")
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
    layers = f", parameters with {silence['match']}" if silence["match"] else ""
    return f"{rule} in {runs}{layers}"


def _told(silence: Mapping[str, Any]) -> list[Any]:
    others = ", ".join(f"#{number}" for number in silence["incidents"])
    by = f"by {silence['by']}" + (f": {silence['note']}" if silence["note"] else "")
    hides = [html.P(f"hides {others}", className="dim")] if len(silence["incidents"]) > 1 else []
    until = [elements.moment(silence["until"], "ends "), f", {by}"]
    return [html.P(covered(silence)), html.P(until, className="dim"), *hides]


def _end(silence: Mapping[str, Any]) -> html.Button:
    return forms.button("End now", {"do": "unsilence", "silence": int(silence["id"])}, icon="bell")


def _choice(name: str, words: str, options: Mapping[str, str], chosen: str, own: Component, *, kind: str) -> html.Div:
    """Return a choice; with some of its buttons ``own`` comes up."""
    return html.Div([forms.choice(name, words, options, chosen), own], className=f"chosen-from {kind}")


def _escaped(text: str) -> str:
    """Return a text as RE2 finds it, whatever is in it."""
    return re.sub(r"([^A-Za-z0-9_\x80-\U0010ffff])", r"\\\1", text)
