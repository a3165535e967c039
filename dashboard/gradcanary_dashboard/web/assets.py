"""Files of the pages: our scripts as one, our style sheets as one, and each file packed once, not for each visit."""

from __future__ import annotations

import re
import zlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from http import HTTPStatus
from pathlib import Path
from urllib.parse import quote

from fastapi import FastAPI, Response
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gradcanary_dashboard.web.threads import FILES, in_thread

PLOTLY = "vendor/plotly-cartesian-4.1.1.min.js"
"""The part of Plotly that draws on two axes: a third of the whole. A path below ``assets/``."""

SCRIPTS_IN_ORDER = (
    "dash_private",
    "plotly_private",
    "observer",
    "address",
    "axis",
    "zoom",
    "refresh",
    "static",
    "figures",
    "crosshair",
    "heatmap",
    "panels",
    "gradcanary",
    "forms",
    "incidents",
    "rules",
    "runs",
    "keys",
    "sharing",
)
"""The scripts of ``assets/js``, each in a block of its own. A script stands after those from which it takes functions
as it is loaded. The first one is in the document itself, the others are one file."""

SHEETS_IN_ORDER = (
    "compare",
    "figures",
    "forms",
    "gradcanary",
    "incidents",
    "runs",
    "settings",
    "narrow",
    "access",
)
"""The style sheets of ``assets/css``. Of two rules of the same weight the later one holds."""

YEAR = "max-age=31536000"
KEPT = f"private, {YEAR}, immutable"
"""Of a file whose address changes when it does: browsers ask once. Not public: a proxy would show it to strangers."""

PACKED_FROM = 1_000
"""Bytes of a file that is sent as it is."""

MOST = 64
"""CompressedAssets files that are remembered; a page needs twelve."""

ASSETS = Path(__file__).parent.parent / "assets"


@dataclass(frozen=True)
class Bundle:
    """Files that are asked for as one; ``path`` changes when they do."""

    path: str
    body: bytes
    media_type: str

    @classmethod
    def of(cls, names: Sequence[str], ending: str, media_type: str, before: bytes = b"") -> Bundle:
        """Return the files with these names and this ending, one after the other, ``before`` in front."""
        body = b"\n".join([before, *((ASSETS / ending / f"{name}.{ending}").read_bytes() for name in names)])
        return cls(f"/assets/pages-{blake2b(body, digest_size=8).hexdigest()}.{ending}", body, media_type)


def _icons() -> bytes:
    """Return a rule for each symbol of ``icons.svg``: the shape of a mask, so that an icon has its text's colour."""
    symbols = re.findall(r'<symbol id="([\w-]+)"(.*?)</symbol>', (ASSETS / "icons.svg").read_text("utf-8"))
    shapes = {
        name: quote(f'<svg xmlns="http://www.w3.org/2000/svg"{rest}</svg>', safe=" =/:") for name, rest in symbols
    }
    rules = [f""".icon-{name} {{ --shape: url('data:image/svg+xml,{shape}'); }}""" for name, shape in shapes.items()]
    return "\n".join(rules).encode()


FIRST_SCRIPT = '"use strict";\n' + (ASSETS / "js" / f"{SCRIPTS_IN_ORDER[0]}.js").read_text("utf-8")
SCRIPTS = Bundle.of(SCRIPTS_IN_ORDER[1:], "js", "text/javascript", b'"use strict";')
SHEETS = Bundle.of(SHEETS_IN_ORDER, "css", "text/css", _icons())


def register(server: FastAPI) -> None:
    """Serve the bundles. To be called before Dash, whose routes answer every path."""
    for bundle in (SCRIPTS, SHEETS):
        server.add_api_route(bundle.path, _answering(bundle), include_in_schema=False)


class CompressedAssets:
    """Answers what browsers keep for a year, packed by the first visit alone: of Plotly that takes 40 ms."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._known: dict[str, tuple[Message, bytes]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request for a file."""
        path, packs = scope["path"], "gzip" in Headers(scope=scope).get("accept-encoding", "")
        known = self._known.get(path) if packs and scope["method"] == "GET" else None
        start, body = known or await self._asked(scope, receive)
        if known is None and packs and _is_kept(start) and len(body) >= PACKED_FROM:
            start, body = await in_thread(FILES, _packed, start, body)
            self._remember(path, start, body)
        await send({**start, "headers": list(start["headers"])})  # others write into them
        await send({"type": "http.response.body", "body": body})

    async def _asked(self, scope: Scope, receive: Receive) -> tuple[Message, bytes]:
        starts: list[Message] = []
        pieces: list[bytes] = []

        async def hearing(message: Message) -> None:
            if message["type"] == "http.response.start":
                starts.append(message)
            else:
                pieces.append(message.get("body", b""))

        await self._app(scope, receive, hearing)
        [start] = starts
        headers = MutableHeaders(raw=start["headers"])
        # What Dash keeps for a year has its version in its address.
        if start["status"] == HTTPStatus.OK and (_is_ours(scope["path"]) or YEAR in headers.get("cache-control", "")):
            headers["cache-control"] = KEPT
            headers.add_vary_header("Accept-Encoding")
        return start, b"".join(pieces)

    def _remember(self, path: str, start: Message, body: bytes) -> None:
        self._known[path] = start, body
        if len(self._known) > MOST:
            del self._known[next(iter(self._known))]


def _is_ours(path: str) -> bool:
    """Tell whether an address is that of a file of ours as it is now."""
    return path in (SCRIPTS.path, SHEETS.path, f"/assets/{PLOTLY}")


def _is_kept(start: Message) -> bool:
    return Headers(raw=start["headers"]).get("cache-control") == KEPT


def _packed(start: Message, body: bytes) -> tuple[Message, bytes]:
    packed = zlib.compress(body, 6, 31)
    headers = MutableHeaders(raw=list(start["headers"]))
    headers["content-encoding"] = "gzip"
    headers["content-length"] = str(len(packed))
    for name in ("accept-ranges", "etag", "last-modified"):  # they are of the bytes as they are on disk
        del headers[name]
    return {**start, "headers": headers.raw}, packed


def _answering(bundle: Bundle) -> Callable[[], Awaitable[Response]]:
    async def answer() -> Response:
        return Response(bundle.body, media_type=bundle.media_type, headers={"cache-control": KEPT})

    return answer
