"""Messages over HTTP: their secrets and signatures (Standard Webhooks), one POST, its errors and retry delays.

No redirects, and one deadline for the whole attempt. A guarded message goes only to an address that the egress policy
allows (:mod:`gradcanary_server.notify.egress`).
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import functools
import secrets
import ssl
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

import httpx
from standardwebhooks import Webhook

from gradcanary import __version__
from gradcanary_server.errors import CollectorError
from gradcanary_server.notify import egress
from gradcanary_server.notify.egress import AddressError, EgressPolicy, UnknownHostError

PREFIX = "whsec_"
_SECRET_BYTES = 32
_SECRET_SIZES = range(16, 129)


class SecretError(ValueError):
    """A secret of the wrong form; the message contains the right one."""


def new_secret() -> str:
    """Return a random secret."""
    return PREFIX + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()


def check_secret(secret: str) -> None:
    """Raise SecretError unless a secret can sign messages."""
    try:
        size = len(base64.b64decode(secret.removeprefix(PREFIX), validate=True))
    except (binascii.Error, ValueError):
        size = 0
    if not secret.startswith(PREFIX) or size not in _SECRET_SIZES:
        sizes = f"{_SECRET_SIZES[0]} to {_SECRET_SIZES[-1]} random bytes, {_SECRET_BYTES} for example"
        raise SecretError(f"must be '{PREFIX}' followed by base64 of {sizes}")


TIMEOUT_S = 10.0
"""From the DNS lookup to the last byte of the answer."""

CONNECT_S = 3.0
"""For an address that is not the last one of its host."""

MAX_ANSWER = 4096
"""Bytes of an answer that are read; only its status counts."""

DRAIN_S = 1.0
GONE = 410
GATEWAYS = (502, 504)
"""A gateway got no answer (RFC 9110, 15.6): the receiver may have got the message."""

FIRST_RETRY_S = 5.0
LAST_RETRY_S = 4 * 3600.0
JITTER = 0.2

_UNREACHED = (httpx.ConnectError, httpx.ConnectTimeout)
_NOTHING_SENT = (*_UNREACHED, httpx.InvalidURL, httpx.UnsupportedProtocol)


class TransportError(CollectorError):
    """A failed attempt; ``permanent``: no attempt can succeed; ``maybe_delivered``: the message may have arrived."""

    def __init__(
        self,
        message: str,
        permanent: bool = False,
        status: int | None = None,
        retry_after_s: float | None = None,
        *,
        maybe_delivered: bool = False,
    ) -> None:
        super().__init__(message)
        self.maybe_delivered = maybe_delivered
        self.permanent = permanent
        self.status = status
        self.retry_after_s = retry_after_s


@dataclass(frozen=True)
class OutgoingMessage:
    """A message to a URL; ``id`` and ``body`` are the same in each attempt.

    ``secrets`` sign it, the newest first. ``is_guarded``: the egress policy applies.
    """

    id: str
    url: str
    secrets: tuple[str, ...]
    body: bytes
    is_guarded: bool = False


def open_client() -> httpx.AsyncClient:
    """Return a client without proxies and credentials of the environment, and without keep-alive."""
    return httpx.AsyncClient(
        follow_redirects=False,
        timeout=TIMEOUT_S,
        trust_env=False,
        verify=_authorities(),
        # A half-open kept connection would look like a failing receiver.
        limits=httpx.Limits(max_keepalive_connections=0),
        headers={"User-Agent": f"gradcanary/{__version__}"},
    )


@functools.cache
def _authorities() -> ssl.SSLContext:
    return httpx.create_ssl_context()


async def post_message(
    client: httpx.AsyncClient, message: OutgoingMessage, moment: datetime, guard: EgressPolicy
) -> int:
    """Send a message and return the status of success; raises TransportError."""
    try:
        return await asyncio.wait_for(_post(client, message, moment, guard), TIMEOUT_S)
    except AddressError as error:
        raise TransportError(f"refused: {error}") from error
    except UnknownHostError as error:
        raise TransportError(str(error)) from error
    except asyncio.TimeoutError as error:
        raise TransportError(f"no answer within {TIMEOUT_S:g} s", maybe_delivered=True) from error
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        maybe_delivered = not isinstance(error, _NOTHING_SENT)
        raise TransportError(f"{type(error).__name__}: {error}", maybe_delivered=maybe_delivered) from error


def signed_headers(message: OutgoingMessage, moment: datetime) -> dict[str, str]:
    """Return the headers of an attempt; the signature covers id, time and body."""
    # standardwebhooks replaces the time zone of a datetime instead of converting it.
    utc = moment.astimezone(timezone.utc)
    signatures = (Webhook(secret).sign(message.id, utc, message.body.decode()) for secret in message.secrets)
    return {
        "Content-Type": "application/json",
        "webhook-id": message.id,
        "webhook-timestamp": str(int(utc.timestamp())),
        "webhook-signature": " ".join(signatures),
    }


def retry_delay(failures: int, retry_after_s: float | None, jitter: float) -> float:
    """Return the seconds to the next attempt after n failures in a row.

    5 s, doubling up to 4 h, moved by up to 20 % (``jitter`` is in -1..1); a receiver's Retry-After may lengthen it,
    within the same 4 h.
    """
    doubled = FIRST_RETRY_S * 2.0 ** min(max(failures - 1, 0), 20)
    planned = min(doubled, LAST_RETRY_S) * (1 + JITTER * jitter)
    return max(planned, min(retry_after_s or 0.0, LAST_RETRY_S))


async def _post(client: httpx.AsyncClient, message: OutgoingMessage, moment: datetime, guard: EgressPolicy) -> int:
    headers = signed_headers(message, moment)
    for request in await _requests(client, message, headers, guard):
        try:
            response = await client.send(request, stream=True)
        except _UNREACHED as error:  # nothing was sent: the next address may take it
            unreached = error
            continue
        async with contextlib.aclosing(response):
            return await _read(response, moment)
    raise unreached


async def _requests(
    client: httpx.AsyncClient, message: OutgoingMessage, headers: dict[str, str], guard: EgressPolicy
) -> list[httpx.Request]:
    """Return the request; of a guarded message one for each address of the host, to be tried in turn."""
    if not message.is_guarded:
        return [client.build_request("POST", message.url, content=message.body, headers=headers)]
    host, port = egress.host_and_port(message.url)
    addresses = await guard.addresses(host, port)
    headers = {**headers, "Host": urlsplit(message.url).netloc}
    return [
        client.build_request(
            "POST",
            egress.with_resolved_ip(message.url, address),
            content=message.body,
            headers=headers,
            timeout=httpx.Timeout(TIMEOUT_S, connect=TIMEOUT_S if address == addresses[-1] else CONNECT_S),
            extensions={"sni_hostname": host},  # the name that the certificate must have
        )
        for address in addresses
    ]


async def _read(response: httpx.Response, moment: datetime) -> int:
    status = response.status_code
    if not response.is_success:
        retry_after_s = _retry_after(response, moment)
        reason = f"answered {status}"
        if response.is_redirect:
            reason += ": redirects are not followed, give the final address"
        raise TransportError(reason, status == GONE, status, retry_after_s, maybe_delivered=status in GATEWAYS)
    # Only the status counts. Reads a part of the body, so that the receiver can finish its write.
    with contextlib.suppress(httpx.HTTPError, asyncio.TimeoutError):
        await asyncio.wait_for(_drain(response), DRAIN_S)
    return status


async def _drain(response: httpx.Response) -> None:
    read = 0
    async for chunk in response.aiter_raw():
        read += len(chunk)
        if read >= MAX_ANSWER:
            return


def _retry_after(response: httpx.Response, moment: datetime) -> float | None:
    text = response.headers.get("Retry-After", "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        until = parsedate_to_datetime(text)
    except ValueError:
        return None
    until = until if until.tzinfo else until.replace(tzinfo=timezone.utc)
    return max((until - moment).total_seconds(), 0.0)
