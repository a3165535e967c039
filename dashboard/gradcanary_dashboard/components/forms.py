"""What people change something with: fields, buttons, a second question before something is gone, and the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from dash import dcc, html
from dash.development.base_component import Component

from gradcanary_dashboard.components import elements

Id: TypeAlias = str | dict[str, str | int]
"""Of one element, or of one of many: ``{"do": "ack", "incident": 31}`` (Dash's pattern-matching callbacks)."""

AFTER_A_PAUSE: Mapping[str, Any] = {"debounce": 0.3}
"""A property of a text field whose value the collector answers as one types."""


def field(words: str, control: Component, hint: elements.Children = None) -> html.Label:
    """Return a control with its name above and, below, what may be put in."""
    below = [] if hint is None else [html.Span(hint, className="hint")]
    return html.Label([html.Span(words, className="name"), control, *below], className="form-field")


def text(
    name: str,
    words: str,
    hint: elements.Children = None,
    *,
    value: str = "",
    placeholder: str = "",
    offers: str | None = None,
    more: Mapping[str, Any] | None = None,
) -> html.Label:
    """Return a field for one line; ``offers`` is the id of a list of suggestions, ``more`` are properties of Dash's."""
    given = {"value": value, "placeholder": placeholder, "list": offers, **(more or {})}
    return field(words, dcc.Input(id=name, type="text", spellCheck=False, **given), hint)


def form(*children: Component, name: str | None = None) -> html.Form:
    """Return fields with the button that sends them: the browser clicks it at Enter (``assets/js/forms.js``)."""
    named: dict[str, Any] = {} if name is None else {"id": name}
    return html.Form(list(children), className="form", **named)


def button(words: str, name: Id, *, icon: str | None = None, tone: str = "plain", sends: bool = False) -> html.Button:
    """Return a button; ``tone`` is plain, main or danger. One that ``sends`` is the button of the form around it."""
    shown: list[Any] = [*([] if icon is None else [elements.icon(icon)]), words]
    return html.Button(shown, id=name, type="submit" if sends else "button", className=f"do tone-{tone}")


def choice(name: str, words: str, options: Mapping[str, str], chosen: str | None) -> html.Fieldset:
    """Return buttons of which one is pressed, a word for each value; ``data`` of ``name`` is the value.

    Dash's own radio buttons are options of no list to those who do not see them.
    """
    buttons = [
        html.Button(
            word,
            type="button",
            **elements.attributes(data_of=name, data_value=value, aria_pressed=str(value == chosen).lower()),
        )
        for value, word in options.items()
    ]
    return html.Fieldset(
        [html.Legend(words), html.Div(buttons, className="group"), dcc.Store(id=name, data=chosen)], className="one-of"
    )


def options(named: Mapping[str, str]) -> list[html.Option]:
    """Return what a list offers: a word for each value."""
    return [html.Option(label, value=value) for value, label in named.items()]


def list_button(
    words: str, store: str, subject: str | int, *, icon: str | None = None, tone: str = "plain"
) -> html.Button:
    """Return a button in a list that the browser draws (``static``): a click writes ``subject`` into ``store``."""
    shown: list[Any] = [*([] if icon is None else [elements.icon(icon)]), words]
    held = elements.attributes(data_store=store, data_subject=str(subject))
    return html.Button(shown, type="button", className=f"do tone-{tone}", **held)


def subject(clicked: Mapping[str, Any] | None) -> str:
    """Return the subject of the list button that was clicked, empty before a click."""
    return str(clicked["subject"]) if clicked else ""


def asking(words: str, question: elements.Children, really: Component) -> html.Details:
    """Return a button that asks before it does something that cannot be taken back; ``really`` does it."""
    leave = html.Button("No", type="button", className="do", **elements.attributes(data_leave="asked"))
    asked = html.Div([html.P(question), html.Div([really, leave], className="yes-no")], className="asked")
    return html.Details([html.Summary(words, className="do tone-danger"), asked], className="asking")


def answer(name: Id) -> html.P:
    """Return the place of what was done, or of what is wrong."""
    return html.P(id=name, className="answer", **elements.attributes(aria_live="polite"))


def done(text: str) -> list[Any]:
    """Return what an answer says when something was done."""
    return [html.Span([elements.icon("check"), text], className="tone-quiet")]


def wrong(text: str) -> list[Any]:
    """Return what an answer says when it was not, and why."""
    return [html.Span([elements.icon("warning"), text], className="tone-critical")]
