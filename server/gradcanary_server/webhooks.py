"""A message over HTTP: signed as Standard Webhooks ask for, one POST, no redirects, a deadline over everything.

To an endpoint that was made over HTTP it goes only where a guard allows it (:mod:`gradcanary_server.addresses`).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ssl
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from importlib.metadata import version

import httpx
from standardwebhooks import Webhook

from gradcanary_server import addresses
from gradcanary_server.addresses import AddressError, Guard, UnknownHostError
from gradcanary_server.errors import CollectorError

TIMEOUT_S = 10.0
"""From the name lookup to the last byte of the answer."""

CONNECT_S = 3.0
"""For an address that is not the last one of its host."""

MAX_ANSWER = 4096
"""Bytes of an answer that are read; only its status matters."""

DRAIN_S = 1.0
GONE = 410
GATEWAYS = (502, 504)
"""What a gateway answers that had no answer itself (RFC 9110, 15.6): who is behind it may have taken the message."""

FIRST_RETRY_S = 5.0
LAST_RETRY_S = 4 * 3600.0
JITTER = 0.2
LONGEST_RETRY_S = LAST_RETRY_S * (1 + JITTER)


_UNREACHED = (httpx.ConnectError, httpx.ConnectTimeout)
_NOTHING_SENT = (*_UNREACHED, httpx.InvalidURL, httpx.UnsupportedProtocol)


class TransportError(CollectorError):
    """An attempt that did not deliver; ``permanent`` means that this endpoint wants no message ever again.

    ``is_unsure``: the message may have arrived all the same.
    """

    def __init__(
        self,
        message: str,
        permanent: bool = False,
        status: int | None = None,
        retry_after_s: float | None = None,
        *,
        is_unsure: bool = False,
    ) -> None:
        super().__init__(message)
        self.is_unsure = is_unsure
        self.permanent = permanent
        self.status = status
        self.retry_after_s = retry_after_s


@dataclass(frozen=True)
class Message:
    """What is sent where; ``id`` and ``body`` are the same on each attempt.

    ``secrets`` sign it, the newest first. ``is_guarded``: it must not go into the operator's own network.
    """

    id: str
    url: str
    secrets: tuple[str, ...]
    body: bytes
    is_guarded: bool = False


def open_client() -> httpx.AsyncClient:
    """Return the client for all attempts: no proxies or credentials from the environment, no connection kept."""
    return httpx.AsyncClient(
        follow_redirects=False,
        timeout=TIMEOUT_S,
        trust_env=False,
        verify=_authorities(),
        # A kept connection may be half dead, which would look like a failing receiver.
        limits=httpx.Limits(max_keepalive_connections=0),
        headers={"User-Agent": f"gradcanary/{version('gradcanary')}"},
    )


@functools.cache
def _authorities() -> ssl.SSLContext:
    return httpx.create_ssl_context()


async def post(client: httpx.AsyncClient, message: Message, moment: datetime, guard: Guard) -> int:
    """Send a message and return the status of success; raises TransportError on any other end."""
    try:
        return await asyncio.wait_for(_post(client, message, moment, guard), TIMEOUT_S)
    except AddressError as error:
        raise TransportError(f"refused: {error}") from error
    except UnknownHostError as error:
        raise TransportError(str(error)) from error
    except asyncio.TimeoutError as error:
        raise TransportError(f"no answer within {TIMEOUT_S:g} s", is_unsure=True) from error
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        is_unsure = not isinstance(error, _NOTHING_SENT)
        raise TransportError(f"{type(error).__name__}: {error}", is_unsure=is_unsure) from error


def signed(message: Message, moment: datetime) -> dict[str, str]:
    """Return the headers of an attempt at a moment in UTC: the signature covers id, time and body."""
    # standardwebhooks replaces the time zone of what it is given instead of converting it.
    utc = moment.astimezone(timezone.utc)
    signatures = (Webhook(secret).sign(message.id, utc, message.body.decode()) for secret in message.secrets)
    return {
        "Content-Type": "application/json",
        "webhook-id": message.id,
        "webhook-timestamp": str(int(utc.timestamp())),
        "webhook-signature": " ".join(signatures),
    }


def retry_delay(failures: int, retry_after_s: float | None, jitter: float) -> float:
    """Return the seconds to the next attempt after so many failures in a row.

    5 s, doubling up to 4 h, moved by up to 20 % (``jitter`` is in -1..1); a receiver's Retry-After may lengthen it,
    within the same 4 h.
    """
    doubled = FIRST_RETRY_S * 2.0 ** min(max(failures - 1, 0), 20)
    planned = min(doubled, LAST_RETRY_S) * (1 + JITTER * jitter)
    return max(planned, min(retry_after_s or 0.0, LAST_RETRY_S))


async def _post(client: httpx.AsyncClient, message: Message, moment: datetime, guard: Guard) -> int:
    headers = signed(message, moment)
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
    client: httpx.AsyncClient, message: Message, headers: dict[str, str], guard: Guard
) -> list[httpx.Request]:
    """Return the request, or where it is guarded one for each address of the host, to be tried in turn."""
    if not message.is_guarded:
        return [client.build_request("POST", message.url, content=message.body, headers=headers)]
    host, port = addresses.host_and_port(message.url)
    found = await guard.addresses(host, port)
    headers = {**headers, "Host": addresses.authority(message.url)}
    return [
        client.build_request(
            "POST",
            addresses.pinned(message.url, address),
            content=message.body,
            headers=headers,
            timeout=httpx.Timeout(TIMEOUT_S, connect=TIMEOUT_S if address == found[-1] else CONNECT_S),
            extensions={"sni_hostname": host},  # whom the certificate must be of
        )
        for address in found
    ]


async def _read(response: httpx.Response, moment: datetime) -> int:
    status = response.status_code
    if not response.is_success:
        retry_after_s = _retry_after(response, moment)
        raise TransportError(_why(response), status == GONE, status, retry_after_s, is_unsure=status in GATEWAYS)
    # The status was the answer. A little of the rest is read, so that the receiver is not cut off while it writes.
    with contextlib.suppress(httpx.HTTPError, asyncio.TimeoutError):
        await asyncio.wait_for(_drain(response), DRAIN_S)
    return status


async def _drain(response: httpx.Response) -> None:
    read = 0
    async for chunk in response.aiter_raw():
        read += len(chunk)
        if read >= MAX_ANSWER:
            return


def _why(response: httpx.Response) -> str:
    if response.is_redirect:
        return f"answered {response.status_code}: redirects are not followed, give the final address"
    return f"answered {response.status_code}"


def _retry_after(response: httpx.Response, moment: datetime) -> float | None:
    text = response.headers.get("Retry-After", "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        until = parsedate_to_datetime(text)
    except ValueError:
        return None
    known = until if until.tzinfo else until.replace(tzinfo=timezone.utc)
    return max((known - moment).total_seconds(), 0.0)
