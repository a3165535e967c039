"""How people with a browser get in: a page that takes a token, a cookie for the visit, and the way out."""

from __future__ import annotations

import base64
import hashlib
from html import escape
from typing import Any
from urllib.parse import parse_qs

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from gradcanary_server import bodies, rights, tokens
from gradcanary_server.access import Gate, address_of, cookie_name, is_tls
from gradcanary_server.errors import RequestError
from gradcanary_server.rights import Asker

MAX_FORM = 8_192
"""Bytes."""

# The colours are those of the dashboard's style sheet, which nobody may have before the token is right.
_STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --card: #ffffff; --line: #dfe3e8; --ink: #14181d; --dim: #5b6570;
  --accent: #1765b3; --on-accent: #ffffff; --critical: #c92a2a; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171a; --card: #1b1f23; --line: #30363c; --ink: #e6e9ec;
  --dim: #a0a9b2; --accent: #6cb3f5; --on-accent: #14171a; --critical: #ff8787; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 14px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif; }
main { max-width: 440px; margin: 12vh auto 0; padding: 24px; border: 1px solid var(--line); border-radius: 12px;
  background: var(--card); }
h1 { margin: 0 0 16px; font-size: 20px; }
label { display: block; margin-bottom: 6px; font-weight: 600; }
input { width: 100%; padding: 9px 10px; border: 1px solid var(--dim); border-radius: 8px; background: var(--paper);
  color: var(--ink); font: 14px ui-monospace, Menlo, Consolas, monospace; }
button { margin-top: 14px; padding: 9px 18px; border: 0; border-radius: 8px; background: var(--accent);
  color: var(--on-accent); font: inherit; font-weight: 650; cursor: pointer; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
p { margin: 12px 0 0; color: var(--dim); }
code { font-family: ui-monospace, Menlo, Consolas, monospace; font-size: 13px; }
.refusal { margin: 0 0 14px; color: var(--critical); font-weight: 600; }
@media (max-width: 480px) { main { margin: 0; border: 0; } }
"""

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="robots" content="noindex">
<title>Sign in · gradcanary</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<main>
<h1>Sign in to gradcanary</h1>
{refusal}<form method="post" action="/sign-in">
<input type="hidden" name="next" value="{next}">
<label for="token">Access token</label>
<input type="password" id="token" name="token" required autofocus autocomplete="current-password" spellcheck="false">
<button type="submit">Sign in</button>
</form>
<p>A token to look is made where the collector runs, with its --data or --db:
<code>gradcanary token create --scope read --name YOU</code></p>
</main>
</body>
</html>
"""

_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_HASH}'; img-src data:; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}

router = APIRouter()

_PAGES: dict[int | str, dict[str, Any]] = {
    200: {"description": "The page that asks for a token.", "content": {"text/html": {}}},
    303: {"description": "Where one wanted to go, or to sign in."},
}


@router.get("/sign-in", response_class=HTMLResponse, response_model=None, responses=_PAGES)
def show(request: Request, next: str = "/") -> Response:  # noqa: A002 -- the parameter's name in the address
    """Answer the page, or where one wanted to go if nobody is asked."""
    if not _gate(request).settings.auth:
        return RedirectResponse(rights.local_path(next), 303)
    return _page(rights.local_path(next))


@router.post("/sign-in", response_class=HTMLResponse, response_model=None, responses=_PAGES)
async def sign_in(request: Request) -> Response:
    """Begin a visit with the token of the form, and go on to where one wanted to."""
    gate = _gate(request)
    form = await _form(request)
    wanted = rights.local_path(form.get("next", "/"))
    if not gate.settings.auth:
        return RedirectResponse(wanted, 303)
    try:
        asker = await gate.recognise(form.get("token", "").strip(), address_of(request), is_typed=True)
        cookie = await run_in_threadpool(_begin, gate, asker, address_of(request))
    except RequestError as error:
        return _page(wanted, error)
    answer = RedirectResponse(wanted, 303)
    # Lax: a link in a message about an incident opens the page. Writes are guarded by where they come from.
    answer.set_cookie(
        cookie_name(request), cookie, max_age=int(tokens.VISIT_S), httponly=True, samesite="lax", secure=is_tls(request)
    )
    return answer


@router.post("/sign-out", response_class=HTMLResponse, response_model=None, responses=_PAGES)
async def sign_out(request: Request) -> Response:
    """End the visit."""
    gate, name = _gate(request), cookie_name(request)
    cookie = request.cookies.get(name)
    if cookie:
        await run_in_threadpool(_end, gate, cookie, address_of(request))
    answer = RedirectResponse("/sign-in", 303)
    answer.delete_cookie(name, httponly=True, samesite="lax", secure=is_tls(request))
    return answer


def _gate(request: Request) -> Gate:
    gate: Gate = request.app.state.gate
    return gate


async def _form(request: Request) -> dict[str, str]:
    raw = await bodies.collect(request, MAX_FORM)
    try:
        return {name: values[0] for name, values in parse_qs(raw.decode(), max_num_fields=4).items()}
    except ValueError as error:
        raise RequestError(400, "invalid", "This is no form of this page.") from error


def _begin(gate: Gate, asker: Asker, address: str) -> str:
    if not asker.may("read"):
        raise RequestError(403, "forbidden", "This token only sends measurements: take one with the scope read.")
    with gate.database.write() as connection:
        cookie = tokens.begin_visit(connection, asker.token_id or 0, gate.database.now(connection))
    gate.keyring.forget()
    gate.note(asker, address, "signed in")
    return cookie


def _end(gate: Gate, cookie: str, address: str) -> None:
    asker = gate.keyring.look(cookie)
    if asker is None:
        return
    with gate.database.write() as connection:
        tokens.end_visit(connection, cookie)
    gate.keyring.forget()
    gate.note(asker, address, "signed out")


def _page(wanted: str, error: RequestError | None = None) -> HTMLResponse:
    refusal = "" if error is None else f'<p class="refusal" role="alert">{escape(error.message)}</p>\n'
    page = _PAGE.format(style=_STYLE, refusal=refusal, next=escape(wanted))
    headers = dict(_HEADERS)
    if error is not None and error.retry_after_s is not None:
        headers["Retry-After"] = str(error.retry_after_s)
    return HTMLResponse(page, 200 if error is None else error.status, headers)
