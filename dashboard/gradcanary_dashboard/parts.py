"""Small pieces that every page is built from."""

from __future__ import annotations

from typing import Any

from dash import html

ICONS = {"quiet": "check", "waiting": "dots", "information": "info", "warning": "warning", "critical": "critical"}
RUN_STATES = {"live": "pulse", "stale": "dots", "silent": "warning", "finished": "check", "crashed": "critical"}


def icon(name: str) -> html.Span:
    """Return an icon of the style sheet; the word beside it carries the meaning."""
    return html.Span(className=f"icon icon-{name}", **{"aria-hidden": "true"})


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


def card(name: str, *children: Any, title: Any, aside: Any = None, slot: str | None = None) -> html.Section:
    """Return a titled section; ``name`` is the prefix of its ids."""
    heading = html.H2(title, id=f"{name}-title")
    head = html.Div([heading, html.Div(aside, className="aside")] if aside is not None else heading, className="head")
    body = html.Div(list(children), **({"id": slot} if slot else {}))
    return html.Section([head, body], className=f"card {name}", **{"aria-labelledby": f"{name}-title"})


def code(text: str, shown: Any = None) -> html.Div:
    """Return a line or block of code with a button that copies ``text``."""
    button = html.Button(
        [icon("copy"), html.Span("Copy", className="word")],
        className="copy",
        type="button",
        **{"data-copy": text, "aria-label": "Copy to the clipboard"},
    )
    return html.Div([html.Pre(html.Code(text if shown is None else shown)), button], className="code")
