"""One attempt to send a message, by webhook or apprise."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone

import httpx

from gradcanary_server.notify import apprise_channel, webhook
from gradcanary_server.notify.apprise_channel import Channel
from gradcanary_server.notify.egress import EgressPolicy
from gradcanary_server.notify.pictures import Pictures
from gradcanary_server.notify.webhook import OutgoingMessage, TransportError

logger = logging.getLogger(__name__)

Result = int | None | TransportError
"""The status of a success, None if the service has none; else the error."""


@dataclass(frozen=True)
class Attempt:
    """The result of an attempt and its duration."""

    result: Result
    ms: int

    @property
    def error(self) -> TransportError | None:
        return self.result if isinstance(self.result, TransportError) else None

    @property
    def status(self) -> int | None:
        return self.result.status if isinstance(self.result, TransportError) else self.result


@dataclass(frozen=True)
class Sender:
    """Sends messages to webhooks that the egress policy allows, and to the configured apprise services.

    Those that take files get the ``pictures`` of incidents, if there are any.
    """

    channels: Mapping[str, Channel] = field(default_factory=dict)
    guard: EgressPolicy = field(default_factory=EgressPolicy)
    pictures: Pictures | None = None

    async def send(self, client: httpx.AsyncClient, message: OutgoingMessage) -> Attempt:
        """Send a message once; every error is in the result."""
        begun = time.perf_counter()
        try:
            result: Result = await self._send(client, message)
        except TransportError as error:
            result = error
        except Exception as error:  # the message waits for its next attempt after any error
            logger.exception("an attempt at message %s failed with an unexpected error", message.id)
            result = TransportError(type(error).__name__, maybe_delivered=True)
        return Attempt(result, round((time.perf_counter() - begun) * 1000))

    async def _send(self, client: httpx.AsyncClient, message: OutgoingMessage) -> int | None:
        if not message.url.startswith(apprise_channel.KEY):
            return await webhook.post_message(client, message, datetime.now(timezone.utc), self.guard)
        channel = self.channels.get(message.url)
        if channel is None:
            raise TransportError("this collector was started without its --notify: start all of them with the same")
        await apprise_channel.send_message(channel, message.body, await self._picture(channel, message))
        return None

    async def _picture(self, channel: Channel, message: OutgoingMessage) -> bytes | None:
        incident = apprise_channel.pictured_incident(channel, message.body)
        return None if self.pictures is None or incident is None else await self.pictures.draw_in_time(incident)
