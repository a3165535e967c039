"""Small pieces that every page is built from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from dash import html
from dash.development.base_component import Component

Children: TypeAlias = str | Component | Sequence[str | Component] | None

ICONS = {"quiet": "check", "waiting": "dots", "information": "info", "warning": "warning", "critical": "critical"}
RUN_STATES = {"live": "pulse", "stale": "dots", "silent": "warning", "finished": "check", "crashed": "critical"}


def attributes(**named: str | None) -> dict[str, Any]:
    """Return ``aria_label="x"`` as the keyword argument ``aria-label`` that Dash wants."""
    return {name.replace("_", "-"): value for name, value in named.items()}


def icon(name: str) -> html.Span:
    """Return an icon of the style sheet; the word beside it carries the meaning."""
    return html.Span(className=f"icon icon-{name}", **attributes(aria_hidden="true"))


def badge(tone: str, word: str) -> html.Span:
    """Return a coloured label with icon and word."""
    return html.Span([icon(ICONS[tone]), word], className=f"badge tone-{tone}")


def run_state(state: str) -> html.Span:
    """Return live, stale, silent, finished or crashed with its icon."""
    return html.Span([icon(RUN_STATES.get(state, "dots")), state], className=f"state state-{state}")


def moment(when: str | None, before: str = "") -> html.Span | str:
    """Return a time that the browser words as ``5 s ago``; the exact one is in the title."""
    if when is None:
        return ""
    return html.Span([before, html.Time(when, dateTime=when, title=when)])


def card(
    name: str, *children: str | Component, title: Children, aside: Children = None, slot: str | None = None
) -> html.Section:
    """Return a titled section; ``name`` is the prefix of its ids."""
    heading = html.H2(title, id=f"{name}-title")
    head = html.Div([heading, html.Div(aside, className="aside")] if aside is not None else heading, className="head")
    body = html.Div(list(children), id=slot) if slot else html.Div(list(children))
    return html.Section([head, body], className=f"card {name}", **attributes(aria_labelledby=f"{name}-title"))


def code(text: str, shown: Children = None) -> html.Div:
    """Return a line or block of code with a button that copies ``text``."""
    button = html.Button(
        [icon("copy"), html.Span("Copy", className="word")],
        className="copy",
        type="button",
        **attributes(data_copy=text, aria_label="Copy to the clipboard"),
    )
    return html.Div([html.Pre(html.Code(text if shown is None else shown)), button], className="code")
