"""Whether there is anything new: what each page asks every second, apart from Dash, which would tell all of its
components of every question."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Response

from gradcanary_dashboard import layer_data, run_data, silent_endpoints
from gradcanary_dashboard.client import Collector
from gradcanary_dashboard.errors import DashboardError
from gradcanary_dashboard.view import Place, parse, place_of

Shown = Mapping[str, Any]
"""What a page was filled with: ``version``, ``search``, ``layer``, ``incidents`` (their version, while a message is on
its way), ``wanted``; ``down`` while it says that the collector does not answer."""


def register(server: FastAPI, collector: Collector) -> None:
    """Serve ``/_news?path=&shown=``: 204 while the page of that path would be filled with the same again, else 200.

    To be called before Dash, whose routes answer every path.
    """

    @server.get("/_news", include_in_schema=False)
    def news(path: str, shown: str = "") -> Response:
        return Response(status_code=200 if is_news(collector, path, read(shown)) else 204)


def is_news(collector: Collector, path: str, shown: Shown) -> bool:
    """Return whether the page has to be filled anew, which is so when that cannot be told."""
    place = place_of(path)
    try:
        if not shown or shown.get("down"):
            return True
        if place is None:
            return bool(shown.get("version") != runs_version(collector))
        return not is_shown(collector, place, shown.get("search"), shown)
    except DashboardError:
        return True


def read(shown: str | None) -> Shown:
    """Return what a page holds in its attribute, empty where that is nothing or nonsense."""
    try:
        found = json.loads(shown or "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def runs_version(collector: Collector) -> str:
    """Return what changes when the list of runs does."""
    return f"{collector.runs().version} {collector.incidents().version} {silent_endpoints.version(collector)}"


def is_shown(collector: Collector, place: Place, search: str | None, shown: Shown) -> bool:
    """Return whether the page of a run or layer shows what it would be filled with now."""
    now = (collector.run(place.run).version, search)
    return now == (shown.get("version"), shown.get("search")) and not _was_told(collector, place, shown)


def _was_told(collector: Collector, place: Place, shown: Shown) -> bool:
    """Return whether a delivery moved on since the page was filled; asks only while one is on its way."""
    if shown.get("incidents") is None:
        return False
    load = run_data if place.layer is None else layer_data
    _, version = load.load_incidents(collector, place.run, parse(shown.get("search")).incident)
    return bool(version != shown["incidents"])
