"""The client of the collector's API, with conditional requests."""

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
from pathlib import Path
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
"""A change may take longer than a read: a test message waits 10 s for its receiver, a deleted run for its rows."""


CREDENTIALS = ("authorization", "cookie")
_reader: ContextVar[Mapping[str, str]] = ContextVar("reader", default={})  # noqa: B039 -- never changed

FRAMED = "gradcanary-framed"
"""The header of a request by a page inside a frame (``assets/js/refresh.js``): the page around it may hide what a click
changes."""

NOT_IN_A_FRAME = "Inside another page nothing is changed here. Open this page by itself."

_is_framed: ContextVar[bool] = ContextVar("is_framed", default=False)


@contextmanager
def as_reader(headers: Mapping[str, str]) -> Iterator[None]:
    """Send the credentials in these headers with all requests inside the block, also from threads that it starts.

    For a page inside a frame there are no changes.
    """
    token = _reader.set({name: headers[name] for name in CREDENTIALS if name in headers})
    framed = _is_framed.set(FRAMED in headers)
    try:
        yield
    finally:
        _reader.reset(token)
        _is_framed.reset(framed)


_asked: ContextVar[dict[str, Answer] | None] = ContextVar("asked", default=None)


@contextmanager
def one_answer_per_question() -> Iterator[None]:
    """Send the same request only once inside the block: all parts of a page are of the same moment."""
    token = _asked.set({})
    try:
        yield
    finally:
        _asked.reset(token)


@dataclass(frozen=True)
class Answer:
    """A JSON body, which callers must not change, and its version: equal for equal bodies."""

    body: Any
    version: str


@dataclass(frozen=True)
class _Kept:
    """An answer, its ETag and the bytes of its body."""

    etag: str
    answer: Answer
    size: int


class Collector:
    """One collector; thread-safe. All tabs share the answers that are kept.

    ``public_url`` is the address that people use. Requests have a ``token``, or with ``as_reader`` the credentials of
    the reader of the page (:func:`as_reader`). A kept answer is used only after the collector answered 304 to these
    credentials.
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
        # trust_env: a proxy of the environment must not be between a page and its collector.
        # The expiry: uvicorn drops a connection that is idle for 5 s; such a connection must not be used again.
        limits = httpx.Limits(keepalive_expiry=2.0)
        self._http = httpx.Client(
            base_url=self.url + API,
            timeout=timeout_s,
            trust_env=False,
            limits=limits,
            headers=_packing(self.url),
            verify=trusted or self.url.startswith("https:"),  # reading the authorities takes a fifth of the start
        )
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._kept_bytes = 0
        self._endpoints: tuple[float, Answer | None] = (0.0, None)
        self._lock = threading.Lock()

    def runs(self, **query: str | int | Sequence[str] | None) -> Answer:
        """Return a page of runs, the last seen first."""
        return self._get("/runs", **query)

    def run(self, run: str, part: str = "", **query: str | int | Sequence[str] | None) -> Answer:
        """Return a run, or a part of it: layers, heatmap, series, metrics."""
        path = _path(run)
        return self._get(f"{path}/{part}" if part else path, **query)

    def incidents(self, **query: str | int | Sequence[str] | None) -> Answer:
        """Return incidents, newest first or by ``sort``; the first ``detailed`` with layers and deliveries."""
        return self._get("/incidents", **query)

    def incident(self, number: int) -> Answer:
        """Return one incident with its layers and deliveries."""
        return self._get(f"/incidents/{number}")

    def silences(self) -> Answer:
        """Return the active silences."""
        return self._get("/silences")

    def rules(self) -> Answer:
        """Return the rules that the collector applies."""
        return self._get("/rules")

    def endpoints(self) -> Answer:
        """Return the endpoints as of at most 10 s ago: the list of runs shows them, and they change rarely."""
        with self._lock:
            asked, answer = self._endpoints
        if answer is None or time.monotonic() - asked > ENDPOINTS_FOR_S:
            answer = self._get("/endpoints")
            with self._lock:
                self._endpoints = (time.monotonic(), answer)
        return answer

    def ask(self, path: str, **query: str | int | Sequence[str] | None) -> Answer:
        """Return the answer of any other path."""
        return self._get(path, **query)

    def change(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> object:
        """Send a change by the reader; return its JSON, None without a body. Raises DashboardError."""
        if _is_framed.get():
            raise RefusedError(NOT_IN_A_FRAME)
        request = self._http.build_request(method, path, json=body, timeout=CHANGE_S)
        request.headers.update(self._of_page())
        response = self._send(request)
        return self._read("", response).body if response.content else None

    @contextmanager
    def download(self, run: str, part: str, **query: str | int | Sequence[str] | None) -> Iterator[Iterator[bytes]]:
        """Yield a CSV file of a run in pieces, as it may be larger than memory; raises DashboardError."""
        params = {key: value for key, value in query.items() if value is not None}
        request = self._http.build_request("GET", f"{_path(run)}/{part}", params=params)
        request.headers.update(_reader.get() if self.as_reader else self._own)
        with self._streamed(request) as pieces:
            yield pieces

    @contextmanager
    def trial(self, text: str | None) -> Iterator[Iterator[bytes]]:
        """Yield the lines of a trial of rules, None = the rules in force, in pieces; raises DashboardError."""
        request = self._http.build_request("POST", "/rules/trials", json={"text": text}, timeout=CHANGE_S)
        request.headers.update(self._of_page())
        with self._streamed(request) as pieces:
            yield pieces

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _of_page(self) -> dict[str, str]:
        """Return the headers of a change. It comes from a page of this server: ``Documents`` has checked that."""
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
        """Raise UnreachableError for errors of the connection."""
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


def trust_only(chain: str | Path) -> ssl.SSLContext:
    """Return a context that accepts the certificate of this file and no other, under any name."""
    context = ssl.create_default_context(cafile=str(chain))
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.check_hostname = False
    return context


def _path(run: str) -> str:
    """Return the path of a run. A name of dots only, which would be taken for a folder, has them quoted."""
    return f"/runs/{quote(run, safe='') if run.strip('.') else run.replace('.', '%2E')}"


def _packing(url: str) -> dict[str, str]:
    """Return the header for compression: none on the same machine, where it would only cost CPU on both sides."""
    is_here = urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")
    return {"accept-encoding": "identity"} if is_here else {}


def _reason(response: httpx.Response) -> str:
    """Return the collector's message about a refusal."""
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return "The collector does not take this question."
