"""The page of silences: what nobody is told of until when, a new one, and what was silenced before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dash import dcc, html

from gradcanary_dashboard.components import elements, forms, incident_dialog, silence_form, static
from gradcanary_dashboard.components.static import TREES
from gradcanary_dashboard.pages.settings import frame as settings_frame

PAGE, NEW, ENDED = "silences", "new-silence", "silence-ended"

SLOTS = {
    **settings_frame.slots(PAGE),
    "silence-list": TREES,
    "silence-past": "children",
    "silence-runs": "children",
    f"{NEW}-rules": "children",
    f"{NEW}-who": "hidden",
}

PAST = 12
"""Records of the audit log that are shown."""

RUNS_HINT = "A name, or one with * and ? for any text and character: lora-*. A * alone is every run."
EVERY_RULE = "every rule"
PLAN = "Say which runs, and this says what it would hide."


def frame(_place: Mapping[str, str], contents: Mapping[str, Any]) -> list[Any]:
    """Return the page: the silences in force, the form of a new one, and what was done with others."""
    listed = elements.card(
        "silences",
        static.slot("silence-list", contents.get("silence-list")),
        forms.answer("silence-answer"),
        dcc.Store(id=ENDED),
        title="In force",
    )
    return [
        *settings_frame.head("Silences"),
        *settings_frame.controls(PAGE, contents, listed, _new(contents)),
        elements.card(
            "past-silences", html.Div(contents.get("silence-past"), id="silence-past"), title="Made and ended"
        ),
        elements.page_state(PAGE, contents.get("shown")),
    ]


def fill(
    silences: Sequence[Mapping[str, Any]],
    audit: Sequence[Mapping[str, Any]] | None,
    runs: Sequence[str],
    rules: Sequence[str],
    url: str,
    *,
    may: bool,
    is_signed_in: bool,
) -> dict[str, Any]:
    """Return the contents; ``audit`` is the log of what people changed, None for those who may not see it, ``runs``
    and ``rules`` are names to offer, ``url`` is the collector's address; who signed in need not say a name.
    """
    words = "Nothing is silenced: all notifications are sent. Silence an incident from its page, or here."
    none = [html.P(words), *elements.terminal(f"gradcanary silence --run 'lora-*' --for 8h --url {url}")]
    return {
        "silence-list": static.encode([_entry(each) for each in silences] or none),
        "silence-past": _past(audit),
        "silence-runs": [html.Option(value=name) for name in runs],
        f"{NEW}-rules": forms.options({"": EVERY_RULE, **{rule: rule.replace("_", " ") for rule in rules}}),
        f"{NEW}-who": is_signed_in,
        **settings_frame.rights(PAGE, may=may),
    }


def plan(found: Mapping[str, Any] | None) -> list[Any]:
    """Return what a silence would hide, None where nobody said of which runs."""
    return [html.P(PLAN)] if found is None else silence_form.preview(found)


def _new(contents: Mapping[str, Any]) -> html.Section:
    rules = html.Select(
        contents.get(f"{NEW}-rules", forms.options({"": EVERY_RULE})),
        id=f"{NEW}-rules",
        **elements.attributes(data_of=f"{NEW}-rule"),
    )
    runs = forms.text(
        f"{NEW}-run", "Runs", RUNS_HINT, offers="silence-runs", placeholder="lora-*", more=forms.AFTER_A_PAUSE
    )
    form = forms.form(
        settings_frame.row(runs, forms.field("Rule", rules)),
        html.Datalist(contents.get("silence-runs"), id="silence-runs"),
        dcc.Store(id=f"{NEW}-rule", data=""),
        *silence_form.layers((), NEW, more=forms.AFTER_A_PAUSE),
        silence_form.span(NEW),
        settings_frame.row(
            html.Div(
                incident_dialog.who(f"{NEW}-by", is_signed_in=False),
                id=f"{NEW}-who",
                hidden=contents.get(f"{NEW}-who", False),
            ),
            incident_dialog.note(f"{NEW}-note", "maintenance of the data loader"),
        ),
        html.Div(plan(None), id=f"{NEW}-plan", className="plan", **elements.attributes(aria_live="polite")),
        forms.button("Silence", f"{NEW}-do", icon="hush", tone="main", sends=True),
        forms.answer(f"{NEW}-answer"),
    )
    return elements.card(NEW, form, title="New silence")


def _entry(silence: Mapping[str, Any]) -> html.Article:
    number = silence["id"]
    hides = [_incident(each) for each in silence["incidents"]]
    known = [
        ("Run", "every run" if silence["run"] == "*" else html.Code(silence["run"])),
        ("Rule", EVERY_RULE if silence["rule"] is None else silence["rule"].replace("_", " ")),
        ("Parameters", "all of them" if silence["match"] is None else ["with ", html.Code(silence["match"])]),
        ("Ends", elements.moment(silence["until"])),
        ("By", [silence["by"], ", ", elements.moment(silence["created"])]),
        ("Note", silence["note"]),
        ("Hides", hides or "no open incident"),
    ]
    move = html.Button(
        "Change its end",
        type="button",
        className="do",
        **{
            "data-do": "move",
            "data-silence": str(number),
            **elements.attributes(aria_label=f"Change its end, #{number}"),
        },
    )
    really = forms.list_button("Yes, end it", ENDED, number, tone="danger")
    end = forms.asking(
        "End now", f"End silence {number}? One notification is sent for each incident still open.", really
    )
    return html.Article(
        html.Div([settings_frame.facts(known), html.Div([move, end], className="deeds")], className="with-button"),
        className="listed",
        **elements.attributes(data_key=str(number)),
    )


def _incident(number: int) -> html.Span:
    return html.Span([dcc.Link(f"#{number}", href=f"/incidents/{number}"), " "])


def _past(audit: Sequence[Mapping[str, Any]] | None) -> list[Any]:
    if audit is None:
        return [html.P("Who made and ended silences is in the audit log, which takes a token of the scope admin.")]
    found = [each for each in audit if each["action"].split(" ")[-1].startswith("/silences")][:PAST]
    if not found:
        return [html.P("Nobody did lately.", className="dim")]
    return [html.Ul([html.Li(_record(each)) for each in found], className="records")]


def _record(record: Mapping[str, Any]) -> list[Any]:
    method, _, path = record["action"].partition(" ")
    number = path.rpartition("/")[2]
    what: list[Any] = [f"made silence {record['target']}"]
    if method == "DELETE":
        what = [f"ended silence {number}"]
    elif method == "PATCH":
        what = [
            f"gave silence {number} another end, ",
            elements.moment(record["target"].removeprefix("until ") or None),
        ]
    return [f"{record['actor']} ", *what, ", ", elements.moment(record["at"])]
