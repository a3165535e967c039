"""Errors as JSON: always ``{"error": {"code", "message", "field"}}``, never a stack trace."""

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.routing import Match

from gradcanary_server.api.http import SECURITY_HEADERS
from gradcanary_server.errors import NodeUnavailable, RequestError

METHODS = ("GET", "PUT", "POST", "PATCH", "DELETE")
"""The methods of all routes."""

MAX_REPEATED = 100
"""Characters of a refused value that its message repeats."""


class Reason(BaseModel):
    """The reason of a refusal; ``field`` is a path such as ``blocks.0.steps``."""

    code: str
    message: str
    field: str | None


class Refusal(BaseModel):
    """The body of every error."""

    error: Reason


RETRY_AFTER = {"Retry-After": {"description": "Seconds to wait.", "required": True, "schema": {"type": "string"}}}

DOCUMENTED: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": Refusal, "description": "The request cannot be answered; the body says why."},
    422: {"model": Refusal, "description": "A value cannot be used; the body names it."},
    429: {"model": Refusal, "description": "Too many requests of this token or address.", "headers": RETRY_AFTER},
    503: {"model": Refusal, "description": "The store is away for now.", "headers": RETRY_AFTER},
}
"""The errors of every route, for the OpenAPI document."""


def install(app: FastAPI) -> None:
    """Let the app answer every error, also those of its framework, in one shape."""
    app.add_exception_handler(RequestError, _answer_refusal)
    app.add_exception_handler(HTTPException, _answer_unrouted)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    app.add_exception_handler(Exception, _answer_failure)


def error_response(error: RequestError, **headers: str) -> JSONResponse:
    """Return the response for an error, with more headers than its own."""
    body = {"error": {"code": error.code, "message": error.message, "field": error.field}}
    retry = {} if error.retry_after_s is None else {"Retry-After": str(error.retry_after_s)}
    # The answer to an unforeseen exception does not pass the middleware that adds these headers.
    return JSONResponse(body, error.status, {**SECURITY_HEADERS, **retry, **headers})


async def _answer_refusal(request: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, RequestError):
        return await _answer_failure(request, error)
    missing = request.app.state.services.database.missing()
    if missing is not None and error.code in ("unknown_incident", "unknown_delivery"):  # of a run that is missing?
        error = NodeUnavailable(f"A part of the database is away, and this may be there: {missing}.")
    return error_response(error)


async def _answer_unrouted(request: Request, error: Exception) -> JSONResponse:
    """Answer a request without a route: 405 with the methods of its path, 404 if it has none."""
    status, path = error.status_code if isinstance(error, HTTPException) else 500, request.url.path
    if status not in (404, 405):
        return error_response(RequestError(status, "invalid", f"{request.method} {path} cannot be answered."))
    scopes = [{**request.scope, "method": method} for method in METHODS]
    routes = request.app.state.served
    allowed = [scope["method"] for scope in scopes if any(route.matches(scope)[0] is Match.FULL for route in routes)]
    if not allowed:
        return error_response(RequestError(404, "not_found", f"There is no {path} here."))
    refusal = RequestError(405, "method_not_allowed", f"{path} does not take {request.method}.")
    return error_response(refusal, Allow=", ".join(allowed))


async def _answer_invalid(_request: Request, error: Exception) -> JSONResponse:
    first = error.errors()[0] if isinstance(error, RequestValidationError) else {"loc": (), "msg": "invalid"}
    location, message = first["loc"], str(first["msg"])
    if location[:1] == ("query",) and isinstance(first.get("input"), str):
        # The value says more than its index in a parameter that repeats.
        location, message = location[:2], f"{message}, not {first['input'][:MAX_REPEATED]!r}"
    field = ".".join(str(part) for part in location[1:]) or None
    return error_response(RequestError(422, "invalid", message, field))


async def _answer_failure(_request: Request, _error: Exception) -> JSONResponse:
    return error_response(RequestError(500, "internal", "The collector failed at this request; its log says where."))
