"""Slack, Discord, e-mail and what else apprise knows: addresses of the operator's, and messages as plain text.

These addresses are full of passwords. They are read from the command line or a file at each start and kept in memory
only; the tables know them by a fingerprint, and what apprise says of a failure is told without any part of them.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from gradcanary_server.endpoints import Given
from gradcanary_server.errors import SettingsError
from gradcanary_server.observations import Severity
from gradcanary_server.webhooks import TIMEOUT_S, TransportError

if TYPE_CHECKING:
    import apprise

SEVERITIES: tuple[Severity, ...] = ("information", "warning", "critical")

KEY = "apprise:"
"""What stands for an address in the tables, before its fingerprint."""

HIDDEN = "****"
_LEAST_PART = 4
"""Characters of a part of an address that is hidden where apprise repeats it: shorter ones are words."""

NEEDS_APPRISE = "--notify needs the package apprise: pip install 'gradcanary[notify]', or '.[notify]' in a clone."


@dataclass(frozen=True)
class Channel:
    """A configured service; ``key`` stands for its address, which is the operator's secret."""

    key: str
    service: str
    url: str = field(repr=False)
    target: apprise.NotifyBase = field(repr=False, compare=False)
    free: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)


Channels = Mapping[str, Channel]


def split(text: str) -> tuple[Severity, str]:
    """Return the least severity and the address of ``[SEVERITY=]URL``; warning where it says none."""
    for severity in SEVERITIES:
        if text.startswith(f"{severity}="):
            return severity, text.removeprefix(f"{severity}=")
    return "warning", text


def open_all(addresses: Iterable[str]) -> dict[Given, Channel]:
    """Return the endpoints of these ``[SEVERITY=]URL``, and how each is reached; raises SettingsError."""
    found: dict[Given, Channel] = {}
    for number, text in enumerate(addresses, 1):
        severity, url = split(text)
        channel = _open(url, number)
        found[Given(channel.key, severity, "apprise", channel.service[:100])] = channel
    return found


async def notify(channel: Channel, body: bytes) -> None:
    """Send a message as text; raises TransportError.

    A service may hold a connection for ever, and a thread cannot be ended: so it is one that the process need not wait
    for, and there is none beside it.
    """
    if not channel.free.acquire(blocking=False):
        raise TransportError("the attempt before has not ended yet")
    answer: Future[None] = Future()
    answer.set_running_or_notify_cancel()

    def work() -> None:
        failure: Exception | None = None
        try:
            _notify(channel, body)
        except Exception as error:  # noqa: BLE001 -- whoever waits is told
            failure = error
        channel.free.release()  # before anybody hears of the end, who may send the next one
        if failure is None:
            answer.set_result(None)
        else:
            answer.set_exception(failure)

    threading.Thread(target=work, name="gradcanary-notify", daemon=True).start()
    try:
        await asyncio.wait_for(asyncio.wrap_future(answer), TIMEOUT_S)
    except asyncio.TimeoutError as error:
        raise TransportError(f"no answer within {TIMEOUT_S:g} s", is_unsure=True) from error


def rendered(message: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the title, the text, and apprise's type of a message.

    The title is the same for all messages of an incident: mail programs make a thread of it, and PagerDuty finds by it
    what is to be resolved. What may be cut off where a service takes little comes last.
    """
    data = message["data"]
    if message["type"] == "gradcanary.test":
        return "gradcanary: test", f"{data['summary']}\n{data['url']}", "info"
    what = message["type"].rpartition(".")[2]
    # Without the run, which may get another name meanwhile.
    title = f"gradcanary: {data['rule']} (incident {data['incident']})"
    lines = (
        f"{what}, {data['severity']}, in {data['run']}: {_tame(data['summary'])}",
        data["url"],
        f"Likely cause: {_tame(data['likely_cause'])}",
        f"Fix: {data['fix']}",
    )
    kind = {"critical": "failure", "warning": "warning"}.get(data["severity"], "info")
    return title, "\n".join(lines), "success" if data["state"] == "resolved" else kind


def masked(text: str, url: str) -> str:
    """Return a text without any part of an address but its scheme."""
    rest = url.partition("://")[2]
    parts = {part for whole in (rest, unquote(rest)) for part in re.split(r"[/:@?&=#,;\s]+", whole)}
    for part in sorted(parts, key=len, reverse=True):
        if len(part) >= _LEAST_PART:
            text = text.replace(part, HIDDEN)
    return text


def shown(url: str) -> str:
    """Return an address of apprise as it may be shown: its scheme."""
    return f"{url.partition('://')[0]}://{HIDDEN}"


def _tame(text: str) -> str:
    """Return a text that calls nobody: a layer may be named @everyone, or <!channel>."""
    return text.replace("@", "@\u200b").replace("<!", "<\u200b!")


def _open(url: str, number: int) -> Channel:
    try:
        import apprise  # an extra, and a third of a second
    except ModuleNotFoundError as error:
        raise SettingsError(NEEDS_APPRISE) from error
    # What apprise logs names topics and hosts: what matters of it is told by _notify, masked.
    logging.getLogger("apprise").propagate = False
    logging.getLogger("apprise").addHandler(logging.NullHandler())
    # Without pictures from elsewhere; a limit of apprise's own would move the work to threads that it waits for.
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
        said = f" ({scheme[0]}{HIDDEN})" if scheme else ""
        raise SettingsError(
            f"--notify number {number}{said} is no address that apprise knows: see https://appriseit.com/services/."
        )
    target.overflow_mode = apprise.OverflowMode.TRUNCATE
    return Channel(_key(url), str(target.service_name), url, target)


def _key(url: str) -> str:
    # Passwords that people think of can be guessed from a quick hash; this one takes a try 50 ms.
    made = hashlib.scrypt(url.encode(), salt=b"gradcanary endpoint", n=2**14, r=8, p=1, dklen=16)
    return f"{KEY}{made.hex()}"


def _notify(channel: Channel, body: bytes) -> None:
    import apprise

    title, text, kind = rendered(json.loads(body))
    services = apprise.Apprise()
    services.add(channel.target)
    result = services.notify(text, title, notify_type=kind, body_format="text")
    if not result:
        said = "; ".join(entry.message for entry in result.logs()) or str(result.status.name).lower()
        # A part of it may have gone out: to one of several addresses, or but for the answer.
        raise TransportError(masked(f"{channel.service}: {said}", channel.url), is_unsure=True)
