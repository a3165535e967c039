"""HTTP bodies: requests read with a limit, answers as JSON with an ETag.

A body is parsed only after its size is known.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, TypeVar

import numpy as np
import orjson
import pybase64
from fastapi import Request, Response
from fastapi.routing import APIRoute
from numpy.typing import NDArray
from starlette.requests import ClientDisconnect
from typing_extensions import TypedDict

from gradcanary_server.auth.policy import Principal
from gradcanary_server.errors import RequestError, invalid
from gradcanary_server.validation import LIMITS, check_text, parse

Json = dict[str, object]
T = TypeVar("T")

MAX_GZIP_BYTES = 2**20
"""Limit of a compressed body."""

MAX_INFLATED_BYTES = 16 * 2**20
"""Limit of a compressed body after it was inflated."""

SECURITY_HEADERS = {
    # A page sets its own policy; any other answer loads nothing.
    "content-security-policy": "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    # Not no-referrer: with it browsers send "Origin: null" with a form.
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""Headers of every answer."""

TLS_HEADERS = {"strict-transport-security": "max-age=31536000"}
"""Sent from the port of TLS only: browsers apply it to every port of a host, and TensorBoard there may have no TLS."""


class Array(TypedDict):
    """An array: base64 of its little-endian bytes, rows first."""

    dtype: str
    shape: list[int]
    data: str


def encode_array(values: NDArray[np.generic]) -> Array:
    """Return an array as JSON, in base64."""
    packed = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    return {
        "dtype": values.dtype.name,
        "shape": list(values.shape),
        "data": pybase64.b64encode_as_string(packed.tobytes()),
    }


def select_keys(shape: type, values: Mapping[str, object]) -> Json:
    """Return the values of the keys of a TypedDict, in its order."""
    return {key: values[key] for key in shape.__annotations__}


class JsonRoute(APIRoute):
    """A route of FastAPI with a JSON body that has a limit; an empty body is an empty object.

    FastAPI alone would read a body of any size, and accept the text of a form or a lone surrogate.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return FastAPI's handler, called with a request whose body was read and parsed."""
        handle = super().get_route_handler()

        async def read_and_handle(request: Request) -> Response:
            return await handle(_ParsedRequest(request, await read_body(request) or b"{}"))

        return handle if self.body_field is None else read_and_handle


class _ParsedRequest(Request):
    """A request whose body was read and parsed."""

    def __init__(self, request: Request, raw: bytes) -> None:
        super().__init__(request.scope, request.receive)
        self._raw, self._value = raw, parse(raw)

    async def body(self) -> bytes:
        return self._raw

    async def json(self) -> object:
        return self._value


async def read_body(request: Request, *, gzip: bool = False) -> bytes:
    """Return a JSON body, inflated if ``gzip`` is allowed and used; raises RequestError 400, 413 or 415."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise RequestError(415, "unsupported_media_type", "A body is application/json.", "Content-Type")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in (("identity", "gzip") if gzip else ("identity",)):
        allowed = "plain or gzip" if gzip else "not compressed"
        raise RequestError(415, "unsupported_encoding", f"This body is {allowed}.", "Content-Encoding")
    if encoding == "gzip":
        return inflate(await read_bytes(request, MAX_GZIP_BYTES))
    return await read_bytes(request, LIMITS.max_body)


async def read_bytes(request: Request, limit: int) -> bytes:
    """Return a body of at most ``limit`` bytes; raises RequestError 400 or 413."""
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


def inflate(raw: bytes) -> bytes:
    """Return the content of one gzip member; stops at MAX_INFLATED_BYTES. Raises RequestError 400 or 413."""
    stream = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        inflated = stream.decompress(raw, MAX_INFLATED_BYTES + 1)
    except zlib.error as error:
        raise RequestError(400, "invalid_gzip", "The body is not gzip.") from error
    if len(inflated) > MAX_INFLATED_BYTES:
        raise _too_large(MAX_INFLATED_BYTES, "inflated bytes")
    if not stream.eof or stream.unused_data:
        raise RequestError(400, "invalid_gzip", "The gzip body is cut short or has something behind it.")
    return inflated


def _too_large(limit: int, unit: str) -> RequestError:
    return RequestError(413, "too_large", f"A body has at most {limit} {unit}.")


def json_response(value: object, headers: Mapping[str, str] | None = None) -> Response:
    """Return a value of dicts, lists and dataclasses as JSON."""
    return Response(orjson.dumps(value), media_type="application/json", headers=headers)


def png_response(picture: bytes, headers: Mapping[str, str]) -> Response:
    """Return a picture."""
    return Response(picture, media_type="image/png", headers=headers)


def etag_response(
    request: Request,
    parts: Iterable[object],
    build: Callable[[], T],
    answer: Callable[[T, Mapping[str, str]], Response] = json_response,
) -> Response:
    """Return 304 if the client has this answer already, else the ``answer`` of ``build()``.

    The ETag is made of the URL and the text of ``parts``, which differ when the answer does.
    """
    text = "\n".join([request.url.path, request.url.query, *map(str, parts)])
    tag = f'W/"{hashlib.sha256(text.encode()).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return answer(build(), headers)


def author_name(request: Request, given: str | None) -> str:
    """Return the author of a change: the given name, else that of the token; raises RequestError 422."""
    principal: Principal | None = request.state.asker
    if given is None and principal is not None and principal.token_id is not None:
        return principal.name
    if given is None:
        raise invalid("Say who you are: nobody signs in here.", "by")
    check_text(given, "by", 200, shortest=1)
    return given
