"""The list of the incidents of all runs: open ones, then the history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dash import dcc, html

from gradcanary_dashboard.address import incidents as incidents_address
from gradcanary_dashboard.address.incidents import Filter
from gradcanary_dashboard.address.run import View, run_url
from gradcanary_dashboard.collector.incidents import IncidentPage
from gradcanary_dashboard.components import elements, incident_text, share_bar, static
from gradcanary_dashboard.components.incident_card import actions
from gradcanary_dashboard.components.static import TREES
from gradcanary_dashboard.text import numbers

SLOTS = {"incidents-csv": "href", "incidents-listed": TREES, "incidents-rules": "children"}
"""Id and property of each slot that a refresh fills."""

TITLES = {"open": "Open", "over": "History", "resolved": "Resolved", "ended": "Ended"}
OPEN, NEWEST = ("the worst", "The worst", "Further"), ("the newest", "Newest", "Older")
"""The texts of the links to the first and the next page, of open incidents and of others."""


def frame(_place: Mapping[str, str], contents: Mapping[str, Any]) -> list[Any]:
    """Return the page: the filter stays, a refresh fills the lists."""
    return [
        html.Div([html.H1("Incidents"), share_bar.of_incidents(contents), _bar(contents)], className="incidents-head"),
        static.slot("incidents-listed", contents.get("incidents-listed")),
        elements.page_state("incidents", contents.get("shown")),
    ]


def fill(chapters: Sequence[IncidentPage], chosen: Filter, rules: Sequence[str], url: str) -> dict[str, Any]:
    """Return the contents of every slot; ``url`` is the collector's address."""
    listed = [section for chapter in chapters for section in _section(chapter, chosen)]
    return {
        "title": "Incidents",
        "incidents-rules": _options({"": "every rule", **{rule: rule.replace("_", " ") for rule in rules}}),
        "incidents-csv": share_bar.incidents_url(incidents_address.url(replace(chosen, before=None))),
        "incidents-listed": static.encode(listed or _none(chosen, url)),
    }


def row(incident: Mapping[str, Any]) -> html.Article:
    """Return one incident: severity, run, summary, times, acknowledgement and last messages."""
    number, run = int(incident["id"]), incident["run"]
    rule = incident["rule"].replace("_", " ")
    title = [
        elements.badge(incident["severity"], incident["severity"]),
        dcc.Link(f"#{number} {rule}", href=f"/incidents/{number}", className="name"),
        incident_text.outcome(incident),
    ]
    where = dcc.Link(run, href=run_url(run, View(incident=number)), className="layer")
    said = html.Div(
        [
            html.H3(title, id=f"row-{number}"),
            html.P(elements.prose(incident["summary"]), className="said"),
            html.P([html.Span(each) for each in [where, *_facts(incident)]], className="dim facts"),
        ]
    )
    classes = f"row tone-{incident['severity']} {'open' if incident['state'] == 'open' else 'resolved'}"
    held = elements.attributes(aria_labelledby=f"row-{number}")
    return html.Article(
        [said, _counts(incident), *(actions(incident) if incident["state"] == "open" else [])],
        className=classes,
        **held,
    )


def _facts(incident: Mapping[str, Any]) -> list[Any]:
    facts = [f"since step {numbers.integer(incident['since_step'])}", elements.moment(incident["opened"], "opened ")]
    if incident["resolved"]:
        facts.append(elements.moment(incident["resolved"], f"{incident['state']} "))
    if incident["reopened"]:
        facts.append(f"reopened {numbers.plural(incident['reopened'], 'time')}")
    return [*facts, *incident_text.related(incident), *incident_text.quiet(incident), incident_text.told(incident)]


def _counts(incident: Mapping[str, Any]) -> html.Div:
    counts = incident["counts"]
    is_open = incident["state"] == "open"
    layers = counts["firing" if is_open else "ever"]
    if not counts["ever"]:
        return html.Div(
            [html.Div("run", className="value"), html.Div("as a whole", className="dim")], className="counts"
        )
    value = html.Div(
        f"{numbers.integer(layers)} / {numbers.integer(counts['layers'])}",
        className="value bad" if is_open and incident["severity"] == "critical" else "value",
    )
    more = f", {numbers.integer(counts['ever'])} ever" if is_open and counts["ever"] > layers else ""
    return html.Div([value, html.Div(f"layers{more}", className="dim")], className="counts")


def _section(chapter: IncidentPage, chosen: Filter) -> list[html.Section]:
    if not chapter.incidents:
        return []
    count = numbers.integer(len(chapter.incidents))
    if chosen.before is not None:
        count = f"{_words(chapter)[2].lower()}, {count}"
    tally = count if chapter.next is None or chosen.before is not None else f"{_words(chapter)[0]} {count}"
    state = TITLES[chapter.state]
    head = html.Div([html.H2(state), html.Span(tally, className="aside")], className="head")
    return [html.Section([head, *map(row, chapter.incidents), *_paging(chapter, chosen)], className="chapter")]


def _paging(chapter: IncidentPage, chosen: Filter) -> list[html.Nav]:
    """Return the links to the next page and to the first; ``state`` is named if the list has both states."""
    links, (_, first, on) = [], _words(chapter)
    if chosen.before is not None:
        links.append(dcc.Link(first, href=incidents_address.url(replace(chosen, before=None)), className="do"))
    if chapter.next is not None:
        following = replace(chosen, state=chapter.state, before=chapter.next)
        links.append(dcc.Link(on, href=incidents_address.url(following), className="do"))
    words = f"Pages of {TITLES[chapter.state].lower()}"
    return [html.Nav(links, className="paging", **elements.attributes(aria_label=words))] if links else []


def _words(chapter: IncidentPage) -> tuple[str, str, str]:
    return OPEN if chapter.state == "open" else NEWEST


def _none(chosen: Filter, url: str) -> html.P | html.Div:
    if chosen.before is not None:
        newest = dcc.Link("See the first", href=incidents_address.url(replace(chosen, before=None)))
        return html.P(["There is none behind these. ", newest], className="dim")
    if not chosen.is_set:
        words: list[Any] = [
            "A rule opens one when parameters stop learning. ",
            dcc.Link("Who is told then", href="/settings"),
            " can be tried before; ",
            dcc.Link("what has run", href="/settings/rules"),
            " says how often that would have been.",
        ]
        calm = [html.Div(elements.icon("check"), className="halo"), html.H2("No incident so far"), html.P(words)]
        return html.Div([*calm, *elements.terminal(f"gradcanary incidents --url {url}")], className="empty")
    return html.P(["No incidents match these filters. ", dcc.Link("See all", href="/incidents")], className="dim")


def _bar(contents: Mapping[str, Any]) -> html.Div:
    run = dcc.Input(
        id="incidents-run", type="search", placeholder="part of a run's name", autoComplete="off", maxLength=100
    )
    rules = contents.get("incidents-rules") or _options({"": "every rule"})
    return html.Div(
        [
            _select("state", "State", _options(incidents_address.STATES)),
            _select("severity", "Severity", _options(incidents_address.CHOICES)),
            _select("rule", "Rule", rules, slot="incidents-rules"),
            html.Label("Part of the run's name", htmlFor="incidents-run", className="unseen"),
            html.Div(run, className="field", **_sets("run")),
        ],
        className="choices",
        role="search",
    )


def _select(key: str, label: str, options: Sequence[html.Option], slot: str | None = None) -> html.Select:
    named: dict[str, Any] = {} if slot is None else {"id": slot}
    return html.Select(list(options), **named, **_sets(key), **elements.attributes(aria_label=label))


def _sets(key: str) -> dict[str, Any]:
    """Return the attributes of a control that sets a part of the address; another choice begins at its first page."""
    return elements.attributes(data_key=key, data_clears="before")


def _options(words: Mapping[str, str]) -> list[html.Option]:
    return [html.Option(label, value=value) for value, label in words.items()]
