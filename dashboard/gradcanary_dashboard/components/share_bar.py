"""What one takes along from a page: its address, its numbers as CSV, the way to compare (pictures: at the figures)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from dash import dcc, html
from dash.development.base_component import Component

from gradcanary_dashboard.address.comparison import CompareView, compare_url
from gradcanary_dashboard.address.run import View, run_url, search
from gradcanary_dashboard.components import elements


def of_run(run: str, contents: Mapping[str, Any], versus: Component, *more: Component) -> html.Div:
    """Return the row of a run's page, with the choice of another run; a refresh fills ``csv``."""
    table = csv_link("csv", contents.get("csv", csv_url(run, View())), "Every sample of the rows and steps in sight")
    words = "The address of what you see: steps, axis, rows, parameter, metrics and lines"
    return row(versus, copy_link(words), table, *more)


def of_layer(contents: Mapping[str, Any]) -> html.Div:
    """Return the row of a layer's page; a refresh fills ``layer-csv``."""
    words = "Every sample of all its stats, of the steps in sight"
    table = csv_link("layer-csv", contents.get("layer-csv"), words)
    return row(copy_link("The address of what you see: the parameter, its steps, the axis"), table)


def of_comparison(contents: Mapping[str, Any]) -> html.Div:
    """Return the row of a comparison; a refresh fills ``compare-csv``."""
    words = "Every sample of the curves below, a column per run, of the steps in sight"
    table = csv_link("compare-csv", contents.get("compare-csv"), words)
    return row(copy_link("The address of what you see: runs, parameter, stat, steps and rows"), table)


def of_incident(number: str, *more: Component) -> html.Div:
    """Return the row of an incident's page."""
    words = "The address of what you see: the incident, its steps, which parameters and in which order"
    table = csv_link("incident-csv", f"/_download/incident?number={number}", "Every parameter of the incident")
    return row(*more, copy_link(words), table)


def of_incidents(contents: Mapping[str, Any]) -> html.Div:
    """Return the row of the list of incidents; a refresh fills ``incidents-csv``."""
    words = "All incidents of this choice, with what they say"
    table = csv_link("incidents-csv", contents.get("incidents-csv", incidents_url("/incidents")), words)
    return row(copy_link("The address of what you see: which incidents"), table)


def row(*what: Component) -> html.Div:
    """Return what can be taken along from a page, beside its crumbs."""
    return html.Div(list(what), className="takeaway")


def copy_link(words: str) -> html.Button:
    """Return the button that copies the address of what is shown; ``assets/js/sharing.js`` knows it."""
    shown = [elements.icon("link"), html.Span("Copy link", className="word")]
    return html.Button(shown, type="button", className="do", title=words, **elements.attributes(data_share="address"))


def csv_link(slot: str, href: str | None, words: str, className: str = "do") -> html.A:  # noqa: N803 -- the name that Dash has
    """Return the link to a file of numbers; ``words`` say of which. A refresh fills the slot.

    Without an address it is no link, and is not seen: an empty one is that of the page.
    """
    told = elements.attributes(aria_label=f"CSV: {words}")
    inside: list[Any] = [elements.icon("save"), "CSV"]
    return html.A(inside, id=slot, href=href, title=words, className=className, download="", **told)


def csv_url(run: str, view: View, what: str = "", **more: str) -> str:
    """Return where numbers of a view are: the samples of its heatmap, or ``layer``, ``layers``."""
    path = f"/_download/{what}" if what else "/_download"
    return f"{path}?{urlencode({'run': run, **more, 'search': search(view)})}"


def compared_url(wanted: CompareView, what: str) -> str:
    """Return where numbers of a comparison are: ``compare``, or its ``differences``."""
    return f"/_download/{what}?{urlencode({'search': compare_url(wanted).partition('?')[2]})}"


def runs_url(listed: str) -> str:
    """Return where the runs of a list are, by its address."""
    return f"/_download/runs?{urlencode({'search': listed.partition('?')[2]})}"


def incidents_url(listed: str) -> str:
    """Return where the incidents of a list are, by its address."""
    return f"/_download/incidents?{urlencode({'search': listed.partition('?')[2]})}"


def run_settings_link(run: str) -> dcc.Link:
    """Return the link that leads here, for the pages of a run."""
    return dcc.Link("Edit", href=f"{run_url(run)}/settings", title="Name, note, tags, archive", className="do")
