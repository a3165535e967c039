"""The body of a request as bytes, bounded while it arrives: a body is parsed only after its size is known."""

import zlib

from starlette.requests import ClientDisconnect, Request

from gradcanary_server.errors import RequestError
from gradcanary_server.requests import LIMITS

MAX_GZIP = 2**20
"""Bytes of a compressed body."""

MAX_INFLATED = 16 * 2**20
"""Bytes that a compressed body may become."""


async def read(request: Request, *, gzip: bool = False) -> bytes:
    """Return the body, inflated where ``gzip`` is allowed and used; raises RequestError 400, 413 or 415."""
    encoding = _encoding(request, gzip=gzip)
    raw = await collect(request, MAX_GZIP if encoding == "gzip" else LIMITS.max_body)
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


async def collect(request: Request, limit: int) -> bytes:
    """Return the body as it comes, of so many bytes at most; raises RequestError 400 or 413."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise _too_large(limit, "bytes")
    parts: list[bytes] = []
    size = 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > limit:
                raise _too_large(limit, "bytes")
            parts.append(part)
    except ClientDisconnect as error:
        raise RequestError(400, "cut_short", "The sender hung up in the middle of the body.") from error
    return b"".join(parts)


def _encoding(request: Request, *, gzip: bool) -> str:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise RequestError(415, "unsupported_media_type", "A body is application/json.", "Content-Type")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in (("identity", "gzip") if gzip else ("identity",)):
        allowed = "plain or gzip" if gzip else "not compressed"
        raise RequestError(415, "unsupported_encoding", f"This body is {allowed}.", "Content-Encoding")
    return encoding


def _too_large(limit: int, unit: str) -> RequestError:
    return RequestError(413, "too_large", f"A body has at most {limit} {unit}.")
