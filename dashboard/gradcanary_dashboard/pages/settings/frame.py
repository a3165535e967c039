"""What the pages of settings have in common: the way between them, and what a reader may."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dash import dcc, html
from dash.development.base_component import Component

from gradcanary_dashboard.components import elements, forms

SECTIONS = (
    ("Endpoints", "/settings"),
    ("Rules", "/settings/rules"),
    ("Silences", "/settings/silences"),
    ("Retention", "/settings/retention"),
    ("Tokens", "/settings/tokens"),
)

READ_ONLY = (
    "Your token may read. To change something here takes one of the scope admin: sign out, and in again with it."
)


def slots(page: str) -> dict[str, str]:
    """Return the slots that say what a reader may: the form of a page, and why it does not work."""
    return {f"{page}-may": "disabled", f"{page}-may-not": "children"}


def rights(page: str, *, may: bool) -> dict[str, Any]:
    """Return their contents."""
    return {f"{page}-may": not may, f"{page}-may-not": None if may else [elements.icon("info"), READ_ONLY]}


def head(here: str) -> list[Any]:
    """Return the heading and the way to the other sections."""
    return [html.H1("Settings"), html.Nav([_way(*each, here) for each in SECTIONS], className="sections", **_LABEL)]


def controls(page: str, contents: Mapping[str, Any], *children: Component) -> list[Any]:
    """Return what changes something, which takes a right; it stays while the page is open, whoever types in it."""
    may_not = html.P(contents.get(f"{page}-may-not"), id=f"{page}-may-not", className="may-not")
    return [
        may_not,
        html.Fieldset(list(children), id=f"{page}-may", disabled=contents.get(f"{page}-may", False), className="may"),
    ]


def leaving(page: str) -> dcc.Location:
    """Return what a button's answer leads to another page by: ``pathname`` of ``<page>-leaving``.

    Not the frame's own ``url``: Dash asks at once what a button does that it puts beside an output that was there
    before it, and the button is disabled until that is answered.
    """
    return dcc.Location(id=f"{page}-leaving", refresh="callback-nav")


def row(*children: Component) -> html.Div:
    """Return fields or buttons beside each other, below each other where it is narrow."""
    return html.Div(list(children), className="form-row")


def part(name: str, contents: Mapping[str, Any], child: Component, kind: str = "") -> html.Div:
    """Return a part of a page that a refresh shows or hides: its slot is ``hidden``."""
    return html.Div(child, id=name, hidden=contents.get(name, True), className=kind)


def facts(named: Sequence[tuple[str, elements.Children]]) -> html.Dl:
    """Return names with what they are; what is None is left out."""
    found = [html.Div([html.Dt(name), html.Dd(value)]) for name, value in named if value not in (None, "")]
    return html.Dl(found, className="facts-of")


def once(secret: str, words: str) -> list[Any]:
    """Return a secret that is shown this once, with a button that copies it."""
    return [*forms.done(words), elements.code(secret)]


def _way(words: str, href: str, here: str) -> Component:
    if words == here:
        return html.Span(words, **elements.attributes(aria_current="page"))
    return dcc.Link(words, href=href)


_LABEL = elements.attributes(aria_label="Sections of the settings")
