"""Messages to Slack, Discord, e-mail and other services through apprise, as plain text, with a picture for some.

The addresses of these services contain passwords. They are read from the command line or a file at each start and kept
in memory only. The tables hold a fingerprint instead, and no error message contains a part of an address.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import json
import logging
import math
import re
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from gradcanary_server.background import run_in_daemon_thread
from gradcanary_server.errors import SettingsError
from gradcanary_server.notify import endpoints
from gradcanary_server.notify.egress import HIDDEN
from gradcanary_server.notify.endpoints import ConfiguredEndpoint
from gradcanary_server.notify.webhook import TIMEOUT_S, TransportError

if TYPE_CHECKING:
    import apprise
    from apprise.attachment.base import AttachBase

KEY = "apprise:"
"""Prefix of the fingerprint that replaces an address in the tables."""

HUNG_S = 300.0
"""Age from which on an attempt does not delay the next one."""

MAX_HUNG = 8
"""Attempts under way per channel; each is a thread with a connection until the service closes it."""

PLAIN_S = 3_600.0
"""Time without pictures after an attempt with one failed: the service may take the message as text."""

_OVER = ("resolved", "ended")
"""Events of messages without a picture: it would show the fault, and not that it is over."""

_MIN_PART_LENGTH = 4
"""Shorter parts of an address are words, and not hidden in error messages."""

_KEYS = ("alias", "dedup", "external_id", "thirdparty")
"""Attributes of apprise's plugins with the key by which a service groups messages: PagerDuty, Opsgenie, ..."""

_MAIL = ("mailto", "mailtos")

NEEDS_APPRISE = "--notify needs the package apprise: pip install 'gradcanary[notify]', or '.[notify]' in a clone."


logger = logging.getLogger(__name__)


@dataclass
class Channel:
    """A configured service; ``key`` is the fingerprint of its secret address.

    ``under_way`` holds the start of each attempt that has not ended; ``lock`` guards it. Until ``plain_until``, by the
    monotonic clock, it gets no pictures.
    """

    key: str
    service: str
    url: str = field(repr=False)
    target: apprise.NotifyBase = field(repr=False, compare=False)
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)
    under_way: dict[object, float] = field(default_factory=dict, repr=False, compare=False)
    plain_until: float = field(default=-math.inf, repr=False, compare=False)


def open_channels(addresses: Iterable[str]) -> dict[ConfiguredEndpoint, Channel]:
    """Return the endpoint and channel of each ``[SEVERITY][,ended]=URL``; raises SettingsError."""
    channels: dict[ConfiguredEndpoint, Channel] = {}
    for number, text in enumerate(addresses, 1):
        given = endpoints.parse_configured(text)
        channel = _open(given.url, number)
        sends_ended = given.sends_ended or _keeps_open(channel.target)
        name = channel.service[:100]
        channels[ConfiguredEndpoint(channel.key, given.min_severity, "apprise", name, sends_ended)] = channel
    return channels


def pictured_incident(channel: Channel, body: bytes) -> int | None:
    """Return the incident whose picture belongs to a message, None if the message or the service takes none."""
    message = json.loads(body)
    is_plain = not channel.target.attachment_support or time.monotonic() < channel.plain_until
    if is_plain or message["type"] == "gradcanary.test" or message["type"].rpartition(".")[2] in _OVER:
        return None
    return int(message["data"]["incident"])


async def send_message(channel: Channel, body: bytes, picture: bytes | None = None) -> None:
    """Send a message as text, with its picture if there is one; raises TransportError.

    It is sent once, as a service may have the text of a message whose picture it refused: the next attempt is plain.

    A service may hold a connection for ever, and a thread cannot be ended: so it is a daemon thread. A second one
    starts only when the first counts as hung, and at most 8 hang.
    """
    attempt = _begin(channel)

    def work() -> None:
        try:
            _notify(channel, json.loads(body), picture)
        finally:
            with channel.lock:  # before the result is set: then the caller may send the next message
                del channel.under_way[attempt]

    try:
        await asyncio.wait_for(run_in_daemon_thread(work, "gradcanary-notify"), TIMEOUT_S)
    except Exception as error:
        if picture is not None:
            channel.plain_until = time.monotonic() + PLAIN_S
            logger.warning("%s failed with a picture, and gets none for an hour", channel.service)
        if not isinstance(error, asyncio.TimeoutError):
            raise
        raise TransportError(f"no answer within {TIMEOUT_S:g} s", maybe_delivered=True) from error


def render(message: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the title, the text, and apprise's type of a message.

    The parts of the explanation are in their order, the least important last: some services truncate messages.
    """
    data = message["data"]
    if message["type"] == "gradcanary.test":
        return "gradcanary: test", f"{data['summary']}\n{data['url']}", "info"
    event, parts = message["type"].rpartition(".")[2], data["explanation"]
    lines = (
        f"{event}: {parts['what']}",
        *(f"Also: {other['headline']} (#{other['incident']})" for other in data["also"]),
        f"Since: {parts['since']}",
        data["url"],
        f"Do first: {parts['do_first']}",
        f"Why: {parts['why']}",
        *(f"- {text}" for text in parts["evidence"][1:]),  # why begins with the first
        parts["more"],
        f"Runbook: {data['runbook_url']}",
    )
    kind = {"critical": "failure", "warning": "warning"}.get(data["severity"], "info")
    text = _escape_mentions("\n".join(lines))
    return _escape_mentions(data["title"]), text, "success" if event in _OVER else kind


def target_of_incident(channel: Channel, message: Mapping[str, Any]) -> apprise.NotifyBase:
    """Return the service with what groups its messages by incident: a key of its own, or the headers of a mail thread.

    The title cannot: it changes with severity and count. A key in the channel's address wins.
    """
    if message["type"] == "gradcanary.test":
        return channel.target
    key = f"gradcanary-{message['data']['incident']}"
    _ = channel.target.store  # made once: the copies share what it has of earlier messages
    target = copy.copy(channel.target)
    for name in _KEYS:
        if hasattr(target, name) and not getattr(target, name):
            setattr(target, name, key)
    if channel.url.partition(":")[0].lower() in _MAIL:
        thread = f"<{key}@gradcanary>"
        headers = getattr(target, "headers", {})
        setattr(target, "headers", {"References": thread, "In-Reply-To": thread, **headers})  # noqa: B010 -- no base class has it
    return target


def redact_address(text: str, url: str) -> str:
    """Return a text without any part of an address except its scheme."""
    address = url.partition("://")[2]
    parts = {part for form in (address, unquote(address)) for part in re.split(r"[/:@?&=#,;\s]+", form)}
    for part in sorted(parts, key=len, reverse=True):
        if len(part) >= _MIN_PART_LENGTH:
            text = text.replace(part, HIDDEN)
    return text


def _escape_mentions(text: str) -> str:
    """Return a text without mentions: a layer may be named @everyone, or <!channel>."""
    return text.replace("@", "@\u200b").replace("<!", "<\u200b!")


def _keeps_open(target: apprise.NotifyBase) -> bool:
    """Return True for a service that keeps an incident open until a message of success closes it."""
    return getattr(target, "action", None) == "map" and any(hasattr(target, name) for name in _KEYS)


def _open(url: str, number: int) -> Channel:
    try:
        import apprise  # optional, and its import takes a third of a second
    except ModuleNotFoundError as error:
        raise SettingsError(NEEDS_APPRISE) from error
    # The log of apprise contains topics and hosts; _notify raises a redacted part of it.
    logging.getLogger("apprise").propagate = False
    logging.getLogger("apprise").addHandler(logging.NullHandler())
    # Without external images. A timeout of apprise would move the work to threads that the process waits for.
    asset = apprise.AppriseAsset(
        app_id="gradcanary",
        app_desc="gradcanary",
        app_url="",
        image_url_mask="",
        async_mode=False,
        service_timeout=0,
    )
    target = apprise.Apprise.instantiate(url, asset=asset)
    if target is None:
        scheme = re.match(r"[a-z0-9+]{1,20}://", url, re.IGNORECASE)
        shown = f" ({scheme[0]}{HIDDEN})" if scheme else ""
        message = "is no address that apprise knows: see https://appriseit.com/services/."
        raise SettingsError(f"--notify number {number}{shown} {message}")
    target.overflow_mode = apprise.OverflowMode.TRUNCATE
    return Channel(_key(url), str(target.service_name), url, target)


def _begin(channel: Channel) -> object:
    """Register an attempt and return its key; raises TransportError while earlier attempts block it."""
    now, attempt = time.monotonic(), object()
    with channel.lock:
        if any(now - begun < HUNG_S for begun in channel.under_way.values()):
            raise TransportError("the attempt before has not ended yet")
        if len(channel.under_way) >= MAX_HUNG:
            raise TransportError(
                f"{MAX_HUNG} attempts before have not ended yet: restart the service, or the collector"
            )
        channel.under_way[attempt] = now
    return attempt


def _key(url: str) -> str:
    # A fast hash of a weak password can be guessed; this one takes 50 ms per guess.
    fingerprint = hashlib.scrypt(url.encode(), salt=b"gradcanary endpoint", n=2**14, r=8, p=1, dklen=16)
    return f"{KEY}{fingerprint.hex()}"


def _notify(channel: Channel, message: Mapping[str, Any], picture: bytes | None) -> None:
    import apprise

    title, text, kind = render(message)
    services = apprise.Apprise()
    services.add(target_of_incident(channel, message))
    attached = None if picture is None else _attachment(picture)
    result = services.notify(text, title, notify_type=kind, body_format="text", attach=attached)
    if not result:
        reason = "; ".join(entry.message for entry in result.logs()) or str(result.status.name).lower()
        # It may have arrived at one of several addresses, or only its answer was lost.
        raise TransportError(redact_address(f"{channel.service}: {reason}", channel.url), maybe_delivered=True)


def _attachment(picture: bytes) -> AttachBase:
    from apprise.attachment.memory import AttachMemory

    return AttachMemory(picture, "incident.png", "image/png")  # type: ignore[no-untyped-call]  # apprise's constructor
