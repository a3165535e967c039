"""Whether an asker has the same already: an ETag of what an answer depends on, told before anything is built."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping

import orjson
from fastapi import Request, Response


def answer(request: Request, depends: Iterable[object], build: Callable[[], Mapping[str, object]]) -> Response:
    """Return 304 to whom has the answer to this question, else what ``build`` returns, under a tag.

    ``depends`` is what differs when the answer does; how a part is printed is its value.
    """
    parts = [request.url.path, request.url.query, *map(str, depends)]
    tag = f'W/"{hashlib.sha256(chr(10).join(parts).encode()).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(orjson.dumps(build()), media_type="application/json", headers=headers)
