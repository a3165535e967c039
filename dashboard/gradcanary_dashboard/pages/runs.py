"""The list of runs, in pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dash import dcc, html
from dash.development.base_component import Component

from gradcanary_dashboard.address.run import View, run_url
from gradcanary_dashboard.address.runs import MAX_TEXT, PER_PAGE, SORTS, STATES, Listing
from gradcanary_dashboard.analysis.arrays import decode
from gradcanary_dashboard.analysis.verdict import Verdict, firing, verdict
from gradcanary_dashboard.components import banners, elements, share_bar, static
from gradcanary_dashboard.figures import palette
from gradcanary_dashboard.figures.sparkline import HEIGHT, WIDTH, sparkline
from gradcanary_dashboard.text import numbers

BANNER_LINES = 5
COLOURS = {
    "critical": palette.RED,
    "warning": "#e8890c",
    "information": palette.BLUE,
    "quiet": "#12a184",
    "waiting": palette.GREY,
}

SLOTS = {"runs": static.TREES, "runs-head": "className", "runs-csv": "href"}
"""Id and property of each slot that a refresh fills."""

HIDDEN, SHOWN = "runs-head hidden", "runs-head"


def frame(_place: Mapping[str, str], contents: Mapping[str, Any]) -> list[Any]:
    """Return the page: its heading with the filter stays, a refresh fills the list."""
    return [
        html.Div(
            [html.H1("Runs"), _choices(contents.get("listing", Listing()), _takeaway(contents))],
            id="runs-head",
            className=contents.get("runs-head", SHOWN),
        ),
        static.slot("runs", contents.get("runs")),
        elements.page_state("runs", contents.get("shown")),
    ]


def fill(
    runs: Sequence[Mapping[str, Any]],
    opened: Mapping[str, Any],
    listing: Listing,
    silent: Sequence[Mapping[str, Any]] = (),
    *,
    following: str | None = None,
    first: Component | None = None,
) -> dict[str, Any]:
    """Return the contents: failing endpoints, open incidents, and a card per run, or ``first`` before the first run.

    ``opened`` is a page of open incidents, ``following`` the ``after`` of the next page of runs.
    """
    unheard = banners.failing_endpoints(silent)
    contents = {"listing": listing, "runs-csv": share_bar.runs_url(listing.url(after=None))}
    if first is not None:
        return {**contents, "runs-head": HIDDEN, "runs": static.encode([*unheard, first])}
    listed = html.Div([_card(run) for run in runs] or _nothing(listing), className="runs")
    shown = [*unheard, *_banner(opened), listed, *_pages(listing, following)]
    return {**contents, "runs-head": SHOWN, "runs": static.encode(shown)}


def _choices(listing: Listing, takeaway: html.A) -> html.Div:
    """Return the controls, which ``assets/js/address.js`` writes into the address, and what can be taken along."""
    text = dcc.Input(
        id="runs-filter",
        type="search",
        value=listing.text,
        placeholder="name, tag or note",
        autoComplete="off",
        spellCheck=False,
        maxLength=MAX_TEXT,
    )
    states = [("", "any state"), *((state, state) for state in STATES)]
    sorts = [("" if name == "last_seen" else name, words) for name, words in SORTS.items()]
    pressed = elements.attributes(data_choice="1", data_toggles="", aria_pressed=str(listing.is_archived).lower())
    held = {**_sets("archived"), **pressed}
    archive = html.Button([elements.icon("archive"), "Archive"], type="button", className="do", **held)
    return html.Div(
        [
            html.Div(
                [html.Label("Filter runs", htmlFor="runs-filter", className="unseen"), text],
                className="field",
                role="search",
                **_sets("text"),
            ),
            _select("state", "State", states, listing.state or ""),
            _select("sort", "Order", sorts, "" if listing.sort == "last_seen" else listing.sort),
            archive,
            takeaway,
        ],
        className="list-choices",
    )


def _takeaway(contents: Mapping[str, Any]) -> html.A:
    words = "Every run of the list, also those of the pages that follow"
    return share_bar.csv_link("runs-csv", contents.get("runs-csv", share_bar.runs_url("/")), words)


def _select(key: str, words: str, options: Sequence[tuple[str, str]], chosen: str) -> html.Select:
    listed = [html.Option(text, value=value, selected=value == chosen or None) for value, text in options]
    return html.Select(listed, **_sets(key), **elements.attributes(aria_label=words))


def _sets(key: str) -> dict[str, Any]:
    """Return the attributes of a control that sets a part of the address; another choice begins at its first page."""
    return elements.attributes(data_key=key, data_clears="after")


def _nothing(listing: Listing) -> html.P:
    """Return the reason why no run is listed, and a link to all runs."""
    which = " that is not in the archive" if not listing.is_archived else " in the archive"
    why: list[Any] = [f"There is no {listing.state or ''} run".replace("  ", " "), which]
    if listing.text:
        why += [" with ", html.Code(listing.text), " in its name, its tags or its note"]
    words = "Look among the others." if listing.is_archived else "Look in the archive."
    elsewhere = replace(listing, is_archived=not listing.is_archived).url(after=None)
    return html.P([*why, ". ", dcc.Link(words, href=elsewhere)], className="dim")


def _pages(listing: Listing, following: str | None) -> list[html.Nav]:
    back = [] if listing.after is None else [dcc.Link("Back to the first", href=listing.url(after=None))]
    on = [] if following is None else [dcc.Link(f"Next {PER_PAGE}", href=listing.url(after=following))]
    if not back and not on:
        return []
    return [html.Nav([*back, *on], className="pages", **elements.attributes(aria_label="Pages of the list"))]


def _banner(page: Mapping[str, Any]) -> list[html.Section]:
    opened = [each for each in page["incidents"] if each["severity"] != "information"]
    if not opened:
        return []
    worst = opened[0]["severity"]
    lines = [
        html.Li([_link(incident), " ", html.Span(elements.prose(incident["summary"]))], **_keyed(incident["id"]))
        for incident in opened[:BANNER_LINES]
    ]
    if len(opened) > BANNER_LINES:
        more = f"and {numbers.integer(len(opened) - BANNER_LINES)} more" if page["next"] is None else "and all others"
        lines.append(html.Li(dcc.Link(more, href="/incidents?state=open")))
    count = numbers.plural(len(opened), "open incident")
    heading = html.H2([elements.icon(elements.ICONS[worst]), count if page["next"] is None else f"over {count}"])
    return [html.Section([heading, html.Ul(lines)], className=f"banner tone-{worst}")]


def _keyed(thing: object) -> dict[str, Any]:
    """Return the attribute by which an element stays that of one run or incident."""
    return elements.attributes(data_key=str(thing))


def _link(incident: Mapping[str, Any]) -> dcc.Link:
    return dcc.Link(incident["run"], href=run_url(incident["run"], View(incident=incident["id"])))


def _card(run: Mapping[str, Any]) -> html.Article:
    said = verdict(run)
    return html.Article(
        [
            elements.run_state(run["state"]),
            html.Div(
                [
                    html.H2([dcc.Link(run["run"], href=run_url(run["run"])), elements.badge(said.tone, said.tone)]),
                    html.P(elements.prose(said.text), className="said"),
                    html.P([html.Span(fact) for fact in _facts(run)], className="dim facts"),
                    *_words(run),
                ],
                className="what",
            ),
            _counts(run),
            html.Div(_spark(run, said), className="spark"),
        ],
        className=f"run tone-{said.tone}",
        **_keyed(run["run"]),
    )


def _facts(run: Mapping[str, Any]) -> list[str | list[Any] | Component]:
    """Return the last step and its age. It is not the age of the last request: a process may live without a step."""
    step: list[Any] = [f"step {numbers.integer(run['step'])}"]
    if run["last_step_at"] is not None:
        step = [step[0], ", ", elements.moment(run["last_step_at"])]
    facts: list[str | list[Any] | Component] = [html.Span(step)]
    if run["last_step_at"] is None or run["state"] in ("stale", "silent"):
        facts.append(elements.moment(run["last_seen"], "heard of "))
    return [*facts, *([f"accumulators {numbers.dtypes(run['accumulators'])}"] if run["accumulators"] else [])]


def _words(run: Mapping[str, Any]) -> list[html.P]:
    """Return tags, with links to the runs that have them, and the first line of the note."""
    tags = [dcc.Link(tag, href=Listing(text=tag).url(after=None), className="tag") for tag in run["tags"]]
    note = [html.Span(run["note"].strip().splitlines()[0], className="note")] if run["note"].strip() else []
    return [html.P([*tags, *note], className="words")] if tags or note else []


def _counts(run: Mapping[str, Any]) -> html.Div:
    fires = firing(run)
    worst = max(run["firing"], key=run["firing"].get).replace("_", " ") if fires else "an incident"
    total = numbers.integer(run["layers"])
    return html.Div(
        [
            html.Div(f"{numbers.integer(fires)} / {total}", className="value bad" if fires else "value"),
            html.Div(
                f"parameters with {worst}{numbers.low(run['below_threshold'], ', ')}",
                className="dim",
            ),
        ],
        className="counts",
    )


def _spark(run: Mapping[str, Any], said: Verdict) -> list[html.Img]:
    source = sparkline(decode(run["sparkline"]), COLOURS[said.tone]) if run["sparkline"] else None
    if source is None:
        return []
    return [html.Img(src=source, width=WIDTH, height=HEIGHT, alt="absmax of the worst parameters over the run")]
