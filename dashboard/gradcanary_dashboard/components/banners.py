"""What stands above a page: the collector does not answer, messages do not reach their endpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dash import dcc, html

from gradcanary_dashboard.collector.errors import DashboardError, UnreachableError
from gradcanary_dashboard.components import elements
from gradcanary_dashboard.text import numbers
from gradcanary_dashboard.text.deliveries import failure


def trouble(error: DashboardError) -> list[Any]:
    """Return the banner shown while the collector does not answer, or does not take what the page asks."""
    if isinstance(error, UnreachableError):
        words = f"{error} What you see is what it said last; this page goes on when it is back."
        return [elements.icon("warning"), html.Span(words, className="away")]
    return [elements.icon("warning"), f"This page cannot be filled: {error}"]


def failing_endpoints(endpoints: Sequence[Mapping[str, Any]]) -> list[html.Section]:
    """Return what stands above the runs: whom no message reaches, since when, and why."""
    if not endpoints:
        return []
    heading = html.H2(
        [
            elements.icon(elements.ICONS["warning"]),
            f"Messages do not reach {numbers.plural(len(endpoints), 'endpoint')}",
        ]
    )
    lines = html.Ul([html.Li([failure(each), " ", _way(each)]) for each in endpoints])
    return [html.Section([heading, lines], className="banner tone-warning")]


def _way(endpoint: Mapping[str, Any]) -> dcc.Link:
    return dcc.Link("Look at it", href=f"/settings/endpoints/{endpoint['id']}")
