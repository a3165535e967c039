"""The list of the incidents of all runs, by run: those with open ones first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dash import dcc, html

from gradcanary_dashboard.address import incidents as incidents_address
from gradcanary_dashboard.address.incidents import Filter
from gradcanary_dashboard.address.run import run_url
from gradcanary_dashboard.collector.incidents import IncidentPage
from gradcanary_dashboard.components import elements, incident_text, share_bar, static
from gradcanary_dashboard.components.incident_card import actions, tally
from gradcanary_dashboard.components.static import TREES
from gradcanary_dashboard.text import numbers

SLOTS = {"incidents-csv": "href", "incidents-listed": TREES, "incidents-rules": "children"}
"""Id and property of each slot that a refresh fills."""

WORDS = {"open": ("the worst", "Further open ones"), "over": ("the newest", "Older ones")}
"""The words for a part of the open incidents and of the history, and of the link to the following part."""


def frame(_place: Mapping[str, str], contents: Mapping[str, Any]) -> list[Any]:
    """Return the page: the filter stays, a refresh fills the lists."""
    return [
        html.Div([html.H1("Incidents"), share_bar.of_incidents(contents), _bar(contents)], className="incidents-head"),
        static.slot("incidents-listed", contents.get("incidents-listed")),
        elements.page_state("incidents", contents.get("shown")),
    ]


def fill(chapters: Sequence[IncidentPage], chosen: Filter, rules: Sequence[str], url: str) -> dict[str, Any]:
    """Return the contents of every slot; ``url`` is the collector's address."""
    listed = [_section(run, incidents) for run, incidents in _by_run(chapters).items()]
    return {
        "title": "Incidents",
        "incidents-rules": _options({"": "every rule", **{rule: rule.replace("_", " ") for rule in rules}}),
        "incidents-csv": share_bar.incidents_url(incidents_address.url(replace(chosen, before=None))),
        "incidents-listed": static.encode([*listed, *_paging(chapters, chosen)] if listed else _none(chosen, url)),
    }


def _by_run(chapters: Sequence[IncidentPage]) -> dict[str, list[Mapping[str, Any]]]:
    """Return the incidents by run: runs with open ones first, and of each its open ones."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for chapter in chapters:
        for incident in chapter.incidents:
            found.setdefault(incident["run"], []).append(incident)
    return found


def _section(run: str, incidents: Sequence[Mapping[str, Any]]) -> html.Section:
    """Return a run with its state, the number of its incidents, and each of them."""
    name = html.H2(dcc.Link(run, href=run_url(run)))
    state, count = elements.run_state(incidents[0]["run_state"]), html.Span(tally(incidents), className="aside")
    head = html.Div([name, state, count], className="head")
    return html.Section([head, *map(row, incidents)], className="chapter", **elements.attributes(data_key=run))


def row(incident: Mapping[str, Any]) -> html.Article:
    """Return one incident in a line: severity, rule and count, summary, first sign, age, state, and who knows."""
    number, severity = int(incident["id"]), incident["severity"]
    is_open = incident["state"] == "open"
    title = [
        elements.severity_icon(severity),
        dcc.Link(f"#{number} {incident_text.headline(incident)}", href=f"/incidents/{number}", className="name"),
    ]
    facts = [*incident_text.related(incident), *incident_text.quiet(incident)]
    facts += [incident_text.told(incident)] if is_open else []
    more = [html.P([html.Span(each) for each in facts], className="dim facts")] if facts else []
    parts = [
        html.H3(title, id=f"row-{number}", className="named"),
        html.Div([html.P(elements.prose(incident["summary"])), *more], className="said"),
        html.Span(f"since {numbers.integer(incident['since_step'])}", className="dim"),
        html.Span(elements.moment(incident["opened"]), className="dim"),
        incident_text.outcome(incident),
        *(actions(incident) if is_open else []),
    ]
    held = elements.attributes(aria_labelledby=f"row-{number}")
    return html.Article(parts, className=f"row tone-{severity} {'open' if is_open else 'resolved'}", **held)


def _paging(chapters: Sequence[IncidentPage], chosen: Filter) -> list[html.Nav]:
    """Return what part of all incidents is shown, and the links to the first and the following parts."""
    links: list[Any] = []
    if chosen.before is not None:
        links.append(dcc.Link("The first", href=incidents_address.url(replace(chosen, before=None)), className="do"))
    for chapter in chapters:
        if chapter.next is not None:
            part, on = WORDS["open" if chapter.state == "open" else "over"]
            following = replace(chosen, state=chapter.state, before=chapter.next)
            shown = f"{part} {numbers.integer(len(chapter.incidents))} are above" if chosen.before is None else ""
            links.append(dcc.Link(on, href=incidents_address.url(following), className="do", title=shown))
    return [html.Nav(links, className="paging", **elements.attributes(aria_label="Further incidents"))] if links else []


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
