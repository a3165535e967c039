"""How errors leave the collector: always as ``{"error": {"code", "message", "field"}}``, never as a stack trace."""

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.exceptions import HTTPException
from starlette.routing import Match

from gradcanary_server.errors import RequestError
from gradcanary_server.headers import ALWAYS
from gradcanary_server.outages import unavailable

METHODS = ("GET", "PUT", "POST", "PATCH", "DELETE")
"""What routes take."""

MOST_REPEATED = 100
"""Characters of a value that the message about it repeats."""

logger = logging.getLogger(__name__)


class Reason(BaseModel):
    """Why a request was refused; ``field`` is a path such as ``blocks.0.steps``."""

    code: str
    message: str
    field: str | None


class Refusal(BaseModel):
    """Every answer that is none."""

    error: Reason


RETRY_AFTER = {"Retry-After": {"description": "Seconds to wait.", "required": True, "schema": {"type": "string"}}}

DOCUMENTED: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": Refusal, "description": "The request cannot be answered; the body says why."},
    422: {"model": Refusal, "description": "A value cannot be used; the body names it."},
    429: {"model": Refusal, "description": "Too many requests of this token or address.", "headers": RETRY_AFTER},
    503: {"model": Refusal, "description": "The store is away for now.", "headers": RETRY_AFTER},
}
"""What every route may answer beside its own."""

_FAILED = RequestError(500, "internal", "The collector failed at this request; its log says where.")


def install(app: FastAPI) -> None:
    """Let the app answer every error, its framework's own included, in one shape."""
    app.add_exception_handler(RequestError, _refused)
    app.add_exception_handler(HTTPException, _unrouted)
    app.add_exception_handler(RequestValidationError, _misqueried)
    app.add_exception_handler(DBAPIError, _stored_nothing)
    app.add_exception_handler(PoolTimeoutError, _stored_nothing)
    app.add_exception_handler(Exception, _failed)


def answer(error: RequestError, **headers: str) -> JSONResponse:
    """Return the response for an error, with more headers than it brings."""
    body = {"error": {"code": error.code, "message": error.message, "field": error.field}}
    retry = {} if error.retry_after_s is None else {"Retry-After": str(error.retry_after_s)}
    # Here, too: the answer to what nobody foresaw does not come by the middleware.
    return JSONResponse(body, error.status, {**ALWAYS, **retry, **headers})


async def _refused(_request: Request, error: Exception) -> JSONResponse:
    return answer(error if isinstance(error, RequestError) else _FAILED)


async def _unrouted(request: Request, error: Exception) -> JSONResponse:
    """Answer what no route took: 405 with what would do where another method does, else 404."""
    status, asked = error.status_code if isinstance(error, HTTPException) else 500, request.url.path
    if status not in (404, 405):
        return answer(RequestError(status, "invalid", f"{request.method} {asked} cannot be answered."))
    taken = ", ".join(_taken(request))
    if not taken:
        return answer(RequestError(404, "not_found", f"There is no {asked} here."))
    return answer(RequestError(405, "method_not_allowed", f"{asked} does not take {request.method}."), Allow=taken)


def _taken(request: Request) -> list[str]:
    """Return the methods by which a path is served."""
    served = request.app.state.served
    asked = [(method, {**request.scope, "method": method}) for method in METHODS]
    return [method for method, scope in asked if any(route.matches(scope)[0] is Match.FULL for route in served)]


async def _misqueried(_request: Request, error: Exception) -> JSONResponse:
    first = error.errors()[0] if isinstance(error, RequestValidationError) else {"loc": (), "msg": "invalid"}
    place, message = first["loc"], str(first["msg"])
    if place[:1] == ("query",) and isinstance(first.get("input"), str):
        place, message = (
            place[:2],
            f"{message}, not {first['input'][:MOST_REPEATED]!r}",
        )  # of several, its place says less
    field = ".".join(str(part) for part in place[1:]) or None
    return answer(RequestError(422, "invalid", message, field))


async def _stored_nothing(request: Request, error: Exception) -> JSONResponse:
    known = unavailable(error)
    if known is None:
        logger.error("%s %s failed in the database", request.method, request.url.path, exc_info=error)
    return answer(known or _FAILED)


async def _failed(_request: Request, _error: Exception) -> JSONResponse:
    return answer(_FAILED)
