"""The body of a request as bytes, bounded while it arrives: a body is parsed only after its size is known."""

import zlib
from collections.abc import AsyncIterator

from starlette.requests import Request

from gradcanary_server.errors import RequestError
from gradcanary_server.requests import LIMITS

MAX_GZIP = 2**20
"""Bytes of a compressed body."""

MAX_INFLATED = 16 * 2**20
"""Bytes that a compressed body may become."""

MAX_DISCARDED = 128 * 2**20
"""Bytes of a refused body that are still taken off the wire, so that its sender reads the answer and not a reset."""


async def read(request: Request, *, gzip: bool = False) -> bytes:
    """Return the body, inflated where ``gzip`` is allowed and used; raises RequestError 400, 413 or 415."""
    try:
        encoding = _encoding(request, gzip=gzip)
        raw = await _collect(request, MAX_GZIP if encoding == "gzip" else LIMITS.max_body)
    except RequestError:
        await _discard(request)
        raise
    return inflate(raw) if encoding == "gzip" else raw


def inflate(raw: bytes) -> bytes:
    """Return the content of one gzip member, stopping before it outgrows MAX_INFLATED."""
    stream = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        inflated = stream.decompress(raw, MAX_INFLATED + 1)
    except zlib.error as error:
        raise RequestError(400, "invalid_gzip", "The body is not gzip.") from error
    if len(inflated) > MAX_INFLATED:
        raise _too_large(MAX_INFLATED, "inflated bytes")
    if not stream.eof or stream.unused_data:
        raise RequestError(400, "invalid_gzip", "The gzip body is cut short or has something behind it.")
    return inflated


def _encoding(request: Request, *, gzip: bool) -> str:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise RequestError(415, "unsupported_media_type", "A body is application/json.", "Content-Type")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in (("identity", "gzip") if gzip else ("identity",)):
        allowed = "plain or gzip" if gzip else "not compressed"
        raise RequestError(415, "unsupported_encoding", f"This body is {allowed}.", "Content-Encoding")
    return encoding


async def _collect(request: Request, limit: int) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise _too_large(limit, "bytes")
    parts: list[bytes] = []
    size = 0
    async for part in _parts(request):
        size += len(part)
        if size > limit:
            raise _too_large(limit, "bytes")
        parts.append(part)
    return b"".join(parts)


async def _parts(request: Request) -> AsyncIterator[bytes]:
    # request.stream() cannot be taken up again after an error, which _discard does.
    more = not request.scope.get("gradcanary.body_ended", False)
    while more:
        message = await request.receive()
        more = message["type"] == "http.request" and message.get("more_body", False)
        request.scope["gradcanary.body_ended"] = not more
        if message["type"] == "http.disconnect":
            raise RequestError(400, "cut_short", "The sender hung up in the middle of the body.")
        yield message.get("body", b"")


async def _discard(request: Request) -> None:
    size = 0
    async for part in _parts(request):
        size += len(part)
        if size > MAX_DISCARDED:
            return


def _too_large(limit: int, unit: str) -> RequestError:
    return RequestError(413, "too_large", f"A body has at most {limit} {unit}.")
