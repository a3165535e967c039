"""The list of runs, in pages: a dense table, the runs that need attention above the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import numpy as np
from dash import dcc, html
from dash.development.base_component import Component

from gradcanary.display.verdict import verdict
from gradcanary_dashboard.address.run import run_url
from gradcanary_dashboard.address.runs import GROUPS, MAX_TEXT, PER_PAGE, SORTS, STATES, Listing
from gradcanary_dashboard.analysis.arrays import decode
from gradcanary_dashboard.components import banners, elements, forms, share_bar, static
from gradcanary_dashboard.figures import palette
from gradcanary_dashboard.figures.sparkline import HEIGHT, HIGH, LOW, WIDTH, sparkline
from gradcanary_dashboard.text import numbers

COLOURS = {"critical": palette.RED, "warning": "#e8890c", "information": palette.BLUE}
"""Of the sparklines of runs that are not well; the others are grey."""

SLOTS = {"runs": static.TREES, "runs-head": "className", "runs-csv": "href", "runs-archive": "children"}
"""Id and property of each slot that a refresh fills."""

HIDDEN, SHOWN = "runs-head hidden", "runs-head"

NEVER_FOLDED = ("live", "stale")
"""States of a run whose first step may still come."""

_LINE = (
    "The largest gradient among the weakest 5 % of the parameters, over the life of the run. Every row has this scale, "
    "which is logarithmic; the dashed line is the threshold of the run"
)


@dataclass(frozen=True)
class Column:
    """A column of the table; ``sort`` is the order that its head leads to."""

    key: str
    head: str
    sort: str | None = None
    title: str | None = None


COLUMNS = (
    Column("name", "Run", "name"),
    Column("worst", "Worst incident", "worst", "With the number of parameters that it is about"),
    Column("loss", "Loss", "loss", "The last value of the metric loss"),
    Column("step", "Step", "step"),
    Column("duration", "Duration", "duration", "From the first request of the run to its last one"),
    Column("seen", "Last seen", "last_seen", "The time of the last request of the run"),
    Column("host", "Host", None, "Where it was started last"),
    Column("sums", "Accumulators", None, "The dtype that gradients are summed in"),
    Column("line", f"Gradient 1e{LOW:.0f} to {10**HIGH:.0f}"),
)
"""Those after the tick and the state."""

OPTIONAL = {
    "tags": "Tags and note",
    **{column.key: column.head for column in COLUMNS[2:-1]},
    "line": "Gradient",
}
"""What can be hidden: ``assets/js/runs.js`` remembers that in the browser."""


def frame(_place: Mapping[str, str], contents: Mapping[str, Any]) -> list[Any]:
    """Return the page: its heading with the filter, and what is done with many runs, stay; a refresh fills the list."""
    return [
        html.Div(
            [html.H1("Runs"), _choices(contents.get("listing", Listing()), _takeaway(contents))],
            id="runs-head",
            className=contents.get("runs-head", SHOWN),
        ),
        forms.answer("runs-answer"),
        static.slot("runs", contents.get("runs")),
        _bulk(contents),
        elements.page_state("runs", contents.get("shown")),
    ]


def fill(
    answer: Mapping[str, Any],
    attention: Mapping[str, Any] | None,
    listing: Listing,
    silent: Sequence[Mapping[str, Any]] = (),
    *,
    first: Component | None = None,
) -> dict[str, Any]:
    """Return the contents: failing endpoints and a row per run, or ``first`` before the first run.

    ``answer`` is a page of runs, ``attention`` one of those with a section above the others, None where it has none.
    """
    unheard = banners.failing_endpoints(silent)
    contents = {
        "listing": listing,
        "runs-csv": share_bar.runs_url(listing.url(after=None)),
        "runs-archive": "Take out of the archive" if listing.is_archived else "Archive",
    }
    if first is not None:
        return {**contents, "runs-head": HIDDEN, "runs": static.encode([*unheard, first])}
    folded = [run for run in answer["runs"] if run["step"] is None and run["state"] not in NEVER_FOLDED]
    others = [run for run in answer["runs"] if run not in folded]
    section = _section(attention, listing)
    bodies = [*section, *_bodies(others, listing, beside=bool(section))]
    table = html.Table([_heads(listing), *bodies], className="runs", role="table", **_label("Runs"))
    shown: list[Component] = [table]
    if not bodies:
        shown = [] if folded else [_nothing(listing)]
    shown = [*unheard, *shown, *_folded(folded, listing, is_open=not bodies), *_pages(listing, answer["next"])]
    return {**contents, "runs-head": SHOWN, "runs": static.encode(shown)}


# ---- above the table


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
    groups = [("", "no groups"), *((group, f"by {group}") for group in GROUPS)]
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
            _select("sort", "Order", sorts, "" if listing.sort == "last_seen" else listing.sort, "reverse"),
            _select("group", "Groups", groups, listing.group or ""),
            _columns(),
            archive,
            takeaway,
        ],
        className="list-choices",
    )


def _takeaway(contents: Mapping[str, Any]) -> html.A:
    words = "Every run of the list, also those of the pages that follow"
    return share_bar.csv_link("runs-csv", contents.get("runs-csv", share_bar.runs_url("/")), words)


def _columns() -> html.Details:
    """Return the list of columns to show; it is drawn without Dash, which would keep the ticks as its own."""
    ticks = [html.Label([_tick("column", key), words]) for key, words in OPTIONAL.items()]
    listed = static.slot("columns", static.encode(ticks), role="group", **_label("Columns to show"))
    return html.Details([html.Summary("Columns", className="do"), listed], className="columns-to-show")


def _select(key: str, words: str, options: Sequence[tuple[str, str]], chosen: str, clears: str = "") -> html.Select:
    listed = [html.Option(text, value=value, selected=value == chosen or None) for value, text in options]
    return html.Select(listed, **_sets(key, clears), **_label(words))


def _sets(key: str, clears: str = "") -> dict[str, Any]:
    """Return the attributes of a control that sets a part of the address; another choice begins at its first page."""
    return elements.attributes(data_key=key, data_clears=f"after {clears}".strip())


def _label(words: str) -> dict[str, Any]:
    return elements.attributes(aria_label=words)


# ---- what is done with the runs that are ticked


def _bulk(contents: Mapping[str, Any]) -> html.Div:
    """Return the bar, which the style sheet shows while a run is ticked; ``assets/js/runs.js`` writes which."""
    most = "2 to 6 runs can be compared"
    compare = html.Button(
        [elements.icon("compare"), "Compare"], id="runs-compare", type="button", className="do", title=most
    )
    archive = html.Button(
        contents.get("runs-archive", "Archive"), id="runs-archive", type="button", className="do tone-plain"
    )
    tags = forms.form(
        forms.text("runs-tags", "Tags", placeholder="separated by commas"),
        html.Div(
            [forms.button("Add", "runs-tag-do", tone="main", sends=True), forms.button("Remove", "runs-untag-do")],
            className="yes-no",
        ),
    )
    tag = html.Details([html.Summary("Tag", className="do"), html.Div(tags, className="asked")], className="asking")
    question = (
        "All measurements and incidents of these runs are deleted, and nothing brings them back. What their agents "
        "still send is refused, and they stop sending; the trainings go on."
    )
    really = forms.form(
        forms.text("runs-delete-count", "How many runs are these?"),
        forms.button("Delete for ever", "runs-delete-do", tone="danger", sends=True),
    )
    leave = html.Button("Clear", id="runs-leave", type="button", className="do")
    count = html.B(id="runs-count", role="status")
    delete = forms.asking("Delete", question, really)
    inside = [count, compare, archive, tag, delete, leave, dcc.Store(id="runs-chosen", data=[])]
    return html.Div(inside, id="runs-bulk", className="bulk", role="group", **_label("With the runs that are ticked"))


# ---- the table


def _heads(listing: Listing, *, is_seen: bool = True) -> html.Thead:
    pick = [html.Label([_tick("pick-all", ""), _unseen("All runs in sight")])] if is_seen else [_unseen("Choose")]
    cells = [_head("pick", pick), _head("state", [_unseen("State")])]
    for column in COLUMNS:
        title = _LINE if column.key == "line" else column.title
        order = ("ascending" if _ascends(listing) else "descending") if column.sort == listing.sort else None
        inside: Any = column.head
        if column.sort is not None and is_seen:
            inside = dcc.Link(column.head, href=listing.sorted_by(column.sort).url(after=None))
        cells.append(_head(column.key, [inside], title=title, order=order if is_seen else None))
    return html.Thead(html.Tr(cells, role="row"), className=None if is_seen else "unseen")


def _head(key: str, inside: Sequence[Any], title: str | None = None, order: str | None = None) -> html.Th:
    held = {} if order is None else elements.attributes(aria_sort=order)
    return html.Th(list(inside), scope="col", role="columnheader", className=f"of-{key}", title=title, **held)


def _ascends(listing: Listing) -> bool:
    """Return True if the least is first: names and losses begin with it."""
    return (listing.sort in ("name", "loss")) != listing.is_reverse


def _section(attention: Mapping[str, Any] | None, listing: Listing) -> list[html.Tbody]:
    """Return the runs that ended or go on with a critical incident that nobody acknowledged."""
    if attention is None or not attention["runs"]:
        return []
    runs = attention["runs"]
    why: list[Any] = [html.Span("critical, and not acknowledged", className="dim")]
    if attention["next"] is not None:
        why.append(dcc.Link("See all of them", href=replace(listing, needs_attention=True).url(after=None)))
    count = numbers.integer(len(runs)) if attention["next"] is None else f"over {numbers.integer(len(runs))}"
    return [_body("Needs attention", count, runs, *why, tone="attention")]


def _bodies(runs: Sequence[Mapping[str, Any]], listing: Listing, *, beside: bool) -> Iterator[html.Tbody]:
    """Return the runs in their groups, with a heading unless nothing else is in the table."""
    if listing.group is None and runs:
        heading = "All others" if beside else None
        yield _body(heading, numbers.integer(len(runs)), runs)
    if listing.group is not None:
        for name, members in groups(runs, listing.group).items():
            yield _body(name, numbers.integer(len(members)), members)


def groups(runs: Sequence[Mapping[str, Any]], by: str) -> dict[str, list[Mapping[str, Any]]]:
    """Return the runs by state, tag or host, and those without one last; a run with two tags is in two groups."""
    without = {"tag": "no tag", "host": "unknown host"}.get(by, "")
    found: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        names = run["tags"] if by == "tag" else [run[by]]
        for name in names or [None]:
            found.setdefault(name or without, []).append(run)
    ranks = {state: rank for rank, state in enumerate(STATES)} if by == "state" else {}
    return dict(sorted(found.items(), key=lambda item: (item[0] == without, ranks.get(item[0], 0), item[0].lower())))


def _body(
    heading: str | None, count: str, runs: Sequence[Mapping[str, Any]], *more: Component, tone: str = ""
) -> html.Tbody:
    title = []
    if heading is not None:
        words = html.Th([html.B(heading), html.Span(count, className="dim"), *more], scope="rowgroup", role="cell")
        title = [html.Tr(words, role="row", className="group-head")]
    return html.Tbody([*title, *(_row(run) for run in runs)], role="rowgroup", className=tone, **_keyed(heading))


def _folded(runs: Sequence[Mapping[str, Any]], listing: Listing, *, is_open: bool) -> list[html.Details]:
    """Return the runs without a step, closed unless there are no others."""
    if not runs:
        return []
    words = f"{numbers.plural(len(runs), 'run')} without a step"
    rows = html.Tbody([_row(run) for run in runs], role="rowgroup")
    table = html.Table([_heads(listing, is_seen=False), rows], className="runs", role="table", **_label(words))
    return [html.Details([html.Summary(words), table], className="folded", open=is_open)]


def _row(run: Mapping[str, Any]) -> html.Tr:
    tone, text = verdict(run).tone, verdict(run).text
    cells: dict[str, Any] = {
        "pick": html.Label([_tick("pick", run["run"]), _unseen(f"Choose {run['run']}")]),
        "state": html.Span(
            [elements.icon(elements.RUN_STATES[run["state"]]), _unseen(run["state"])],
            className=f"state state-{run['state']}",
            title=run["state"],
        ),
        "name": [dcc.Link(run["run"], href=run_url(run["run"]), title=run["run"]), *_words(run)],
        "worst": _worst(run, tone, text),
        "loss": _loss(run["loss"]),
        "step": html.Span(numbers.integer(run["step"]), title=run["last_step_at"] and f"at {run['last_step_at']}"),
        "duration": numbers.duration(max(1, _seconds(run))),
        "seen": elements.moment(run["last_seen"]),
        "host": html.Span(run["host"] or numbers.NOTHING, title=run["host"]),
        "sums": html.Span(_sums(run), title=numbers.dtypes(run["accumulators"])),
        "line": _line(run, tone),
    }
    tds = [html.Td(inside, role="cell", className=f"of-{key}") for key, inside in cells.items()]
    return html.Tr(tds, role="row", className=f"run tone-{tone}", **_keyed(run["run"]))


def _words(run: Mapping[str, Any]) -> list[html.Span]:
    """Return tags, with links to the runs that have them, and the first line of the note."""
    tags = [dcc.Link(tag, href=Listing(text=tag).url(after=None), className="tag") for tag in run["tags"]]
    note = run["note"].strip()
    line = [html.Span(note.splitlines()[0], className="note", title=note)] if note else []
    return [html.Span([*tags, *line], className="words of-tags")] if tags or line else []


def _worst(run: Mapping[str, Any], tone: str, text: str) -> list[Any]:
    """Return the worst incident, which leads to its page, with the button to acknowledge; else the verdict."""
    worst = run["worst_incident"]
    if worst is None:
        short = {"quiet": numbers.NOTHING, "information": "no optimizer step seen"}.get(tone, text)
        return [html.Span(short, className="dim", title=text)]
    count = f"{numbers.integer(worst['firing'])} of {numbers.integer(worst['layers'])}"
    words = [elements.icon("check" if worst["acked"] else elements.ICONS[worst["severity"]])]
    words += [html.Span(worst["rule"].replace("_", " "))]
    words += [html.Span(count, className="count")] if worst["firing"] else []
    said = f"{worst['severity']}{', acknowledged' if worst['acked'] else ''}: {text}"
    classes = f"badge tone-{worst['severity']}{' acked' if worst['acked'] else ''}"
    label = dcc.Link([*words, _unseen(said)], href=f"/incidents/{worst['id']}", className=classes, title=said)
    return [label, *([_ack(run)] if run["unacked"] else [])]


def _ack(run: Mapping[str, Any]) -> html.Button:
    number = str(run["unacked"][0])
    held = elements.attributes(data_do="ack", data_incident=number, aria_label=f"Ack #{number} of {run['run']}")
    return html.Button("Ack", type="button", className="do", **held)


def _loss(series: Mapping[str, Any] | None) -> html.Span | str:
    if series is None:
        return numbers.NOTHING
    if series["last"] is None:
        return html.Span("not finite", className="bad")
    return numbers.scientific(series["last"])


def _seconds(run: Mapping[str, Any]) -> float:
    begun, seen = (datetime.fromisoformat(run[key].replace("Z", "+00:00")) for key in ("created", "last_seen"))
    return (seen - begun).total_seconds()


def _sums(run: Mapping[str, Any]) -> str:
    """Return ``bf16``, or ``fp32 280, bf16 20``."""
    return numbers.dtypes(
        {numbers.SHORT.get(dtype) or str(dtype): count for dtype, count in run["accumulators"].items()}
    )


def _line(run: Mapping[str, Any], tone: str) -> list[html.Img]:
    levels = decode(run["sparkline"]) if run["sparkline"] else np.zeros(0, np.float32)
    known = levels[np.isfinite(levels)]
    enter = run["threshold"]["enter"]
    source = sparkline(levels, COLOURS.get(tone, palette.GREY), enter)
    if source is None:
        return []
    first, least, last = (numbers.scientific(10.0 ** float(level)) for level in (known[0], known.min(), known[-1]))
    words = f"gradient {first} at first, {least} at least, {last} at last; threshold {numbers.scientific(enter)}"
    return [html.Img(src=source, width=WIDTH, height=HEIGHT, alt=words, title=words)]


def _tick(name: str, value: str) -> dcc.Input:
    """Return a box to tick, in a list that the browser draws."""
    return dcc.Input(type="checkbox", className=name, value=value)  # type: ignore[arg-type]  # for Dash it is another


def _unseen(words: str) -> html.Span:
    return html.Span(words, className="unseen")


def _keyed(thing: object) -> dict[str, Any]:
    """Return the attribute by which an element stays that of one run or group."""
    return elements.attributes(data_key=str(thing))


# ---- around the table


def _nothing(listing: Listing) -> html.P:
    """Return the reason why no run is listed, and a link to other runs."""
    if listing.needs_attention:
        return html.P(["No run needs attention. ", dcc.Link("See all runs", href="/")], className="dim")
    which = " that is not in the archive" if not listing.is_archived else " in the archive"
    why: list[Any] = [f"There is no {listing.state or ''} run".replace("  ", " "), which]
    if listing.text:
        why += [" with ", html.Code(listing.text), " in its name, its tags or its note"]
    words = "Look among the others." if listing.is_archived else "Look in the archive."
    elsewhere = replace(listing, is_archived=not listing.is_archived).url(after=None)
    return html.P([*why, ". ", dcc.Link(words, href=elsewhere)], className="dim")


def _pages(listing: Listing, following: str | None) -> list[html.Nav]:
    back = [] if listing.after is None else [dcc.Link("Back to the first", href=listing.url(after=None))]
    if listing.needs_attention:
        back.append(dcc.Link("All runs", href=replace(listing, needs_attention=False).url(after=None)))
    on = [] if following is None else [dcc.Link(f"Next {PER_PAGE}", href=listing.url(after=following))]
    if not back and not on:
        return []
    return [html.Nav([*back, *on], className="pages", **_label("Pages of the list"))]
