"""The sign-in page, and the session cookie of a browser that signed in with a token."""

from __future__ import annotations

import base64
import hashlib
from html import escape
from importlib.resources import files
from string import Template
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from gradcanary_server.api.errors import DOCUMENTED
from gradcanary_server.api.http import read_bytes
from gradcanary_server.api.services import GateDep, SettingsDep
from gradcanary_server.auth import policy, tokens
from gradcanary_server.auth.gate import AccessControl, address_of, cookie_name, is_tls
from gradcanary_server.auth.policy import Principal
from gradcanary_server.errors import RequestError
from gradcanary_server.settings import Settings

MAX_FORM_BYTES = 8_192

_PAGE = Template(files(__package__).joinpath("sign_in.html").read_text("utf-8"))
"""Its colours are those of the dashboard's style sheet, which a browser cannot load before it signed in."""

_STYLE = _PAGE.template.partition("<style>")[2].partition("</style>")[0]
_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_HASH}'; img-src data:; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}

router = APIRouter()

# The refusals of this page are HTML; other refusals are JSON.
_PAGES: dict[int | str, dict[str, Any]] = {
    **{status: {**refusal, "content": {"text/html": {}}} for status, refusal in DOCUMENTED.items()},
    200: {"description": "The page that asks for a token.", "content": {"text/html": {}}},
    303: {"description": "Where one wanted to go, or to sign in."},
}


@router.get("/sign-in", response_class=Response, responses=_PAGES)
def show_page(settings: SettingsDep, next: str = "/") -> Response:  # noqa: A002 -- the parameter's name in the address
    """Answer the page; without access control redirect to the wanted page."""
    if not settings.auth:
        return RedirectResponse(policy.local_path(next), 303)
    return _page(settings, policy.local_path(next))


@router.post("/sign-in", response_class=Response, responses=_PAGES)
async def sign_in(request: Request, gate: GateDep) -> Response:
    """Create a session with the token of the form, and redirect to the wanted page."""
    form = await _form(request)
    next_path = policy.local_path(form.get("next", "/"))
    if not gate.settings.auth:
        return RedirectResponse(next_path, 303)
    try:
        principal = await gate.resolve_token(form.get("token", "").strip(), address_of(request), is_typed=True)
        cookie = await run_in_threadpool(_create_session, gate, principal, address_of(request))
    except RequestError as error:
        return _page(gate.settings, next_path, error)
    response = RedirectResponse(next_path, 303)
    # Lax: a link in a message about an incident opens the page. Writes from other sites are refused by their origin.
    response.set_cookie(
        cookie_name(request),
        cookie,
        max_age=int(tokens.WEB_SESSION_S),
        httponly=True,
        samesite="lax",
        secure=is_tls(request),
    )
    return response


@router.post("/sign-out", response_class=Response, responses=_PAGES)
async def sign_out(request: Request, gate: GateDep) -> Response:
    """End the session."""
    name = cookie_name(request)
    cookie = request.cookies.get(name)
    if cookie:
        await run_in_threadpool(_end_session, gate, cookie, address_of(request))
    response = RedirectResponse("/sign-in", 303)
    response.delete_cookie(name, httponly=True, samesite="lax", secure=is_tls(request))
    return response


async def _form(request: Request) -> dict[str, str]:
    raw = await read_bytes(request, MAX_FORM_BYTES)
    try:
        return {name: values[0] for name, values in parse_qs(raw.decode(), max_num_fields=4).items()}
    except ValueError as error:
        raise RequestError(400, "invalid", "This is no form of this page.") from error


def _create_session(gate: AccessControl, principal: Principal, address: str) -> str:
    if not principal.may("read"):
        raise RequestError(403, "forbidden", "This token only sends measurements: take one with the scope read.")
    with gate.database.write() as connection:
        cookie = tokens.create_web_session(connection, principal.token_id or 0, gate.database.now(connection))
    gate.token_cache.invalidate()
    gate.audit(principal, address, "signed in")
    return cookie


def _end_session(gate: AccessControl, cookie: str, address: str) -> None:
    principal = gate.token_cache.load(cookie)
    if principal is None:
        return
    with gate.database.write() as connection:
        tokens.end_web_session(connection, cookie)
    gate.token_cache.invalidate()
    gate.audit(principal, address, "signed out")


def _page(settings: Settings, next_path: str, error: RequestError | None = None) -> HTMLResponse:
    """Return the page; the host of the public address is the collector's name."""
    name = urlsplit(settings.public_url).netloc.rpartition("@")[2]
    refusal = "" if error is None else f'<p class="refusal" role="alert">{escape(error.message)}</p>\n'
    retry = {} if error is None or error.retry_after_s is None else {"Retry-After": str(error.retry_after_s)}
    page = _PAGE.substitute(name=escape(name), refusal=refusal, next=escape(next_path))
    return HTMLResponse(page, 200 if error is None else error.status, {**_HEADERS, **retry})
