"""The page of tokens: who is let in, for those who administer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dash import dcc, html

from gradcanary_dashboard.components import elements, forms, static
from gradcanary_dashboard.components.static import TREES
from gradcanary_dashboard.pages.settings import frame as settings_frame

PAGE, REVOKED = "tokens", "token-revoked"

SLOTS = {**settings_frame.slots(PAGE), "token-list": TREES}

NONE = (
    "No token so far. The collector asks for one when it runs with --auth, or listens for other machines. "
    "Give each training and each person one of their own, so that each can be revoked."
)
LINE = "gradcanary token create --scope ingest --name JOBS"
SCOPES = {
    "ingest": "ingest: trainings send with it",
    "read": "read: sees everything but tokens",
    "admin": "admin: all of it, for people on call",
}


def frame(_place: Mapping[str, str], contents: Mapping[str, Any]) -> list[Any]:
    """Return the page: the tokens, and the form of a new one."""
    days = "After which it ends; empty: until it is revoked."
    made = forms.form(
        settings_frame.row(
            forms.text("new-token-name", "Name", "Who or what uses it."),
            forms.text("new-token-days", "Days", days, more={"inputMode": "numeric"}),
        ),
        forms.choice("new-token-scope", "It may", SCOPES, "ingest"),
        forms.button("Create token", "new-token-do", tone="main", sends=True),
    )
    listed = elements.card(
        "tokens",
        static.slot("token-list", contents.get("token-list")),
        forms.answer("token-answer"),
        dcc.Store(id=REVOKED),
        title="Who is let in",
    )
    return [
        *settings_frame.head("Tokens"),
        *settings_frame.controls(PAGE, contents, listed, elements.card("new-token", made, title="New token")),
        forms.answer("new-token-answer"),
        elements.page_state(PAGE, contents.get("shown")),
    ]


def fill(tokens: Sequence[Mapping[str, Any]] | None) -> dict[str, Any]:
    """Return the contents; None for those who may not see them."""
    words = "Tokens are shown to those who administer. Without one at hand: gradcanary token list, on its machine"
    words = f"{words}, with the --data or --db of its up."
    none = [html.P(words, className="dim")] if tokens is None else [html.P(NONE), *elements.terminal(LINE)]
    return {
        "token-list": static.encode([_entry(each) for each in tokens or ()] or none),
        **settings_frame.rights(PAGE, may=tokens is not None),
    }


def _entry(token: Mapping[str, Any]) -> html.Article:
    is_active = token["active"]
    state = elements.badge("quiet", "active") if is_active else elements.badge("waiting", _end(token))
    known = [
        ("Scope", token["scope"]),
        ("Made", elements.moment(token["created"])),
        ("Last used", elements.moment(token["last_used"]) or "never"),
        ("Ends", elements.moment(token["expires"]) if is_active and token["expires"] else None),
    ]
    question = f"Clients with {token['name']} are refused within seconds. Browser sessions signed in with it end too."
    really = forms.list_button("Revoke it", REVOKED, token["id"], tone="danger")
    rest = [forms.asking("Revoke", question, really)] if is_active else []
    return html.Article(
        [
            html.H3([state, token["name"], html.Span(f"#{token['id']}", className="dim")]),
            html.Div([settings_frame.facts(known), *rest], className="with-button"),
        ],
        className="listed",
        **elements.attributes(data_key=str(token["id"])),
    )


def _end(token: Mapping[str, Any]) -> str:
    return "revoked" if token["revoked"] else "expired"
