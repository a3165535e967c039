"""Who is let in: each request is somebody's, within a scope and a rate, or it is refused before any route sees it."""

from __future__ import annotations

import logging
import time
from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import quote

from fastapi.concurrency import run_in_threadpool
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gradcanary_server import answers, audit, rights
from gradcanary_server.buckets import Buckets, neighbourhood
from gradcanary_server.database import Database
from gradcanary_server.errors import RequestError, invalid
from gradcanary_server.keyring import Keyring
from gradcanary_server.outages import unavailable
from gradcanary_server.requests import check_text
from gradcanary_server.rights import LOOPBACK, Asker
from gradcanary_server.settings import Settings

PER_TOKEN = (600.0, 300.0)
"""Requests at once and a second, of one token in one process: more than a process can serve. A script that runs wild
leaves something to the others."""

PER_STRANGER = (100.0, 10.0)
"""Requests with secrets that open nothing, at once and a second, of one address: jobs with a revoked token try each
minute, and are to hear why."""

PER_GUESSER = (10.0, 0.1)
"""Of these, at the sign-in page."""

WRITTEN = (20.0, 0.1)
"""Of these, what is written into the audit log: at once and a second, of all addresses together."""

SECURE_COOKIE, COOKIE = "__Host-gradcanary", "gradcanary"

logger = logging.getLogger(__name__)

NO_TOKEN = "This collector asks for an access token: send 'Authorization: Bearer gc_...', or sign in at /sign-in."  # noqa: S105


class Gate:
    """What a collector knows of those who ask; one per process."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self.database = database
        self.settings = settings
        self.keyring = Keyring(database)
        self._used = Buckets(*PER_TOKEN)
        self._strangers = Buckets(*PER_STRANGER)
        self._guessers = Buckets(*PER_GUESSER)
        self._written = Buckets(*WRITTEN)

    async def admit(self, request: Request) -> Asker | None:
        """Return who asks, None for what everybody may see; raises RequestError."""
        method, path = request.method, path_of(request)
        if path.endswith("\n"):
            # "$" of a route is before a last line feed, too: it would be judged as another path than it leads to.
            raise RequestError(404, "not_found", "There is no such path here.")
        if method not in rights.SAFE and not rights.is_own(request.headers, self.settings.public_url):
            raise RequestError(403, "cross_site", "A page of another site may not change anything here.")
        if not self.settings.auth:
            return _local(request)
        needed = rights.needed(method, path)
        if needed is None:
            return None
        asker = await self._asker(request)
        self._spend(asker)
        if not asker.may(needed):
            raise RequestError(403, "forbidden", _beyond(asker, needed))
        return asker

    async def recognise(self, secret: str, address: str, *, is_typed: bool = False) -> Asker:
        """Return whose secret it is; raises RequestError 401, or 429 after too many that are nobody's."""
        asker = self.keyring.recall(secret) or await run_in_threadpool(self.keyring.look, secret)
        if asker is not None:
            return asker
        bucket = self._guessers if is_typed else self._strangers
        wait_s = bucket.take(neighbourhood(address), time.monotonic())
        if wait_s:
            raise _too_many(
                "Too many tokens from this address that open nothing (a right one is taken at once)", wait_s
            )
        if not self._written.take(None, time.monotonic()):
            await run_in_threadpool(self.note, None, address, audit.REFUSED)
        raise RequestError(
            401,
            "unauthorized",
            "This access token is unknown, expired or revoked here: 'gradcanary token list' where the collector runs, "
            "with the --data or --db that it has, tells.",
        )

    def note(self, asker: Asker | None, address: str, what: str, on_what: str = "") -> None:
        """Keep a record of what somebody did. What was done stays done where that cannot be written."""
        who, token_id = ("", None) if asker is None else (asker.name, asker.token_id)
        try:
            with self.database.write() as connection:
                audit.write(connection, self.database.now(connection), who, address, what, on_what, token_id)
        except (DBAPIError, PoolTimeoutError, RequestError) as error:
            logger.error("not in the audit log: %s by %s (%s)", what, who or address, type(error).__name__)  # noqa: TRY400 -- its text may hold what was to be written

    async def _asker(self, request: Request) -> Asker:
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and token.strip():
            return await self.recognise(token.strip(), address_of(request))
        cookie = cookie_of(request)
        if not cookie:
            raise RequestError(401, "unauthorized", NO_TOKEN)
        if request.method not in rights.SAFE and not rights.is_of_browser(request.headers):
            raise RequestError(403, "cross_site", "Who changes something by a cookie says from where, as browsers do.")
        # Of an old cookie no stranger is to be made: whoever was signed in has to sign in again.
        asker = self.keyring.recall(cookie) or await run_in_threadpool(self.keyring.look, cookie)
        if asker is None:
            raise RequestError(401, "unauthorized", NO_TOKEN)
        return asker

    def _spend(self, asker: Asker) -> None:
        wait_s = self._used.take(asker.token_id, time.monotonic())
        if wait_s:
            raise _too_many("Too many requests with this token", wait_s)


class Access:
    """Let in whom the gate admits, and keep a record of what they change; ``request.state.asker`` is who it was."""

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self.app = app
        self.gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})  # nothing here is asked that way
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope)
        try:
            asker = await self.gate.admit(request)
        except (RequestError, DBAPIError, PoolTimeoutError) as error:
            refusal = error if isinstance(error, RequestError) else unavailable(error)
            if refusal is None:
                raise
            await _refused(request, refusal)(scope, receive, send)
            return
        request.state.asker = asker
        noting = send
        if asker is not None and rights.is_write(request.method, path_of(request)):
            noting = self._noting(request, asker, send)
        await self.app(scope, receive, noting)

    def _noting(self, request: Request, asker: Asker, send: Send) -> Send:
        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] < 400:
                what = f"{request.method} {path_of(request).removeprefix('/api/v1')}"
                about = getattr(request.state, "about", "")
                await run_in_threadpool(self.gate.note, asker, address_of(request), what, about)
            await send(message)

        return noting


def signature(request: Request, given: str | None) -> str:
    """Return who does something: the name they give, else that of their token; raises RequestError 422."""
    asker: Asker | None = request.state.asker
    if given is None and asker is not None and asker.token_id is not None:
        return asker.name
    if given is None:
        raise invalid("Say who you are: nobody signs in here.", "by")
    check_text(given, "by", 200, shortest=1)
    return given


def cookie_name(request: Request) -> str:
    """Return the name of the cookie of a visit; with this prefix no neighbouring host can set it."""
    return SECURE_COOKIE if is_tls(request) else COOKIE


def cookie_of(request: Request) -> str | None:
    """Return the secret of a visit. A page asks over plain loopback with the cookie that came to it over TLS."""
    secure = request.cookies.get(SECURE_COOKIE)
    return secure if is_tls(request) else secure or request.cookies.get(COOKIE)


def is_tls(request: Request) -> bool:
    """Tell whether a request came over TLS, to us or to a proxy that is believed."""
    return bool(request.scope["scheme"] == "https")


def path_of(request: Request) -> str:
    """Return the path by which routes are chosen; that of ``request.url`` is put together with what Host says."""
    return str(request.scope["path"])


def address_of(request: Request) -> str:
    """Return where a request comes from."""
    return request.client.host if request.client else ""


def _local(request: Request) -> Asker:
    """Return who asks where nobody is asked for a token; raises RequestError 403 on a way in from other machines."""
    server = request.scope.get("server")
    if server is not None and _is_of_others(str(server[0])):
        raise RequestError(403, "not_here", "From other machines this collector asks for tokens: start it with --auth.")
    return LOOPBACK


@lru_cache(maxsize=256)
def _is_of_others(address: str) -> bool:
    try:
        return not ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False  # the path of a socket, or a test


def _beyond(asker: Asker, needed: str) -> str:
    return f"The token {asker.name!r} has the scope {asker.scope}, and this takes {needed}."


def _too_many(message: str, wait_s: float) -> RequestError:
    seconds = max(1, round(wait_s + 0.5))
    return RequestError(429, "too_many", f"{message}: try again in {seconds} s.", retry_after_s=seconds)


def _refused(request: Request, error: RequestError) -> Response:
    path = path_of(request)
    if error.status == 401 and rights.is_navigation(request.method, path, request.headers):
        asked = f"{path}?{request.url.query}" if request.url.query else path
        return RedirectResponse("/sign-in" if asked == "/" else f"/sign-in?next={quote(asked, safe='/')}", 303)
    answer = answers.answer(error)
    if error.status == 401:
        answer.headers["WWW-Authenticate"] = "Bearer"
    return answer
