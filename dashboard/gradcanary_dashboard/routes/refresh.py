"""The refresh of a page: each second and at a choice it requests the slots that changed, without Dash.

Dash would pass every request through all of its components, and check and write the answer on the event loop, where
batches arrive. Here a thread does that once, and leaves out what the page has: slots by their digest, and the columns
of a heatmap that were sent before.
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
from gradcanary_dashboard.collector.client import Collector, one_answer_per_question
from gradcanary_dashboard.collector.errors import DashboardError
from gradcanary_dashboard.components import banners
from gradcanary_dashboard.pages import registry
from gradcanary_dashboard.pages.registry import Contents, Page, Shown
from gradcanary_dashboard.web.threads import PAGES, in_thread

PATH = "/_refresh"
"""Takes ``{"path", "search", "shown"}``. A page's state has about 2 kB: too much for an address and the log of a proxy.
"""

SLOTS = "slots"
"""The key of ``shown`` with the digest of each slot that a page has."""

PACKED_FROM = 1_000
"""Bytes from which an answer is compressed."""

KEPT_PICTURES = 32
"""Heatmaps whose cells are kept, of half a megabyte at most: for 32 tabs that show different ones."""

KEPT_SHARE = 0.5
"""The share of its columns that a page must have for a heatmap to be sent as new columns."""


def register(server: FastAPI, collector: Collector) -> None:
    """Serve the refresh: 204 while a page has the latest contents, else the slots that changed.

    To be called before Dash, whose routes answer every path.
    """
    pictures = Pictures()

    @server.post(PATH, include_in_schema=False)
    async def refresh(request: Request) -> Response:
        packs = "gzip" in request.headers.get("accept-encoding", "")
        return await in_thread(PAGES, _answer, collector, pictures, await request.body(), packs)


def read_shown(shown: str) -> Shown:
    """Return the state of a page, empty if there is none or it cannot be read."""
    try:
        found = json.loads(shown or "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _answer(collector: Collector, pictures: Pictures, question: bytes, packs: bool) -> Response:
    try:
        path, chosen, text = _read_question(question)
    except (ValueError, KeyError, TypeError):
        return Response("A refresh is JSON with the texts path, search and shown.", HTTPStatus.BAD_REQUEST)
    page, arguments = registry.find(path)
    shown = read_shown(text)
    with one_answer_per_question():
        contents = _with_banner(shown, lambda: page.ask(collector, arguments, chosen, shown))
    if not contents:
        return Response(status_code=HTTPStatus.NO_CONTENT)
    headers = {"cache-control": "no-store", "vary": "accept-encoding"}
    body = _body(page, contents, shown, pictures)
    if packs and len(body) >= PACKED_FROM:
        # In this thread: a middleware would do it on the event loop.
        body, headers["content-encoding"] = zlib.compress(body, 1, 31), "gzip"
    return Response(body, media_type="application/json", headers=headers)


def _read_question(body: bytes) -> tuple[str, str, str]:
    """Return path, search and shown; raises ValueError, KeyError or TypeError."""
    question = orjson.loads(body)
    path, search, shown = (question[key] for key in ("path", "search", "shown"))
    if not all(isinstance(text, str) for text in (path, search, shown)):
        raise TypeError("they are texts")
    return path, search, shown


def _with_banner(shown: Shown, ask: Callable[[], Contents]) -> Contents:
    """Return the result of ``ask``; a failure shows the outage banner, the next success hides it."""
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
    """Return ``{"page", "slots": {id: value}, "kinds": {id: property}}`` with the slots that the page lacks."""
    before, state = shown.get(SLOTS), f"{page.name}-page-state"
    known: Mapping[str, Any] = before if isinstance(before, dict) else {}
    now: dict[str, str] = {}
    slots: dict[str, object] = {}
    for slot in page.slots:
        if slot not in contents:
            continue
        written = _encode(contents[slot])
        now[slot] = blake2b(written, digest_size=6).hexdigest()
        if known.get(slot) == now[slot]:
            continue
        if is_heatmap(contents[slot]):
            shorter = pictures.shortened(contents[slot], _text(known.get(slot)), now[slot])
            written = written if shorter is None else _encode(shorter)
        slots[slot] = orjson.Fragment(written)
    slots["outage"] = orjson.Fragment(_encode(contents["outage"]))
    slots[state] = json.dumps({**json.loads(contents["shown"]), SLOTS: {**known, **now}})
    kinds = {**page.slots, "outage": "children", state: "data-shown"}
    return orjson.dumps({"page": page.name, "slots": slots, "kinds": {slot: kinds[slot] for slot in slots}})


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _encode(value: object) -> bytes:
    return orjson.dumps(value, default=_encode_component, option=orjson.OPT_NON_STR_KEYS)


def _encode_component(value: object) -> object:
    """Return a component of Dash as a dict for JSON; raises TypeError for anything else."""
    if isinstance(value, Component):
        return value.to_plotly_json()  # type: ignore[no-untyped-call]
    raise TypeError(f"{type(value).__name__} is not a part of a page")


class Pictures:
    """The cells that were sent last, by the digest of their figure; thread-safe."""

    def __init__(self) -> None:
        self._cells: OrderedDict[str, npt.NDArray[Any]] = OrderedDict()
        self._lock = threading.Lock()

    def shortened(self, figure: Mapping[str, Any], before: str | None, now: str) -> Mapping[str, Any] | None:
        """Return a heatmap for a page that has the one of digest ``before``; None if the whole must be sent.

        ``kept`` of its ``z`` is the number of columns that the page has; the others follow. Its cells stay here as
        ``now``.
        """
        trace = figure["data"][0]
        cells = read(trace["z"])
        known = self._swap(before, now, cells)
        if known is None or known.shape[0] != cells.shape[0]:
            return None
        most = min(known.shape[1], cells.shape[1])
        same = (known[:, :most] == cells[:, :most]).all(axis=0)
        kept = most if same.all() else int(np.argmin(same))
        if kept < KEPT_SHARE * cells.shape[1]:
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
    """Return True if a slot holds a heatmap with cells."""
    if not isinstance(value, Mapping) or not value.get("data"):
        return False
    trace = value["data"][0]
    return bool(trace.get("type") == "heatmap" and isinstance(trace.get("z"), Mapping))
