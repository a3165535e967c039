"""The dialog in which an incident is acked or silenced: outside the slots, where no refresh touches what one types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dash import dcc, html

from gradcanary_dashboard.analysis import picture
from gradcanary_dashboard.components import elements, forms, silence_form

OF_A_BASELINE = ("collapse", "scale_drop")
"""Rules that hold gradients against what they were; of others the collector refuses a new baseline, in its words."""

TOLD = (
    "Stops reminders and messages about further parameters. You will still be notified when it is resolved or opens "
    "again."
)
QUIET = "No notifications until then. If it is still open afterwards, one notification is sent."
BASELINE = (
    "The present values of the parameters with this incident become normal. The incident closes as “new baseline”, and "
    "opens again only when they fall further. This cannot be undone. Do it if the change was meant: another learning "
    "rate, another scale of the loss, parameters that have finished learning."
)


def dialog() -> html.Div:
    """Return the dialog, closed and empty, with the line that says what was done."""
    body = forms.form(name="dialog-body")
    return html.Div(
        [
            html.Dialog(body, id="incident-dialog", **elements.attributes(aria_labelledby="dialog-title")),
            html.P(id="said", role="status"),
            dcc.Store(id="asked"),
        ]
    )


def ack(incident: Mapping[str, Any], *, is_signed_in: bool) -> list[Any]:
    """Return the form that says that somebody knows, and the one for a new baseline."""
    before = incident["acked"]
    known = [html.P([f"Acked by {before['by']} ", elements.moment(before["at"]), "."])] if before else []
    return [
        *_head("Ack", incident),
        html.P(TOLD, className="dim"),
        *known,
        *who("asked-by", is_signed_in=is_signed_in),
        note("asked-note", "restarting with a lower learning rate"),
        *(_baseline() if incident["rule"] in OF_A_BASELINE else []),
        _send(forms.button("Ack", "ack-send", icon="check", tone="main", sends=True)),
    ]


def silence(incident: Mapping[str, Any], *, is_signed_in: bool) -> list[Any]:
    """Return the form for a silence of an incident's rule in its run."""
    names = [layer["name"] for layer in picture.members(incident)]
    return [
        *_head("Silence", incident),
        html.P(QUIET, className="dim"),
        *silence_form.layers(names),
        silence_form.span(),
        *who("asked-by", is_signed_in=is_signed_in),
        note("asked-note", "maintenance of the data loader"),
        _send(forms.button("Silence", "silence-send", icon="hush", tone="main", sends=True)),
    ]


def unsilence(incident: Mapping[str, Any], silences: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return the silences that hide an incident, each with the button that ends it."""
    listed = silence_form.ending(silences) if silences else html.P("No silence mutes it now.")
    words = "If it is still open when a silence ends, one notification is sent."
    head = _head("Unsilence", incident)
    return [*head, html.P(words, className="dim"), listed, _send()]


def move(silence: Mapping[str, Any]) -> list[Any]:
    """Return the form for another end of a silence."""
    return [
        html.H2(f"Another end of silence {silence['id']}", id="dialog-title"),
        html.P(silence_form.covered(silence)),
        html.P(["It ends ", elements.moment(silence["until"]), ". New length, from now on:"], className="dim"),
        silence_form.span(),
        _send(forms.button("Save", "move-send", icon="check", tone="main", sends=True)),
    ]


def refused(text: str) -> list[Any]:
    """Return why there is no form."""
    words = html.P(forms.wrong(text), className="answer", role="alert")
    return [html.H2("This did not work", id="dialog-title"), words, _send()]


def _head(verb: str, incident: Mapping[str, Any]) -> list[Any]:
    rule = incident["rule"].replace("_", " ")
    about = [elements.badge(incident["severity"], incident["severity"]), html.Span(f"{rule} in {incident['run']}")]
    title = html.H2(f"{verb} #{incident['id']}", id="dialog-title")
    return [title, html.P(about, className="about"), html.P(elements.prose(incident["summary"]))]


def who(name: str, *, is_signed_in: bool) -> list[Any]:
    """Return the field for a name, which the browser remembers; one that nobody sees where the collector knows it."""
    if is_signed_in:  # a callback is not run while one of its components is missing
        return [html.Div(dcc.Input(id=name, type="hidden"), hidden=True)]
    return [forms.text(name, "Your name", more={"maxLength": 200, "autoComplete": "name", "persistence": True})]


def note(name: str, example: str) -> html.Label:
    """Return the field for what others shall read."""
    # Chromium would ask its maker for a dictionary.
    field = dcc.Textarea(id=name, maxLength=2_000, rows=2, placeholder=example, spellCheck=False)
    return forms.field("Note, for those who read it later", field)


def _send(*buttons: html.Button) -> html.Div:
    """Return the buttons of a form, with the place of its answer, which come with it: of a button that is put beside an
    output that was there Dash asks at once what its click does, and disables it until that is answered.
    """
    words = "Cancel" if buttons else "Close"
    close = html.Button(words, type="submit", formMethod="dialog", className="do")  # the browser closes the dialog
    return html.Div([forms.answer("dialog-answer"), *buttons, close, dcc.Store(id="done")], className="send")


def _baseline() -> list[Any]:
    really = forms.button("Accept and close incident", "ack-baseline", tone="danger")
    return [forms.asking("This is expected: accept as the new normal", BASELINE, really)]
