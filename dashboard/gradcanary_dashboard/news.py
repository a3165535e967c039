"""What is new: what each page asks every second, and at a choice, apart from Dash.

Dash would tell all of its components of every question, and check and write out the answer on the event loop, where
batches arrive. Here all of that is done in a thread, once, and what the page has already is left out.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from hashlib import blake2b
from http import HTTPStatus
from typing import Any

import orjson
from dash.development.base_component import Component
from fastapi import FastAPI, Request, Response

from gradcanary_dashboard import pages, shell
from gradcanary_dashboard.client import Collector, asking_once
from gradcanary_dashboard.errors import DashboardError
from gradcanary_dashboard.pages import Contents, Page, Shown
from gradcanary_dashboard.pictures import Pictures, is_heatmap
from gradcanary_dashboard.threads import PAGES, apart

HELD = "slots"
"""The key of ``shown`` that says what a page has in its slots: a digest of each."""

PACKED_FROM = 1_000
"""Bytes of an answer that is sent as it is."""


def register(server: FastAPI, collector: Collector) -> None:
    """Serve ``/_news?path=&search=&shown=``: 204 while that page would be filled with the same again, else its slots.

    To be called before Dash, whose routes answer every path.
    """

    pictures = Pictures()

    @server.get("/_news", include_in_schema=False)
    async def news(request: Request, path: str, search: str, shown: str = "") -> Response:
        packs = "gzip" in request.headers.get("accept-encoding", "")
        return await apart(PAGES, _answer, collector, pictures, path, search, read(shown), packs)


def read(shown: str | None) -> Shown:
    """Return what a page holds in its attribute, empty where that is nothing or nonsense."""
    try:
        found = json.loads(shown or "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _answer(collector: Collector, pictures: Pictures, path: str, chosen: str, shown: Shown, packs: bool) -> Response:
    page, arguments = pages.find(path)
    with asking_once():
        contents = _healing(shown, lambda: page.ask(collector, arguments, chosen, shown))
    if not contents:
        return Response(status_code=HTTPStatus.NO_CONTENT)
    headers = {"cache-control": "no-store", "vary": "accept-encoding"}
    body = _body(page, contents, shown, pictures)
    if packs and len(body) >= PACKED_FROM:
        # Here and not behind the route, where it would be done on the event loop.
        body, headers["content-encoding"] = zlib.compress(body, 1, 31), "gzip"
    return Response(body, media_type="application/json", headers=headers)


def _healing(shown: Shown, ask: Callable[[], Contents]) -> Contents:
    """Return what ``ask`` returns, with the outage banner put up when it fails and taken down when it is back."""
    try:
        contents = ask()
    except DashboardError as error:
        return {"outage": shell.trouble(error), "shown": json.dumps({**shown, "down": True})}
    if contents:
        return {**contents, "outage": None}
    if not shown.get("down"):
        return {}
    return {"outage": None, "shown": json.dumps({**shown, "down": False})}


def _body(page: Page, contents: Contents, shown: Shown, pictures: Pictures) -> bytes:
    """Return ``{"page", "slots": {id: value}}`` with the slots that the page does not have as they are to be."""
    before = shown.get(HELD)
    known: Mapping[str, Any] = before if isinstance(before, dict) else {}
    now, slots = {}, {}
    for slot in page.slots:
        if slot not in contents:
            continue
        written = _written(contents[slot])
        now[slot] = blake2b(written, digest_size=6).hexdigest()
        if known.get(slot) == now[slot]:
            continue
        if is_heatmap(contents[slot]):
            shorter = pictures.shortened(contents[slot], _text(known.get(slot)), now[slot])
            written = written if shorter is None else _written(shorter)
        slots[slot] = orjson.Fragment(written)
    slots["outage"] = orjson.Fragment(_written(contents["outage"]))
    held = json.dumps({**json.loads(contents["shown"]), HELD: {**known, **now}})
    return orjson.dumps({"page": page.name, "slots": {**slots, f"{page.name}-heart": held}})


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _written(value: object) -> bytes:
    return orjson.dumps(value, default=_described, option=orjson.OPT_NON_STR_KEYS)


def _described(value: object) -> object:
    """Return a component of Dash as JSON knows it; whatever else there is raises TypeError."""
    if isinstance(value, Component):
        return value.to_plotly_json()  # type: ignore[no-untyped-call]
    raise TypeError(f"{type(value).__name__} is nothing that a page is made of")
