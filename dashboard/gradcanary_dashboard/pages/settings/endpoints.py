"""The pages of endpoints: who is told and how that goes, a new one, and one with all that was sent to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dash import dcc, html

from gradcanary.display.verdict import SEVERITIES
from gradcanary_dashboard.components import elements, endpoint_text, forms, static
from gradcanary_dashboard.components.endpoint_text import Endpoint
from gradcanary_dashboard.components.static import TREES
from gradcanary_dashboard.pages.settings import frame as settings_frame
from gradcanary_dashboard.pages.settings.frame import part

ALL, ONE = "endpoints", "endpoint"

SLOTS = {**settings_frame.slots(ALL), "endpoint-list": TREES}
SLOTS_OF_ONE = {
    **settings_frame.slots(ONE),
    "endpoint-title": "children",
    "endpoint-facts": "children",
    "endpoint-log": TREES,
    "endpoint-enable": "hidden",
    "endpoint-disable": "hidden",
    "endpoint-change": "hidden",
    "endpoint-given": "hidden",
    "endpoint-rotation": "hidden",
    "endpoint-removal": "hidden",
}

WAITS = "Waiting for the receiver, 10 s at most."
URL_HINT = "Receives a signed POST (Standard Webhooks). Public addresses, unless the operator allows more networks."


def frame(_place: Mapping[str, str], contents: Mapping[str, Any]) -> list[Any]:
    """Return the page of all endpoints: the list, and the form of a new one."""
    made = forms.form(
        settings_frame.row(
            forms.text("new-endpoint-url", "URL", URL_HINT, placeholder="https://hooks.example/gradcanary"),
            forms.text("new-endpoint-name", "Name", "As you want to find it again; may be left away."),
        ),
        _severities("new-endpoint-severity", "warning"),
        forms.button("Create endpoint", "new-endpoint-do", tone="main", sends=True),
    )
    return [
        *settings_frame.head("Endpoints"),
        elements.card("endpoints", static.slot("endpoint-list", contents.get("endpoint-list")), title="Who is told"),
        *settings_frame.controls(ALL, contents, elements.card("new-endpoint", made, title="New endpoint")),
        # Outside of what may be disabled: what it says stays readable, and its secret can be copied.
        forms.answer("new-endpoint-answer"),
        elements.page_state(ALL, contents.get("shown")),
    ]


def fill(endpoints: Sequence[Endpoint], url: str, *, may: bool) -> dict[str, Any]:
    """Return the contents of the page of all endpoints; ``url`` is the collector's address."""
    words = "No endpoints yet: incidents appear only on these pages. Add one below and send a test."
    line = f"gradcanary endpoints add https://hooks.example/gradcanary --url {url}"
    none = [html.P(words), *elements.terminal(line)]
    return {
        "endpoint-list": static.encode([_entry(each) for each in endpoints] or none),
        **settings_frame.rights(ALL, may=may),
    }


def frame_of_one(place: Mapping[str, str], contents: Mapping[str, Any]) -> list[Any]:
    """Return the page of one endpoint: how it is, what can be done, what was sent to it."""
    return [
        elements.crumbs([("Settings", "/settings")], f"Endpoint {place['endpoint']}"),
        html.Div(contents.get("endpoint-title", html.H1("Endpoint")), id="endpoint-title"),
        html.Div(contents.get("endpoint-facts"), id="endpoint-facts", className="card"),
        *settings_frame.controls(ONE, contents, _doing(contents), _changing(contents)),
        elements.card("deliveries", static.slot("endpoint-log", contents.get("endpoint-log")), title="What was sent"),
        dcc.Store(id=endpoint_text.SENT_AGAIN),
        settings_frame.leaving(ONE),
        elements.page_state(ONE, contents.get("shown")),
    ]


def fill_one(endpoint: Endpoint, deliveries: Mapping[str, Any], *, may: bool) -> dict[str, Any]:
    """Return the contents of the page of one endpoint; ``endpoint`` is what its form begins with."""
    is_ours, is_enabled = endpoint_text.is_ours(endpoint), endpoint["state"] == "enabled"
    return {
        "endpoint-title": html.H1([endpoint_text.state(endpoint), endpoint_text.label(endpoint)]),
        "endpoint-facts": settings_frame.facts(endpoint_text.facts(endpoint)),
        "endpoint-log": static.encode(endpoint_text.log(deliveries, endpoint["id"])),
        "endpoint-enable": is_enabled,
        "endpoint-disable": not is_enabled,
        "endpoint-change": not is_ours,
        "endpoint-given": is_ours,
        "endpoint-rotation": endpoint["kind"] != "webhook",
        "endpoint-removal": not is_ours and is_enabled,
        **settings_frame.rights(ONE, may=may),
        "endpoint": endpoint,
        "title": endpoint_text.label(endpoint),
    }


def unknown(number: str) -> list[Any]:
    """Return the page of an endpoint that the collector does not know."""
    text = [f"The collector knows no endpoint {number}. It may have been deleted."]
    return [elements.missing("No such endpoint", text, ("See all endpoints", "/settings"))]


def _entry(endpoint: Endpoint) -> html.Article:
    name = dcc.Link(endpoint_text.label(endpoint), href=f"/settings/endpoints/{endpoint['id']}")
    return html.Article(
        [html.H3([endpoint_text.state(endpoint), name]), settings_frame.facts(endpoint_text.facts(endpoint))],
        className="listed",
        **elements.attributes(data_key=str(endpoint["id"])),
    )


def _doing(contents: Mapping[str, Any]) -> html.Section:
    """Return what can be done with an endpoint as it is."""
    rotated = "The next messages are signed with a new secret, for 24 hours with the old one, too. It is shown once."
    removed = (
        "It gets no more messages, and its address and secret are deleted. Earlier messages stay with their incidents."
    )
    rotate = forms.button("Make a new secret", "endpoint-rotate-do", tone="danger")
    remove = forms.button("Delete it", "endpoint-delete-do", tone="danger")
    buttons = settings_frame.row(
        forms.button("Send a test message", "endpoint-test-do", icon="send", tone="main"),
        part("endpoint-enable", contents, forms.button("Enable", "endpoint-enable-do")),
        part("endpoint-disable", contents, forms.button("Disable", "endpoint-disable-do")),
        part("endpoint-rotation", contents, forms.asking("New secret", rotated, rotate)),
        part("endpoint-removal", contents, forms.asking("Delete", removed, remove)),
    )
    waits = html.P(WAITS, id="endpoint-waits", className="dim", hidden=True, role="status")
    return elements.card("endpoint-doing", buttons, waits, forms.answer("endpoint-answer"), title="Try it, change it")


def _changing(contents: Mapping[str, Any]) -> html.Div:
    """Return the form of what can be changed, and of what cannot why."""
    known = contents.get("endpoint", {})
    given = (
        "Its address and severity are the operator's: they change when the collector is started otherwise, and it is "
        "removed by a start without it."
    )
    form = forms.form(
        settings_frame.row(
            forms.text("endpoint-url-field", "URL", URL_HINT, value=known.get("url") or ""),
            forms.text("endpoint-name", "Name", value=known.get("name") or ""),
        ),
        _severities("endpoint-severity", known.get("min_severity")),
        forms.button("Save", "endpoint-save-do", tone="main", sends=True),
        forms.answer("endpoint-saved"),
    )
    changed = part("endpoint-change", contents, form, "card")
    return html.Div([changed, part("endpoint-given", contents, html.P(given), "dim")])


def _severities(name: str, chosen: str | None) -> html.Fieldset:
    """Return the choice of the least severity that is told."""
    words = {"information": "information", "warning": "warning", "critical": "critical only"}
    options = {each: words[each] for each in SEVERITIES}
    return forms.choice(name, "Tell it of, at least", options, chosen)
