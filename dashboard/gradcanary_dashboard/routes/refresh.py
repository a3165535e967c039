"""What is new: what each page asks every second, and at a choice, apart from Dash.

Dash would tell all of its components of every question, and check and write out the answer on the event loop, where
batches arrive. Here all of that is done in a thread, once, and what the page has already is left out: slots by their
digest, and of a heatmap the columns that it was sent last. Its cells are compared, whatever they were made from.
"""

from __future__ import annotations

import json
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from hashlib import blake2b
from http import HTTPStatus
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
from dash.development.base_component import Component
from fastapi import FastAPI, Request, Response

from gradcanary_dashboard.analysis.arrays import encode, read
from gradcanary_dashboard.collector.client import Collector, asking_once
from gradcanary_dashboard.collector.errors import DashboardError
from gradcanary_dashboard.components import banners
from gradcanary_dashboard.pages import registry
from gradcanary_dashboard.pages.registry import Contents, Page, Shown
from gradcanary_dashboard.web.threads import PAGES, apart

HELD = "slots"
"""The key of ``shown`` that says what a page has in its slots: a digest of each."""

PACKED_FROM = 1_000
"""Bytes of an answer that is sent as it is."""

KEPT_PICTURES = 32
"""Pictures that are remembered, of half a megabyte at most: of so many tabs that show something else each."""

WORTH = 0.5
"""From this part of its columns on a picture is sent as what is new."""


def register(server: FastAPI, collector: Collector) -> None:
    """Serve ``/_news?path=&search=&shown=``: 204 while that page would be filled with the same again, else its slots.

    To be called before Dash, whose routes answer every path.
    """

    pictures = Pictures()

    @server.get("/_news", include_in_schema=False)
    async def news(request: Request, path: str, search: str, shown: str = "") -> Response:
        packs = "gzip" in request.headers.get("accept-encoding", "")
        return await apart(PAGES, _answer, collector, pictures, path, search, read_shown(shown), packs)


def read_shown(shown: str | None) -> Shown:
    """Return what a page holds in its attribute, empty where that is nothing or nonsense."""
    try:
        found = json.loads(shown or "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _answer(collector: Collector, pictures: Pictures, path: str, chosen: str, shown: Shown, packs: bool) -> Response:
    page, arguments = registry.find(path)
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
        return {"outage": banners.trouble(error), "shown": json.dumps({**shown, "down": True})}
    if contents:
        return {**contents, "outage": None}
    if not shown.get("down"):
        return {}
    return {"outage": None, "shown": json.dumps({**shown, "down": False})}


def _body(page: Page, contents: Contents, shown: Shown, pictures: Pictures) -> bytes:
    """Return ``{"page", "slots": {id: value}, "kinds": {id: property}}``: the slots that the page does not have."""
    before, heart = shown.get(HELD), f"{page.name}-heart"
    known: Mapping[str, Any] = before if isinstance(before, dict) else {}
    now: dict[str, str] = {}
    slots: dict[str, object] = {}
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
    slots[heart] = json.dumps({**json.loads(contents["shown"]), HELD: {**known, **now}})
    kinds = {**page.slots, "outage": "children", heart: "data-shown"}
    return orjson.dumps({"page": page.name, "slots": slots, "kinds": {slot: kinds[slot] for slot in slots}})


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _written(value: object) -> bytes:
    return orjson.dumps(value, default=_described, option=orjson.OPT_NON_STR_KEYS)


def _described(value: object) -> object:
    """Return a component of Dash as JSON knows it; whatever else there is raises TypeError."""
    if isinstance(value, Component):
        return value.to_plotly_json()  # type: ignore[no-untyped-call]
    raise TypeError(f"{type(value).__name__} is nothing that a page is made of")


class Pictures:
    """The cells that were sent last, by the digest of their figure; safe to share between threads."""

    def __init__(self) -> None:
        self._cells: OrderedDict[str, npt.NDArray[Any]] = OrderedDict()
        self._lock = threading.Lock()

    def shortened(self, figure: Mapping[str, Any], before: str | None, now: str) -> Mapping[str, Any] | None:
        """Return a heatmap for who has the one of the digest ``before``, None where it has to be sent as a whole.

        Its ``z`` says how many columns are ``kept``, and holds the others. It is remembered as ``now``.
        """
        trace = figure["data"][0]
        cells = read(trace["z"])
        known = self._swap(before, now, cells)
        if known is None or known.shape[0] != cells.shape[0]:
            return None
        most = min(known.shape[1], cells.shape[1])
        same = (known[:, :most] == cells[:, :most]).all(axis=0)
        kept = most if same.all() else int(np.argmin(same))
        if kept < WORTH * cells.shape[1]:
            return None
        shape = ", ".join(map(str, cells.shape))
        z = {**encode(cells[:, kept:]), "shape": shape, "kept": kept}
        return {**figure, "data": [{**trace, "z": z}, *figure["data"][1:]]}

    def _swap(self, before: str | None, now: str, cells: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
        with self._lock:
            known = None if before is None else self._cells.get(before)
            self._cells[now] = cells
            self._cells.move_to_end(now)
            while len(self._cells) > KEPT_PICTURES:
                self._cells.popitem(last=False)
            return known


def is_heatmap(value: object) -> bool:
    """Tell whether a slot holds a heatmap with cells."""
    if not isinstance(value, Mapping) or not value.get("data"):
        return False
    trace = value["data"][0]
    return bool(trace.get("type") == "heatmap" and isinstance(trace.get("z"), Mapping))
