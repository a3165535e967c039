"""Authentication and authorization of a request: token, cookie or loopback, then scope and rate."""

import logging
import time
from functools import lru_cache
from ipaddress import ip_address

from fastapi.concurrency import run_in_threadpool
from starlette.requests import Request

from gradcanary_server.auth import policy, tokens
from gradcanary_server.auth.policy import LOOPBACK, Principal
from gradcanary_server.auth.rate_limit import RateLimiter, rate_limit_key
from gradcanary_server.auth.token_cache import TokenCache
from gradcanary_server.errors import RequestError, StoreUnavailable
from gradcanary_server.settings import Settings
from gradcanary_server.storage.database import Database

TOKEN_RATE = (600.0, 300.0)
"""Requests at once and a second, of one token in one process: more than a process can serve. A script that runs wild
leaves something to the others."""

UNKNOWN_RATE = (100.0, 10.0)
"""Requests with unknown secrets, at once and a second, of one address: jobs with a revoked token try each minute, and
need the reason."""

SIGN_IN_RATE = (10.0, 0.1)
"""Of these, at the sign-in page."""

AUDIT_RATE = (20.0, 0.1)
"""Of these, the records in the audit log: at once and a second, of all addresses together."""

SECURE_COOKIE, COOKIE = "__Host-gradcanary", "gradcanary"

logger = logging.getLogger(__name__)

NO_TOKEN = "This collector asks for an access token: send 'Authorization: Bearer gc_...', or sign in at /sign-in."  # noqa: S105


class AccessControl:
    """Finds the principal of each request; one per process."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self.database = database
        self.settings = settings
        self.token_cache = TokenCache(database)
        self._tokens = RateLimiter(*TOKEN_RATE)
        self._unknown = RateLimiter(*UNKNOWN_RATE)
        self._sign_in = RateLimiter(*SIGN_IN_RATE)
        self._audit = RateLimiter(*AUDIT_RATE)

    async def authenticate(self, request: Request) -> Principal | None:
        """Return the principal of a request, None for a public path; raises RequestError."""
        method, path = request.method, path_of(request)
        if path.endswith("\n"):
            # "$" of a route also matches before a last line feed: scope and route would be of two paths.
            raise RequestError(404, "not_found", "There is no such path here.")
        if method not in policy.SAFE and not policy.is_same_site(request.headers, self.settings.public_url):
            raise RequestError(403, "cross_site", "A page of another site may not change anything here.")
        if not self.settings.auth:
            return _loopback_principal(request)
        scope = policy.required_scope(method, path)
        if scope is None:
            return None
        try:
            principal = await self._principal(request)
        except StoreUnavailable:
            # Prometheus learns here that the store is away: a token that was valid before is enough for that.
            known = self.token_cache.last_read(_bearer_token(request)) if path == policy.METRICS else None
            if known is None:
                raise
            principal = known
        wait_s = self._tokens.acquire(principal.token_id, time.monotonic())
        if wait_s:
            raise _too_many("Too many requests with this token", wait_s)
        if not principal.may(scope):
            message = f"The token {principal.name!r} has the scope {principal.scope}, and this takes {scope}."
            raise RequestError(403, "forbidden", message)
        return principal

    async def resolve_token(self, secret: str, address: str, *, is_typed: bool = False) -> Principal:
        """Return the principal of a secret; raises RequestError 401, or 429 after too many unknown ones."""
        principal = await self._find(secret)
        if principal is not None:
            return principal
        limiter = self._sign_in if is_typed else self._unknown
        wait_s = limiter.acquire(rate_limit_key(address), time.monotonic())
        if wait_s:
            raise _too_many(
                "Too many tokens from this address that open nothing (a right one is taken at once)", wait_s
            )
        if not self._audit.acquire(None, time.monotonic()):
            await run_in_threadpool(self.audit, None, address, tokens.REFUSED)
        raise RequestError(
            401,
            "unauthorized",
            "This access token is unknown, expired or revoked here: 'gradcanary token list' where the collector runs, "
            "with the --data or --db that it has, tells.",
        )

    def audit(self, principal: Principal | None, address: str, action: str, target: str = "") -> None:
        """Add a record to the audit log; where that fails the change itself stays."""
        actor, token_id = ("", None) if principal is None else (principal.name, principal.token_id)
        try:
            with self.database.write() as connection:
                tokens.write_audit_record(
                    connection, self.database.now(connection), actor, address, action, target, token_id
                )
        except StoreUnavailable as error:
            logger.error("not in the audit log: %s by %s (%s)", action, actor or address, error)  # noqa: TRY400 -- the reason is no fault of the code

    async def _principal(self, request: Request) -> Principal:
        token = _bearer_token(request)
        if token:
            return await self.resolve_token(token, address_of(request))
        cookie = cookie_of(request)
        if cookie and request.method not in policy.SAFE and not policy.is_browser_request(request.headers):
            raise RequestError(403, "cross_site", "Who changes something by a cookie says from where, as browsers do.")
        # An old cookie is no guess, and is not counted as one: its browser has to sign in again.
        principal = await self._find(cookie) if cookie else None
        if principal is None:
            raise RequestError(401, "unauthorized", NO_TOKEN)
        return principal

    async def _find(self, secret: str) -> Principal | None:
        arrived_at = self.token_cache.now()
        return self.token_cache.get(secret) or await run_in_threadpool(self.token_cache.load, secret, arrived_at)


def _bearer_token(request: Request) -> str:
    """Return the token of the header ``Authorization``, an empty text without one."""
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


def cookie_name(request: Request) -> str:
    """Return the name of the session cookie; no neighbouring host can set one with the prefix of the secure name."""
    return SECURE_COOKIE if is_tls(request) else COOKIE


def cookie_of(request: Request) -> str | None:
    """Return the secret of a web session. The pages send over plain loopback a cookie that they got over TLS."""
    secure = request.cookies.get(SECURE_COOKIE)
    return secure if is_tls(request) else secure or request.cookies.get(COOKIE)


def is_tls(request: Request) -> bool:
    """Return True if a request came over TLS, here or to a trusted proxy."""
    return bool(request.scope["scheme"] == "https")


def path_of(request: Request) -> str:
    """Return the path that selects the route; that of ``request.url`` depends on the Host header."""
    return str(request.scope["path"])


def address_of(request: Request) -> str:
    return request.client.host if request.client else ""


def _loopback_principal(request: Request) -> Principal:
    """Return the principal where no tokens are required; raises RequestError 403 for a socket of other machines."""
    server = request.scope.get("server")
    if server is not None and not _is_local(str(server[0])):
        raise RequestError(403, "not_here", "From other machines this collector asks for tokens: start it with --auth.")
    return LOOPBACK


@lru_cache(maxsize=256)
def _is_local(address: str) -> bool:
    try:
        return ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return True  # the path of a socket, or a test


def _too_many(message: str, wait_s: float) -> RequestError:
    seconds = max(1, round(wait_s + 0.5))
    return RequestError(429, "too_many", f"{message}: try again in {seconds} s.", retry_after_s=seconds)
