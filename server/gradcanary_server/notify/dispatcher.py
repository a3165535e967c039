"""The loop that plans notifications twice a second and sends the ones that are due.

It reads the tables, so a restart or a kill loses no message and doubles none. Messages are sent outside transactions,
one per endpoint at a time: a receiver that hangs delays no other endpoint. Attempts share an event loop, and
transactions run in threads: a transaction can take seconds, and attempts would time out meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Collection
from functools import partial
from typing import TypeVar

import httpx

from gradcanary_server import telemetry
from gradcanary_server.background import BackgroundLoop, run_in_daemon_thread
from gradcanary_server.errors import StoreUnavailable
from gradcanary_server.incidents import text
from gradcanary_server.notify import outbox, webhook
from gradcanary_server.notify.outbox import Claim
from gradcanary_server.notify.sender import Attempt, Sender
from gradcanary_server.notify.webhook import TransportError
from gradcanary_server.rules.config import Pace
from gradcanary_server.storage.database import Database
from gradcanary_server.tsdb.reader import Reader

WAKE_S = 0.5
STOP_S = 3.0
"""Time that a stop waits for attempts under way."""

MAX_IN_FLIGHT = 16

MAX_THREADS = 4
"""For transactions: one for the round, three for results of attempts. Each takes a connection of the store."""

MAX_STEPS = 50
"""Steps per transaction: thousands of messages in one kept all other writers waiting for seconds."""

PAUSE_FACTOR = 10
"""The pause between rounds, in CPU times of a round: a round reads each incident with notifications to come."""

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Dispatcher(BackgroundLoop):
    """Sends the notifications of one store, except those of ``muted`` rules."""

    def __init__(
        self,
        database: Database,
        pace: Pace,
        public_url: str,
        muted: frozenset[str] = frozenset(),
        sender: Sender = Sender(),  # noqa: B008 -- immutable
        measurements: Reader | None = None,
    ) -> None:
        super().__init__("dispatcher", logger)
        self._sender = sender
        self._database, self._measurements = database, measurements
        self._pace = pace
        self._muted = muted
        self._public_url = public_url
        self._in_flight: dict[int, asyncio.Task[None]] = {}
        self._answered: set[int] = set()  # endpoints of attempts with a result that is not recorded yet
        self._freed: asyncio.Event
        self._round_s = 0.0
        self._turns: asyncio.Semaphore

    def stop(self, timeout_s: float | None = STOP_S + 2 * WAKE_S) -> None:
        """End the loop; an attempt without an answer within 3 s counts as failed and is repeated later."""
        super().stop(timeout_s)

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _in_thread(self, work: Callable[[], T]) -> T:
        async with self._turns:
            return await run_in_daemon_thread(work, "gradcanary-dispatcher-work")

    async def _serve(self) -> None:
        self._freed, self._turns = asyncio.Event(), asyncio.Semaphore(MAX_THREADS)
        async with webhook.open_client() as client:
            while not self._stopping.is_set():
                self._freed.clear()
                with self._tracked_round():
                    claims = await self._in_thread(partial(self._round, frozenset(self._in_flight)))
                    for claim in claims:
                        self._in_flight[claim.key.endpoint_id] = asyncio.create_task(self._attempt(client, claim))
                await self._pause(max(WAKE_S, PAUSE_FACTOR * self._round_s))
            await self._finish_attempts()

    async def _pause(self, seconds: float) -> None:
        """Wait, but no longer than until an endpoint is free for its next message."""
        until = time.monotonic() + seconds
        while not self._stopping.is_set() and (left_s := until - time.monotonic()) > 0:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._freed.wait(), min(left_s, WAKE_S))
                return

    async def _finish_attempts(self) -> None:
        tasks = list(self._in_flight.values())
        if not tasks:
            return
        await asyncio.wait(tasks, timeout=STOP_S)
        for endpoint, task in self._in_flight.items():
            if endpoint not in self._answered:  # an attempt with an answer is recorded: it would be repeated
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _round(self, busy: Collection[int]) -> list[Claim]:
        """Enqueue due messages, and claim the next message of each free endpoint."""
        begun_s = time.thread_time()
        try:
            self._enqueue()
            return self._claim(busy)
        finally:
            self._round_s = time.thread_time() - begun_s

    def _enqueue(self) -> None:
        """Write summaries and due steps, those of each run in a transaction of its own.

        Texts are composed before it, because they read the names of all layers.
        """
        with self._database.read() as connection:
            now = self._database.now(connection)
            summaries = text.compose_missing(connection)
            due = outbox.plan_deliveries(connection, self._pace, now, self._muted)
            drafts = outbox.compose_drafts(connection, due[:MAX_STEPS], self._public_url, now, self._measurements)
        for run_id in sorted({each.run_id for each in (*summaries, *due[:MAX_STEPS])}):
            with self._database.write() as connection:
                now = self._database.now(connection)
                text.store_summaries(connection, [summary for summary in summaries if summary.run_id == run_id])
                due = outbox.plan_deliveries(connection, self._pace, now, self._muted, run_id=run_id)
                for step in due[:MAX_STEPS]:
                    outbox.apply_step(connection, step, drafts, now)

    def _claim(self, busy: Collection[int]) -> list[Claim]:
        """Claim the oldest message of each endpoint that is not busy."""
        with self._database.read() as connection:
            due = outbox.claimable(connection, self._database.now(connection))
        oldest = {key.endpoint_id: key for key in reversed(due) if key.endpoint_id not in busy}
        keys = list(oldest.values())[: MAX_IN_FLIGHT - len(busy)]
        claims: list[Claim] = []
        for key in keys:
            try:
                with self._database.write() as connection:
                    claim = outbox.claim_delivery(connection, key, self._database.now(connection))
            except StoreUnavailable:
                if not claims:
                    raise
                return claims  # they are sent: nobody else may, until their leases end
            claims += [] if claim is None else [claim]
        return claims

    async def _attempt(self, client: httpx.AsyncClient, claim: Claim) -> None:
        begun = time.perf_counter()
        try:
            outcome = await self._sender.send(client, claim.message)
        except asyncio.CancelledError:
            took_ms = round((time.perf_counter() - begun) * 1000)
            outcome = Attempt(
                TransportError("the collector stopped before an answer came", maybe_delivered=True), took_ms
            )
        self._answered.add(claim.key.endpoint_id)
        try:
            await self._finish(claim, outcome)
        finally:
            self._answered.discard(claim.key.endpoint_id)
            del self._in_flight[claim.key.endpoint_id]
            self._freed.set()

    async def _finish(self, claim: Claim, outcome: Attempt) -> None:
        """Record an attempt as soon as the store accepts it; its endpoint is busy until then."""
        telemetry.ATTEMPTS.labels("delivered" if outcome.error is None else "failed").inc()
        if outcome.error is not None:
            logger.warning("message %s was not delivered: %s", claim.message.id, outcome.error)
        record = partial(self._record, claim, outcome, random.uniform(-1.0, 1.0))  # noqa: S311 -- spreads retries
        is_first = True
        while True:
            try:
                return await self._in_thread(record)
            except Exception as error:
                # Without a record the lease expires, and the message is sent again with the same id.
                is_last = not isinstance(error, StoreUnavailable) or self._stopping.is_set()
                # An outage is logged once: rounds that only read may succeed meanwhile.
                if (is_first or is_last) and not self._outage.handles(error):
                    logger.exception("the attempt at message %s could not be recorded", claim.message.id)
                if is_last:
                    return None
            is_first = False
            await asyncio.sleep(WAKE_S)

    def _record(self, claim: Claim, outcome: Attempt, jitter: float) -> None:
        with self._database.write() as connection:
            now = self._database.now(connection)
            outbox.finish_attempt(connection, claim, outcome, now, jitter)
