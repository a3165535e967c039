"""An endpoint in words: whom it tells, how that goes, where it comes from, and what was sent to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dash import dcc, html

from gradcanary.display.verdict import SEVERITIES
from gradcanary_dashboard.address.run import View, run_url
from gradcanary_dashboard.components import elements, forms
from gradcanary_dashboard.text import numbers
from gradcanary_dashboard.text.deliveries import fate

Endpoint = Mapping[str, Any]

FROM = {
    "webhook": "given when the collector starts: --webhook [SEVERITY][,ended]=URL",
    "apprise": "given when the collector starts: --notify, or a line of GRADCANARY_NOTIFY_FILE",
}
SECRETIVE = "in the collector's configuration only"
SENT_AGAIN = "sent-again"
"""The store that is told which message is to be sent once more."""

ICONS = {"delivered": "check", "pending": "dots", "expired": "warning", "disabled": "warning"}


def label(endpoint: Endpoint) -> str:
    """Return what an endpoint is called."""
    return endpoint["name"] or endpoint["url"] or f"Endpoint {endpoint['id']}"


def is_ours(endpoint: Endpoint) -> bool:
    """Tell whether it was made over HTTP, and not given by the operator."""
    return bool(endpoint["origin"] == "api")


def state(endpoint: Endpoint) -> html.Span:
    """Return how it is, with icon and word."""
    if endpoint["state"] == "disabled":
        return elements.badge("critical" if endpoint["disabled_by"] == "failures" else "waiting", "disabled")
    if endpoint["failing_since"] is not None:
        return elements.badge("warning", "failing")
    return elements.badge("quiet", "enabled")


def facts(endpoint: Endpoint) -> list[tuple[str, elements.Children]]:
    """Return what is known of it, with what it is called; None is nothing."""
    is_disabled = endpoint["state"] == "disabled"
    pending = endpoint["pending"]
    return [
        ("Address", None if endpoint["url"] == label(endpoint) else endpoint["url"] or SECRETIVE),
        ("Hears of", _heard(endpoint)),
        ("Last delivery", elements.moment(endpoint["last_success"]) or "none so far"),
        ("Disabled", [elements.moment(endpoint["since"]), f": {endpoint['reason']}"] if is_disabled else None),
        ("Failing since", elements.moment(endpoint["failing_since"]) if endpoint["failing_since"] else None),
        ("Last error", _error(endpoint)),
        ("Pending", numbers.plural(pending, "message") if pending else None),
        ("From", None if is_ours(endpoint) else FROM[endpoint["kind"]]),
    ]


def outcome(told: Mapping[str, Any]) -> list[Any]:
    """Return how an attempt went, as the collector answers it: arrived or not, status, time, error."""
    took = f"{numbers.integer(told['ms'])} ms"
    if told["is_delivered"]:
        answer = "" if told["status"] is None else f"status {told['status']}, "
        return forms.done(f"It arrived: {answer}{took}.")
    return forms.wrong(f"It did not arrive: {told['error']} ({took}).")


def log(deliveries: Mapping[str, Any], number: int) -> list[Any]:
    """Return the messages to an endpoint, newest first, each with its attempts, and the way to older ones."""
    found = deliveries["deliveries"]
    if not found:
        return [html.P("Nothing was sent to it so far. A test message is not listed.", className="dim")]
    older = deliveries["next"]
    way = dcc.Link("Older messages", href=f"/settings/endpoints/{number}?before={older}") if older else None
    return [html.Ul([_message(each) for each in found], className="log"), *([way] if way else [])]


def _message(message: Mapping[str, Any]) -> html.Li:
    attempts, incident = message["attempts"], message["incident"]
    where = dcc.Link(
        f"#{incident} in {message['run']}", href=run_url(message["run"], View(incident=incident)), className="layer"
    )
    again = forms.list_button("Send again", SENT_AGAIN, message["id"], icon="send")
    told = html.Span([elements.icon(ICONS.get(message["state"], "dots")), fate(message["state"])], className="state")
    what = html.Div(
        [html.Span(message["kind"]), where, told, elements.moment(message["enqueued"])], className="told-of"
    )
    lines = [html.Li(_attempt(number, each)) for number, each in enumerate(attempts, 1)]
    tried = html.Details([html.Summary(numbers.plural(len(lines), "attempt")), html.Ul(lines)]) if lines else None
    said = html.Div([what, *([tried] if tried else [])])
    return html.Li(
        [said, again], className=f"told-{message['state']}", **elements.attributes(data_key=str(message["id"]))
    )


def _attempt(number: int, attempt: Mapping[str, Any]) -> list[Any]:
    status = "no answer" if attempt["status"] is None else f"status {attempt['status']}"
    error = f": {attempt['error']}" if attempt["error"] else ""
    return [f"{number}. {status} after {numbers.integer(attempt['ms'])} ms{error} ", elements.moment(attempt["at"])]


def _heard(endpoint: Endpoint) -> str:
    severity = endpoint["min_severity"]
    heard = severity if severity == SEVERITIES[-1] else f"{severity} and above"
    return f"{heard}, and the end of its run" if endpoint["sends_ended"] else heard


def _error(endpoint: Endpoint) -> elements.Children:
    """Return what went wrong last, as long as nothing has arrived since."""
    failed, arrived = endpoint["last_failure"], endpoint["last_success"]
    if failed is None or endpoint["last_error"] is None or (arrived is not None and arrived > failed):
        return None
    return [endpoint["last_error"], " (", elements.moment(failed), ")"]
