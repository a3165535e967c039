"""Endpoints that are told nothing because they failed: nobody else would say that nobody is told."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from dash import dcc, html

from gradcanary_dashboard import parts, wording
from gradcanary_dashboard.client import Collector

Endpoint = Mapping[str, Any]

FAILS_AFTER_S = 600.0
"""A receiver that restarts is back by then."""


def load(collector: Collector) -> list[Endpoint]:
    """Return the endpoints that their failures disabled, and those that fail now."""
    return [each for each in collector.endpoints().body["endpoints"] if _is_silent(each)]


def version(collector: Collector) -> str:
    """Return what changes when :func:`load` returns others."""
    said = json.dumps([_line(each) for each in load(collector)])
    return hashlib.sha256(said.encode()).hexdigest()[:16]


def banner(endpoints: Sequence[Endpoint]) -> list[html.Section]:
    """Return what stands above the runs: whom no message reaches, since when, and why."""
    if not endpoints:
        return []
    heading = html.H2([parts.icon(parts.ICONS["warning"]), f"Messages do not reach {_count(len(endpoints))}"])
    lines = html.Ul([html.Li([_line(each), " ", _way(each)]) for each in endpoints])
    return [html.Section([heading, lines], className="banner tone-warning")]


def _is_silent(endpoint: Endpoint) -> bool:
    if endpoint["state"] == "disabled" or endpoint["failing_since"] is None:
        return bool(endpoint["disabled_by"] == "failures")
    since, last = (datetime.fromisoformat(endpoint[key]) for key in ("failing_since", "last_failure"))
    return (last - since).total_seconds() >= FAILS_AFTER_S


def _line(endpoint: Endpoint) -> str:
    whom = " ".join(part for part in (endpoint["name"], endpoint["url"]) if part)
    if endpoint["state"] == "disabled":
        again = f"gradcanary endpoints set {endpoint['id']} --enable"
        return f"{whom} is disabled since {_moment(endpoint['since'])}: {endpoint['reason']}. Enable it: {again}"
    return f"{whom} fails since {_moment(endpoint['failing_since'])}: {endpoint['last_error']}"


def _way(endpoint: Endpoint) -> dcc.Link:
    return dcc.Link("Look at it", href=f"/settings/endpoints/{endpoint['id']}")


def _count(number: int) -> str:
    return wording.plural(number, "endpoint")


def _moment(text: str) -> str:
    return f"{text[:16].replace('T', ' ')} UTC"
