"""One attempt at a message, whichever way its endpoint is reached."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone

import httpx

from gradcanary_server import channels, webhooks
from gradcanary_server.addresses import Guard
from gradcanary_server.channels import Channel
from gradcanary_server.webhooks import Message, TransportError

logger = logging.getLogger(__name__)

Result = int | None | TransportError
"""The status of an answer that is a success, None where the service tells none; or what went wrong."""


@dataclass(frozen=True)
class Outcome:
    """How an attempt went, and how long it took."""

    result: Result
    ms: int

    @property
    def error(self) -> TransportError | None:
        return self.result if isinstance(self.result, TransportError) else None

    @property
    def status(self) -> int | None:
        return self.result.status if isinstance(self.result, TransportError) else self.result


@dataclass(frozen=True)
class Courier:
    """Brings messages to webhooks, where the guard allows it, and to the configured services."""

    channels: Mapping[str, Channel] = field(default_factory=dict)
    guard: Guard = field(default_factory=Guard)

    async def carry(self, client: httpx.AsyncClient, message: Message) -> Outcome:
        """Try once; whatever goes wrong is in the outcome."""
        begun = time.perf_counter()
        try:
            result: Result = await self._send(client, message)
        except TransportError as error:
            result = error
        except Exception as error:  # whatever it was, the message waits for its next attempt
            logger.exception("an attempt at message %s failed in an unforeseen way", message.id)
            result = TransportError(type(error).__name__, is_unsure=True)
        return Outcome(result, round((time.perf_counter() - begun) * 1000))

    async def _send(self, client: httpx.AsyncClient, message: Message) -> int | None:
        if not message.url.startswith(channels.KEY):
            return await webhooks.post(client, message, datetime.now(timezone.utc), self.guard)
        channel = self.channels.get(message.url)
        if channel is None:
            raise TransportError("this collector was started without its --notify: start all of them with the same")
        await channels.notify(channel, message.body)
        return None
