"""The loop that speaks: twice a second it compares what is true with what was told, and sends what is due.

It hears of nothing; it reads the tables, so a restart or a kill loses no message and makes no second one. Sealing is
a transaction, sending is outside of any, one message per endpoint at a time, so that a receiver that hangs holds up
nobody else.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from functools import partial

import httpx
from sqlalchemy import Connection

from gradcanary_server import attempts, deliveries, leaps, meters, webhooks
from gradcanary_server.attempts import Claim
from gradcanary_server.courier import Courier, Outcome
from gradcanary_server.database import Database
from gradcanary_server.leaps import Leaps, Pulse
from gradcanary_server.loops import Loop
from gradcanary_server.pace import Pace
from gradcanary_server.webhooks import TransportError

WAKE_S = 0.5
STOP_S = 3.0
"""How long a stop waits for answers that are under way."""

MAX_IN_FLIGHT = 16

MAX_STEPS = 50
"""Of one transaction: while thousands of messages were sealed in one, nobody else could write for seconds."""

REST = 10
"""Times what a round takes: one looks at each incident that is open or not told of, and there may be thousands."""

logger = logging.getLogger(__name__)


class Deliverer(Loop):
    """Delivers the incidents of one store from a daemon thread of this process, but those of ``muted`` rules."""

    def __init__(
        self,
        database: Database,
        pace: Pace,
        public_url: str,
        muted: frozenset[str] = frozenset(),
        courier: Courier = Courier(),  # noqa: B008 -- immutable
    ) -> None:
        super().__init__("deliverer", logger)
        self._courier = courier
        self._database = database
        self._pace = pace
        self._muted = muted
        self._public_url = public_url
        self._in_flight: dict[int, asyncio.Task[None]] = {}
        self._pulse = Pulse()
        self._leaps: Leaps = ()

    def stop(self, timeout_s: float | None = STOP_S + 2 * WAKE_S) -> None:
        """End the loop; an attempt that has no answer within 3 s counts as failed and is made again later."""
        super().stop(timeout_s)

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        async with webhooks.open_client() as client:
            while not self._stopping.is_set():
                begun_s = time.thread_time()
                try:
                    self._seal()
                    self._send(client)
                    self._done()
                except Exception as error:  # a message later is worth more than a reason to stop now
                    if not self._outage.explains(error):
                        logger.exception("a round of deliveries failed; the next one is in %s s", WAKE_S)
                self._beat()
                await self._pause(max(WAKE_S, REST * (time.thread_time() - begun_s)))
            await self._wind_down()

    async def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._stopping.is_set() and (left_s := until - time.monotonic()) > 0:
            if not self._in_flight:
                await asyncio.sleep(min(left_s, WAKE_S))
                continue
            # A finished attempt frees its endpoint for the next message at once.
            flying = self._in_flight.values()
            if (await asyncio.wait(flying, timeout=min(left_s, WAKE_S), return_when=asyncio.FIRST_COMPLETED))[0]:
                return

    async def _wind_down(self) -> None:
        tasks = list(self._in_flight.values())
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=STOP_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _seal(self) -> None:
        """Write some of what is due; the store's one writer is asked for only when there is something to write."""
        with self._database.read() as connection:
            now = self._now(connection)
            if not deliveries.plan(connection, self._pace, now, self._muted, self._leaps):
                return
        with self._database.write() as connection:
            now = self._now(connection)
            due = deliveries.plan(connection, self._pace, now, self._muted, self._leaps, holding=True)
            for step in due[:MAX_STEPS]:
                deliveries.carry_out(connection, step, self._public_url, now)

    def _now(self, connection: Connection) -> float:
        """Return the time by the store's clock, and note where that was set."""
        now, by_s = self._pulse.look(partial(self._database.now, connection), self._database.steady)
        if by_s:
            logger.warning("the clock of the store was set by %+.0f s", by_s)
            self._leaps = leaps.after(self._leaps, by_s, now)
        return now

    def _send(self, client: httpx.AsyncClient) -> None:
        """Start an attempt for each endpoint that has a message waiting and none under way."""
        with self._database.read() as connection:
            waiting = deliveries.claimable(connection, self._database.now(connection))
        oldest = {key.endpoint: key for key in reversed(waiting) if key.endpoint not in self._in_flight}
        # In one order everywhere, so that two collectors never wait for each other.
        keys = sorted(list(oldest.values())[: MAX_IN_FLIGHT - len(self._in_flight)])
        if not keys:
            return
        with self._database.write() as connection:
            now = self._database.now(connection)
            claims = [attempts.claim(connection, key, now) for key in keys]
        for claim in claims:
            if claim is not None:
                self._in_flight[claim.key.endpoint] = asyncio.create_task(self._attempt(client, claim))

    async def _attempt(self, client: httpx.AsyncClient, claim: Claim) -> None:
        begun = time.perf_counter()
        try:
            outcome = await self._courier.carry(client, claim.message)
        except asyncio.CancelledError:
            took_ms = round((time.perf_counter() - begun) * 1000)
            outcome = Outcome(TransportError("the collector stopped before an answer came", is_unsure=True), took_ms)
        finally:
            del self._in_flight[claim.key.endpoint]
        self._conclude(claim, outcome)

    def _conclude(self, claim: Claim, outcome: Outcome) -> None:
        meters.ATTEMPTS.labels("delivered" if outcome.error is None else "failed").inc()
        if outcome.error is not None:
            logger.warning("message %s was not delivered: %s", claim.message.id, outcome.error)
        jitter = random.uniform(-1.0, 1.0)  # noqa: S311 -- spreads retries, keeps no secret
        try:
            with self._database.write() as connection:
                now = self._database.now(connection)
                attempts.conclude(connection, claim, outcome.result, outcome.ms, now, jitter)
        except Exception as error:  # the lease ends by itself, and the message is sent again under the same id
            if not self._outage.explains(error):
                logger.exception("the attempt at message %s could not be recorded", claim.message.id)
