"""What one takes along from a page: its address, its numbers as CSV, the way to compare (pictures: at the figures)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from dash import dcc, html
from dash.development.base_component import Component

from gradcanary_dashboard import parts
from gradcanary_dashboard.compare_view import CompareView, compare_url
from gradcanary_dashboard.view import View, search


def of_run(run: str, contents: Mapping[str, Any], *more: Component) -> html.Div:
    """Return the row of a run's page; a refresh fills ``csv``."""
    words = "Every sample of the rows and steps in sight"
    table = html.A(
        [parts.icon("save"), "CSV"],
        id="csv",
        href=contents.get("csv", csv_url(run, View())),
        title=words,
        className="do",
        download="",
    )
    versus = dcc.Link(
        [parts.icon("compare"), "Compare with ..."], href=compare_url(CompareView((run,))), className="do"
    )
    return html.Div([versus, copy_link(), table, *more], className="takeaway")


def copy_link() -> html.Button:
    """Return the button that copies the address of what is shown; ``assets/sharing.js`` knows it."""
    shown = [parts.icon("link"), html.Span("Copy link", className="word")]
    words = "The address of what you see: steps, axis, rows, layer and lines"
    return html.Button(shown, type="button", className="do", title=words, **parts.attributes(data_share="address"))


def csv_url(run: str, view: View) -> str:
    """Return where the samples of a view are."""
    return f"/_csv?{urlencode({'run': run, 'search': search(view)})}"
