"""The trial of rules on the last runs: streams its progress to the page."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import closing

from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse

from gradcanary_dashboard.collector.client import Collector
from gradcanary_dashboard.collector.errors import DashboardError
from gradcanary_dashboard.pages.settings import rules as rules_page
from gradcanary_dashboard.web.streaming import open_stream
from gradcanary_dashboard.web.threads import CHANGES

PATH = "/_trial"
"""Takes the text of a rules.yaml, and answers lines of JSON: new contents of slots."""


def register(server: FastAPI, collector: Collector) -> None:
    """Serve ``/_trial``. To be called before Dash, whose routes answer every path."""

    @server.post(PATH, include_in_schema=False)
    async def try_rules(request: Request) -> Response:
        text = (await request.body()).decode(errors="replace")
        _, lines = await open_stream(
            CHANGES, lambda stack: (None, stack.enter_context(closing(_lines(collector, text))))
        )
        return StreamingResponse(lines, headers={"X-Accel-Buffering": "no", "Cache-Control": "no-store"})


def _lines(collector: Collector, text: str) -> Generator[bytes, None, None]:
    """Yield the contents of slots for each line of a trial; a refusal is a line, too."""
    rest = b""
    try:
        with collector.trial(text if text.strip() else None) as pieces:
            for piece in pieces:
                *whole, rest = (rest + piece).split(b"\n")
                for line in whole:
                    yield _line(rules_page.tried(json.loads(line)))
    except DashboardError as error:
        yield _line(rules_page.refused(error))


def _line(slots: dict[str, str]) -> bytes:
    return json.dumps(slots).encode() + b"\n"
