"""Small pieces that every page is built from."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypeAlias

import orjson
from dash import dcc, html
from dash.development.base_component import Component

from gradcanary.display.verdict import Verdict
from gradcanary_dashboard.text.names import NOTHING_COMMON, Common

Children: TypeAlias = str | Component | Sequence[str | Component] | None

ICONS = {"quiet": "check", "waiting": "dots", "information": "info", "warning": "warning", "critical": "critical"}
FIGURE = "data-figure"
"""The attribute that holds a figure, as JSON: ``assets/js/figures.js`` draws it."""

NO_FIGURE = {"data": [], "layout": {"height": 200, "xaxis": {"visible": False}, "yaxis": {"visible": False}}}
"""What is drawn before there is an answer: Plotly's own axes would have numbers that nobody measured."""

_TINY = re.compile(r"(\d[\d.]*e-\d+)")

RUN_STATES = {
    "live": "pulse",
    "stale": "clock",
    "silent": "muted",
    "detached": "minus",
    "finished": "flag",
    "crashed": "critical",
}


def attributes(**named: str | None) -> dict[str, Any]:
    """Return ``aria_label="x"`` as the keyword argument ``aria-label`` that Dash wants."""
    return {name.replace("_", "-"): value for name, value in named.items()}


def icon(name: str) -> html.Span:
    """Return an icon of the style sheet; the word beside it carries the meaning."""
    return html.Span(className=f"icon icon-{name}", **attributes(aria_hidden="true"))


def badge(tone: str, word: str, *, is_solid: bool = False) -> html.Span:
    """Return a coloured label with icon and word; that of an alarm is solid."""
    return html.Span([icon(ICONS[tone]), word], className=f"badge tone-{tone}{' solid' if is_solid else ''}")


def severity_icon(severity: str) -> html.Span:
    """Return the icon of a severity, whose word is read out and on hover."""
    named = {"title": severity, "role": "img", **attributes(aria_label=severity)}
    return html.Span(className=f"icon icon-{ICONS[severity]} tone-{severity}", **named)


def run_state(state: str) -> html.Span:
    """Return live, stale, silent, detached, finished or crashed with its icon."""
    return html.Span([icon(RUN_STATES.get(state, "dots")), state], className=f"state state-{state}")


def moment(when: str | None, before: str = "") -> html.Span | str:
    """Return a time that the browser words as ``5 s ago``; the exact one is in the title."""
    if when is None:
        return ""
    return html.Span([before, html.Time(when, dateTime=when, title=when)])


def card(name: str, *children: str | Component, title: Children, aside: Children = None) -> html.Section:
    """Return a titled section; ``name`` is the prefix of its ids."""
    heading = html.H2(title, id=f"{name}-title")
    head = html.Div([heading, html.Div(aside, className="aside")] if aside is not None else heading, className="head")
    return html.Section(
        [head, html.Div(list(children))], className=f"card {name}", **attributes(aria_labelledby=f"{name}-title")
    )


def prose(text: str) -> Children:
    """Return text in which no number is parted at the end of a line: browsers break after the hyphen of 3e-5."""
    pieces = _TINY.split(text)
    if len(pieces) == 1:
        return text
    return [html.Span(piece, className="number") if place % 2 else piece for place, piece in enumerate(pieces)]


def code(text: str, shown: Children = None) -> html.Div:
    """Return a line or block of code with a button that copies ``text``."""
    button = html.Button(
        [icon("copy"), html.Span("Copy", className="word")],
        className="copy",
        type="button",
        **attributes(data_copy=text, aria_label="Copy to the clipboard"),
    )
    lines = html.Pre(html.Code(text if shown is None else shown), tabIndex=0)  # a long line scrolls, also by keys
    return html.Div([lines, button], className="code")


def explained(shown: Children, explanation: str) -> html.Span:
    """Return a word that is explained on hover, and below it while it has the focus: by key, or by a finger."""
    return html.Span(shown, title=explanation, tabIndex="0", className="explained")


def parameter(name: str, common: Common = NOTHING_COMMON) -> list[str | Component]:
    """Return the name of a parameter, whose lines end behind dots; what all share is copied and read out, not seen."""
    before, pieces, after = common.split(name)
    parts = [part for piece in pieces for part in (piece, html.Wbr())]
    return [*_shared(before), *parts, *_shared(after)]


def parameter_link(name: str, href: str, common: Common = NOTHING_COMMON) -> dcc.Link:
    """Return the link to the page of a parameter, with its full name on hover."""
    return dcc.Link(parameter(name, common), href=href, className="layer", title=name)


def _shared(text: str) -> list[str | Component]:
    return [html.Span(text, className="shared")] if text else []


def terminal(line: str) -> list[Component]:
    """Return a line for whoever is at a terminal, to copy."""
    return [html.P("Or from a terminal:", className="dim"), code(line)]


def crumbs(way: Sequence[tuple[str, str]], here: Children | None) -> html.Nav:
    """Return the way to this page: links, and where one is unless the title beside them says it."""
    steps = [part for words, href in way for part in (dcc.Link(words, href=href), _slash())]
    children = [*steps, *([html.Span(here, className="here")] if here is not None else [])]
    return html.Nav(children, className="crumbs", **attributes(aria_label="Breadcrumb"))


def verdict_below(said: Verdict, label: str) -> html.P:
    """Return the verdict below a name: a solid badge with the ``label``, and the sentence, read out when it changes."""
    solid = html.Span([icon(ICONS[said.tone]), label], className="badge solid")
    held = attributes(data_verdict=said.tone)
    return html.P([solid, _spoken(said)], className=f"verdict tone-{said.tone}", **held)


def _spoken(said: Verdict) -> html.Span:
    heard = html.Span(prose(said.text), **attributes(aria_live="polite"))
    return html.Span([heard, html.Span(prose(said.beside))] if said.beside else [heard])


def tile(name: Children, value: str, below: Children, bad: bool = False) -> html.Div:
    """Return a number with its name above and what it means below."""
    return html.Div(
        [
            html.Div(name, className="name"),
            html.Div(value, className="value bad" if bad else "value"),
            html.Div(below, className="below"),
        ],
        className="tile",
    )


def graph(
    name: str,
    figure: dict[str, Any] | None,
    words: str,
    *more: Component,
    zooms_back: bool = True,
    height: int | None = None,
) -> html.Figure:
    """Return a figure that says what it is to those who do not see it; ``zooms_back`` at a double click.

    ``more`` can be taken along beside its picture. Of one that is shown after it was hidden the ``height`` has to be
    given: Plotly fits it into what is around it then, and that would be nothing.
    """
    room = {} if height is None else {"height": height}
    written = orjson.dumps(figure or NO_FIGURE, option=orjson.OPT_NON_STR_KEYS).decode()
    held = attributes(data_figure=written, data_still=None if zooms_back else "1")
    drawn = html.Div(id=name, style=room, **held)
    saved = attributes(data_share="picture", aria_label=f"Save as a picture: {words}")
    save = html.Button(icon("save"), type="button", className="save", title="Save as PNG", **saved)
    return html.Figure(
        [drawn, html.Div([*more, save], className="saves")],
        className="plotted",
        tabIndex=0,
        **attributes(aria_label=words),
    )


def page_state(page: str, shown: str | None) -> html.Div:
    """Return what holds the version of all that the page shows; the browser asks with it each second for news."""
    return html.Div(id=f"{page}-page-state", className="page-state", hidden=True, **attributes(data_shown=shown))


def missing(title: str, text: Sequence[Any], way_out: tuple[str, str]) -> html.Div:
    """Return the page of something that the collector does not know."""
    words, href = way_out
    out = dcc.Link(words, href=href, className="do tone-main")
    return html.Div([html.H1(title), html.P(text), out], className="empty")


def _slash() -> html.Span:
    return html.Span("/", **attributes(aria_hidden="true"))


def first_run_link() -> Component:
    """Return the link that leads to these lines, for pages that have nothing to show before the first run."""
    return dcc.Link("How to start your first run", href="/")
