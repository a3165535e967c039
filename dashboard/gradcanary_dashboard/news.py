"""Whether there is anything new: what each page asks every second, apart from Dash, which would tell all of its
components of every question."""

from __future__ import annotations

import json

from fastapi import FastAPI, Response

from gradcanary_dashboard import pages
from gradcanary_dashboard.client import Collector
from gradcanary_dashboard.pages import Shown
from gradcanary_dashboard.threads import QUESTIONS, apart


def register(server: FastAPI, collector: Collector) -> None:
    """Serve ``/_news?path=&search=&shown=``: 204 while that page would be filled with the same again, else 200.

    To be called before Dash, whose routes answer every path.
    """

    @server.get("/_news", include_in_schema=False)
    async def news(path: str, shown: str = "", search: str | None = None) -> Response:
        is_news = await apart(QUESTIONS, pages.is_news, collector, path, read(shown), search)
        return Response(status_code=200 if is_news else 204)


def read(shown: str | None) -> Shown:
    """Return what a page holds in its attribute, empty where that is nothing or nonsense."""
    try:
        found = json.loads(shown or "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
