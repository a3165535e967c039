"""The page of silences: what nobody is told of until when, and what was silenced before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dash import dcc, html

from gradcanary_dashboard import forms, parts, settings_frame, wording

PAGE = "silences"

SLOTS = {**settings_frame.slots(PAGE), "silence-list": "children", "silence-past": "children"}

PAST = 12
"""Records of the audit log that are shown."""

HOW = "Silence an incident, or some layers of it, from its page: what is silenced stays on the pages."


def frame(_place: Mapping[str, str], contents: Mapping[str, Any]) -> list[Any]:
    """Return the page: the silences in force, and what was done with others."""
    way = dcc.Link("Incidents", href="/incidents")
    return [
        *settings_frame.head("Silences", contents),
        *settings_frame.controls(
            PAGE,
            contents,
            parts.card(
                "silences",
                html.Div(contents.get("silence-list"), id="silence-list"),
                forms.answer("silence-answer"),
                html.P([f"{HOW} ", way], className="dim"),
                title="In force",
            ),
        ),
        parts.card("past-silences", html.Div(contents.get("silence-past"), id="silence-past"), title="Made and ended"),
        dcc.Location(id=f"{PAGE}-url", refresh=False),
        parts.heart(PAGE, contents.get("shown")),
    ]


def fill(
    silences: Sequence[Mapping[str, Any]], audit: Sequence[Mapping[str, Any]] | None, *, may: bool
) -> dict[str, Any]:
    """Return the contents; ``audit`` is the log of what people changed, None for those who may not see it."""
    none = [html.P("Nothing is silenced.", className="dim")]
    return {
        "silence-list": [_entry(each) for each in silences] or none,
        "silence-past": _past(audit),
        **settings_frame.rights(PAGE, may=may),
    }


def _entry(silence: Mapping[str, Any]) -> html.Article:
    end = forms.button("End now", {"do": "end-silence", "silence": silence["id"]}, tone="danger")
    hides = [_incident(each) for each in silence["incidents"]]
    known = [
        ("Run", "every run" if silence["run"] == "*" else html.Code(silence["run"])),
        ("Rule", "every rule" if silence["rule"] is None else silence["rule"].replace("_", " ")),
        ("Layers", "all of them" if silence["match"] is None else ["with ", html.Code(silence["match"])]),
        ("Until", f"{wording.minute(silence['until'])} UTC"),
        ("By", [silence["by"], ", ", parts.moment(silence["created"])]),
        ("Note", silence["note"]),
        ("Hides", hides or "no open incident"),
    ]
    return html.Article([html.Div([settings_frame.facts(known), end], className="with-button")], className="listed")


def _incident(number: int) -> html.Span:
    return html.Span([dcc.Link(f"#{number}", href=f"/incidents/{number}"), " "])


def _past(audit: Sequence[Mapping[str, Any]] | None) -> list[Any]:
    if audit is None:
        return [html.P("Who made and ended silences is in the audit log, which takes a token of the scope admin.")]
    found = [each for each in audit if each["what"].split(" ")[-1].startswith("/silences")][:PAST]
    if not found:
        return [html.P("Nobody did lately.", className="dim")]
    return [html.Ul([html.Li(_record(each)) for each in found], className="records")]


def _record(record: Mapping[str, Any]) -> list[Any]:
    method, _, path = record["what"].partition(" ")
    number = path.rpartition("/")[2]
    what = f"ended silence {number}" if method == "DELETE" else f"made silence {record['on']}"
    return [f"{record['who']} {what}, ", parts.moment(record["at"])]
