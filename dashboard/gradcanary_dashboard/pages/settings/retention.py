"""The page of retention: what is kept how long, how large the store is, and which runs make it so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dash import dcc, html

from gradcanary_dashboard.address.run import run_url
from gradcanary_dashboard.components import elements, static
from gradcanary_dashboard.pages.settings import frame as settings_frame
from gradcanary_dashboard.text import numbers

PAGE = "storage"

SLOTS = {"storage-facts": "children", "storage-runs": static.TREES}


def frame(_place: Mapping[str, str], contents: Mapping[str, Any]) -> list[Any]:
    """Return the page: what is kept, and the runs by their size."""
    return [
        *settings_frame.head("Retention"),
        elements.card("kept", html.Div(contents.get("storage-facts"), id="storage-facts"), title="What is kept"),
        elements.card(
            "run-sizes", static.slot("storage-runs", contents.get("storage-runs")), title="Runs, the largest first"
        ),
        elements.page_state(PAGE, contents.get("shown")),
    ]


def fill(storage: Mapping[str, Any]) -> dict[str, Any]:
    """Return the contents."""
    known = [
        ("Single samples", _samples(storage["raw_days"], storage["raw_until"])),
        ("Summaries", "minimum, mean and maximum of 8, 64, 512 … samples: as long as the run"),
        ("Incidents", "with their messages: as long as the run"),
        ("On disk", [f"{numbers.size(storage['bytes'])}, counted ", elements.moment(storage["counted"])]),
    ]
    return {"storage-facts": settings_frame.facts(known), "storage-runs": static.encode(_runs(storage))}


def _samples(raw_days: float | None, until: str | None) -> str | list[Any]:
    if raw_days is None:
        return "as long as the run; GRADCANARY_RAW_DAYS=30 at the collector's start would keep them for thirty days"
    said = f"{raw_days:g} days (GRADCANARY_RAW_DAYS), the newest ones longer"
    # Nobody can take back what goes by a clock that is wrong.
    return (
        said if until is None else [f"{said}; none go before ", elements.moment(until), ", when this clock is believed"]
    )


def _runs(storage: Mapping[str, Any]) -> list[Any]:
    if not storage["runs"]:
        return [html.P(["No run so far. ", elements.first_run_link()], className="dim")]
    rows = [html.Tr(_cells(each), **elements.attributes(data_key=each["run"])) for each in storage["runs"]]
    names = ("Run", "Size", "Last step", "Last heard of")
    heads = html.Thead(html.Tr([*(html.Th(name, scope="col") for name in names), html.Td()]))
    others = storage["others"]
    rest = f"and {numbers.plural(others['runs'], 'run')} more, {numbers.size(others['bytes'])}"
    more = [html.P(rest, className="dim")] if others["runs"] else []
    return [html.Table([heads, html.Tbody(rows)], className="sizes"), *more]


def _cells(run: Mapping[str, Any]) -> list[html.Td]:
    words = f"Name, note, archive or delete {run['run']}"
    archived = [html.Div([elements.icon("check"), " in the archive"], className="dim")] if run["archived"] else []
    return [
        html.Td([dcc.Link(run["run"], href=run_url(run["run"])), *archived], className="name"),
        html.Td(numbers.size(run["bytes"]), className="number"),
        html.Td(numbers.integer(run["step"]), className="number"),
        html.Td(elements.moment(run["last_seen"])),
        html.Td(dcc.Link("Edit or delete", href=f"{run_url(run['run'])}/settings", title=words)),
    ]
