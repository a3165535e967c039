"""The collector's read API over HTTP, asking again only for what changed."""

from __future__ import annotations

import hashlib
import ssl
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import orjson

from gradcanary_dashboard.collector.errors import DeniedError, NotFoundError, RefusedError, UnreachableError

API = "/api/v1"
KEPT_BYTES = 32 * 2**20
"""Bytes of the answers that are kept for conditional requests: a heatmap has about half a megabyte, most have a few
kilobytes. A number of answers would be too few for many tabs, or too many for the memory."""

ENDPOINTS_FOR_S = 10.0

CHANGE_S = 30.0
"""A change may take longer than a question: a test message waits 10 s for its receiver, a deleted run for its rows."""


CREDENTIALS = ("authorization", "cookie")
_reader: ContextVar[Mapping[str, str]] = ContextVar("reader", default={})  # noqa: B039 -- never changed


@contextmanager
def reading_as(headers: Mapping[str, str]) -> Iterator[None]:
    """Ask, inside the block and in the threads that it starts, with the credentials of whoever sent these headers."""
    mark = _reader.set({name: headers[name] for name in CREDENTIALS if name in headers})
    try:
        yield
    finally:
        _reader.reset(mark)


_asked: ContextVar[dict[str, Answer] | None] = ContextVar("asked", default=None)


@contextmanager
def asking_once() -> Iterator[None]:
    """Ask the same question only once inside the block: what a page is filled with is told of one moment."""
    mark = _asked.set({})
    try:
        yield
    finally:
        _asked.reset(mark)


@dataclass(frozen=True)
class Answer:
    """A JSON body, which callers must not change, and a version that differs when the body does, and only then."""

    body: Any
    version: str


@dataclass(frozen=True)
class _Kept:
    """An answer, its ETag and the bytes of its body."""

    etag: str
    answer: Answer
    size: int


class Collector:
    """One collector; safe to share between threads, all tabs share its remembered answers.

    ``public_url`` is the address that people use. Questions are asked with a ``token``, or ``as_reader``: as whoever
    asks for the page (``reading_as``). The collector decides each time: a remembered answer is only given to whom it
    says that nothing changed.
    """

    def __init__(
        self,
        url: str,
        timeout_s: float = 10.0,
        *,
        token: str | None = None,
        as_reader: bool = False,
        public_url: str | None = None,
        trusted: ssl.SSLContext | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self._own = {} if token is None else {"authorization": f"Bearer {token}"}
        self.as_reader = as_reader
        self.public_url = public_url or self.url
        # trust_env: a proxy of the environment must not come between a page and the collector it was given.
        # The expiry: uvicorn drops a connection that is idle for 5 s; one that is about to go must not be used again.
        limits = httpx.Limits(keepalive_expiry=2.0)
        self._http = httpx.Client(
            base_url=self.url + API,
            timeout=timeout_s,
            trust_env=False,
            limits=limits,
            headers=_packing(self.url),
            verify=trusted or self.url.startswith("https:"),  # to read the authorities takes a fifth of the start
        )
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._kept_bytes = 0
        self._endpoints: tuple[float, Answer | None] = (0.0, None)
        self._lock = threading.Lock()

    def runs(self, **query: str | int | Sequence[str] | None) -> Answer:
        """Return a page of runs, the ones heard of last first."""
        return self._get("/runs", **query)

    def run(self, run: str, part: str = "", **query: str | int | Sequence[str] | None) -> Answer:
        """Return a run, or a part of it: layers, heatmap, series, metrics."""
        path = f"/runs/{quote(run, safe='')}"
        return self._get(f"{path}/{part}" if part else path, **query)

    def incidents(self, **query: str | int | Sequence[str] | None) -> Answer:
        """Return incidents without their layers and deliveries; newest first, or as ``sort`` says."""
        return self._get("/incidents", **query)

    def incident(self, number: int) -> Answer:
        """Return one incident with everything known about it."""
        return self._get(f"/incidents/{number}")

    def silences(self) -> Answer:
        """Return the silences in force."""
        return self._get("/silences")

    def rules(self) -> Answer:
        """Return the rules that the collector applies."""
        return self._get("/rules")

    def endpoints(self) -> Answer:
        """Return who is told of incidents, as it was 10 s ago at most: asked with the runs, it changes seldom."""
        with self._lock:
            asked, answer = self._endpoints
        if answer is None or time.monotonic() - asked > ENDPOINTS_FOR_S:
            answer = self._get("/endpoints")
            with self._lock:
                self._endpoints = (time.monotonic(), answer)
        return answer

    def ask(self, path: str, **query: str | int | Sequence[str] | None) -> Answer:
        """Return the answer to any other question."""
        return self._get(path, **query)

    def change(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> object:
        """Return the JSON that answers a change by the reader, None where there is none; raises DashboardError."""
        request = self._http.build_request(method, path, json=body, timeout=CHANGE_S)
        request.headers.update(self._of_page())
        response = self._send(request)
        return self._read("", response).body if response.content else None

    @contextmanager
    def download(self, run: str, part: str, **query: str | int | Sequence[str] | None) -> Iterator[Iterator[bytes]]:
        """Yield a CSV file of a run, piece by piece: it may be larger than the memory; raises DashboardError."""
        params = {key: value for key, value in query.items() if value is not None}
        request = self._http.build_request("GET", f"/runs/{quote(run, safe='')}/{part}", params=params)
        request.headers.update(_reader.get() if self.as_reader else self._own)
        with self._streamed(request) as pieces:
            yield pieces

    @contextmanager
    def trial(self, text: str | None) -> Iterator[Iterator[bytes]]:
        """Yield the lines of a trial of rules, or of those in force alone, in pieces; raises DashboardError."""
        request = self._http.build_request("POST", "/rules/trials", json={"text": text}, timeout=CHANGE_S)
        request.headers.update(self._of_page())
        with self._streamed(request) as pieces:
            yield pieces

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _of_page(self) -> dict[str, str]:
        """Return the headers of a change: the question that it answers came from a page of ours.

        That was checked where the question was let in (``Documents``, ``access``).
        """
        return {**(_reader.get() if self.as_reader else self._own), "sec-fetch-site": "same-origin"}

    @contextmanager
    def _streamed(self, request: httpx.Request) -> Iterator[Iterator[bytes]]:
        response = self._send(request, streams=True)
        try:
            if response.status_code != HTTPStatus.OK:
                with self._reached():
                    response.read()
                self._read("", response)
            yield self._pieces(response)
        finally:
            response.close()

    def _get(self, path: str, **query: str | int | Sequence[str] | None) -> Answer:
        request = self._http.build_request(
            "GET", path, params={key: value for key, value in query.items() if value is not None}
        )
        request.headers.update(_reader.get() if self.as_reader else self._own)
        key, asked = str(request.url), _asked.get()
        if asked is not None and key in asked:
            return asked[key]
        answer = self._ask(key, request)
        if asked is not None:
            asked[key] = answer
        return answer

    def _ask(self, key: str, request: httpx.Request) -> Answer:
        kept = self._recall(key)
        if kept is not None:
            request.headers["if-none-match"] = kept.etag
        response = self._send(request)
        if response.status_code == 304 and kept is not None:
            return kept.answer
        return self._read(key, response)

    def _send(self, request: httpx.Request, *, streams: bool = False) -> httpx.Response:
        with self._reached():
            return self._http.send(request, stream=streams)

    def _pieces(self, response: httpx.Response) -> Iterator[bytes]:
        with self._reached():
            yield from response.iter_bytes()

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """Raise UnreachableError for what goes wrong on the way."""
        try:
            yield
        except httpx.HTTPError as error:
            raise UnreachableError(f"The collector at {self.url} does not answer ({type(error).__name__}).") from error

    def _read(self, key: str, response: httpx.Response) -> Answer:
        if response.status_code in (401, 403):
            raise DeniedError(_reason(response))
        if response.status_code == 404:
            raise NotFoundError(f"The collector at {self.url} knows no {response.request.url.path.removeprefix(API)}.")
        if response.status_code in (400, 409, 413, 415, 422, 429):
            raise RefusedError(_reason(response))
        try:
            response.raise_for_status()
            body = orjson.loads(response.content)
        except (httpx.HTTPStatusError, ValueError) as error:
            raise UnreachableError(f"The collector at {self.url} answered {response.status_code}.") from error
        etag = response.headers.get("etag")
        answer = Answer(body, hashlib.sha256(response.content).hexdigest())
        if etag is not None and key:
            self._keep(key, _Kept(etag, answer, len(response.content)))
        return answer

    def _recall(self, key: str) -> _Kept | None:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def _keep(self, key: str, kept: _Kept) -> None:
        """Keep an answer, and drop those that were used longest ago as soon as all take too many bytes."""
        with self._lock:
            before = self._kept.pop(key, None)
            self._kept[key] = kept
            self._kept_bytes += kept.size - (0 if before is None else before.size)
            while self._kept_bytes > KEPT_BYTES:
                _, dropped = self._kept.popitem(last=False)
                self._kept_bytes -= dropped.size


def _packing(url: str) -> dict[str, str]:
    """Return how answers are packed: on the way through one machine not at all, which would only cost it twice."""
    is_here = urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")
    return {"accept-encoding": "identity"} if is_here else {}


def _reason(response: httpx.Response) -> str:
    """Return the collector's own words for why it refuses."""
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return "The collector does not take this question."
