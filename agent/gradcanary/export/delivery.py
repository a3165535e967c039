"""How a session reaches its collector: hello, batches, heartbeat and end, and what each answer means.

Used by the thread that watches a training, and by ``gradcanary sync`` for what such a thread could not deliver.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Protocol

from gradcanary import wire
from gradcanary.export.outbox import InFlight, Outbox
from gradcanary.export.transport import Answer, Transport, UnreachableError
from gradcanary.guard import Guard

RETRY_S = (1.0, 60.0)
REFUSED = (401, 403, 426)
"""Answers that only a person changes."""

MOST_SPACING_S = 10.0
"""Between two batches, whatever the collector asks for: what it knows of a training would be too old."""

LIMITS = wire.Limits(max_body=4 * 2**20, max_points=1_000_000, max_layers=20_000)
"""Until the collector has told its own."""


class Introduction(Protocol):
    """What a session says of itself, and whether it was said."""

    was_said: bool

    @property
    def is_due(self) -> bool:
        """Whether the collector does not know what we know."""

    def body(self) -> bytes:
        """Return the hello of now, as it is sent."""

    def said(self) -> None:
        """Note that the collector has it."""

    def forgotten(self) -> None:
        """Note that the collector does not know the session (any more)."""


class Delivery:
    """Carries what is in the outbox to the collector. Nothing raises; what cannot be taken now is sent again later."""

    def __init__(
        self,
        url: str,
        transport: Transport,
        greeting: Introduction,
        outbox: Outbox,
        guard: Guard,
        heard: Callable[[wire.Reply], None],
        meanwhile: str,
    ) -> None:
        self.limits = LIMITS
        self.spacing_s = 0.0
        self.is_refused = False
        self.is_deleted = False
        self.is_there = False
        self.is_barred = False
        self.failures = 0
        self.retry_at = 0.0
        self.asked_until = 0.0
        self._url = url
        self._transport, self._greeting, self._outbox = transport, greeting, outbox
        self._guard, self._heard, self._meanwhile = guard, heard, meanwhile
        self._forgiven: int | None = None
        # An own generator: the global one belongs to the training.
        self._random = random.Random()  # noqa: S311 -- jitter

    @property
    def is_over(self) -> bool:
        """Whether the collector will never take anything of this session."""
        return self.is_refused or self.is_deleted

    def greet(self) -> bool:
        """Say hello where the collector does not know yet what we know; tell whether it does now."""
        greeting = self._greeting
        if not greeting.is_due:
            return greeting.was_said
        answer = self._request("PUT", "", greeting.body(), compress=True)
        if answer is not None and answer.status == 200:
            greeting.said()
            return True
        if answer is not None and answer.status in (400, 409, 413, 415, 422):
            self._guard.say("the collector refuses this session: {message}. Nothing is sent.", message=answer.message)
            self.is_refused = True
        return False

    def send_next(self) -> bool:
        """Send a batch, and hello before it where that is due; tell whether the next one may follow."""
        if not self.greet():
            return False
        batch = self._outbox.next_batch(self.limits)
        return batch is not None and self._send(batch)

    def beat(self, heartbeat: wire.Heartbeat) -> None:
        """Send a sign of life."""
        answer = self._request("POST", "/heartbeat", wire.dump(heartbeat))
        if answer is not None and answer.status == 404:
            self._forget()

    def end(self, ending: bytes) -> bool:
        """Send the last word; tell whether the collector has it."""
        if not self._outbox.is_empty or not self.greet():
            return False
        answer = self._request("POST", "/end", ending)
        if answer is not None and answer.status == 404:
            self._forget()
            return False
        return answer is not None

    def _send(self, batch: InFlight) -> bool:
        answer = self._request("POST", f"/batches/{batch.seq}", batch.body)
        if answer is None or answer.status == 410:
            return False
        if answer.status == 200:
            self._outbox.acked()
            self._forgiven = None
        elif answer.status == 404 or answer.code == "unknown_layer_set":
            return self._greet_again(batch)
        elif answer.status == 413:
            if not self._outbox.halve():
                self._guard.say("a step was too large for the collector and is lost")
        else:
            line = "the collector refused a batch, which is lost ({status}: {message})"
            self._guard.say(line, status=answer.status, message=answer.message)
            self._outbox.set_aside()
        return True

    def _greet_again(self, batch: InFlight) -> bool:
        """Say hello to a collector that does not know us; once per batch, so that we do not go round in circles."""
        self._forget()
        if self._forgiven == batch.seq:
            self._retry_later(None)
            return False
        self._forgiven = batch.seq
        return self.greet()

    def _forget(self) -> None:
        """The collector has nothing of this session: say everything again."""
        self._greeting.forgotten()
        self._outbox.resend_all()

    def _request(self, method: str, path: str, body: bytes, *, compress: bool = False) -> Answer | None:
        """Return an answer that settles the request, None where it has to be made again later."""
        try:
            answer = self._transport.send(method, path, body, compress=compress)
        except UnreachableError as error:
            if not self._transport.is_aborted:
                self._say("no collector at {url} ({error}); {meanwhile}", error=error)
            self._retry_later(None)
            return None
        if self._is_settled(answer, is_hello=method == "PUT"):
            return answer
        self._retry_later(answer.retry_after_s or (RETRY_S[1] if answer.status in REFUSED else None))
        return None

    def _is_settled(self, answer: Answer, *, is_hello: bool) -> bool:
        """Tell whether the answer is the last word on its request."""
        status = answer.status
        if status == 200:
            return self._hear(answer)
        if status == 410:
            self._guard.say("this run was deleted in the collector; nothing more is sent")
            self.is_deleted = True
            return True
        if status in (401, 403):
            why = answer.message or f"it answers {status}"
            self._say("the collector refuses our token: set GRADCANARY_TOKEN ({why}); {meanwhile}", why=why)
            self.is_barred = True
            return False
        if status == 426:
            line = "the collector does not speak this agent's protocol: {message}; {meanwhile}"
            self._say(line, message=answer.message)
            return False
        if status in (400, 404, 409, 413, 415, 422) and not (is_hello and status == 404):
            self.is_there = True
            return True
        self.is_there = status in (408, 429) or status >= 500
        if not self.is_there:
            self._say("{url} answers {status}, which no collector does; {meanwhile}", status=status)
        return False

    def _hear(self, answer: Answer) -> bool:
        try:
            reply = wire.load_reply(answer.body)
        except ValueError:
            self._say("{url} does not answer as a collector does; {meanwhile}")
            return False
        self.is_there = True
        self.is_barred = False
        self.failures = 0
        self.limits = reply.limits
        self.spacing_s = min(max(0.0, reply.spacing_s), MOST_SPACING_S)  # a NaN is 0
        self._heard(reply)
        return True

    def _say(self, line: str, **gaps: object) -> None:
        self._guard.say(line, url=self._url, meanwhile=self._meanwhile, **gaps)

    def _retry_later(self, wish_s: float | None) -> None:
        low, high = RETRY_S
        wait_s = min(low * 2.0**self.failures, high) if wish_s is None else min(max(wish_s, low), high)
        self.asked_until = 0.0 if wish_s is None else time.monotonic() + wait_s
        self.failures = min(self.failures + 1, 10)
        self.retry_at = time.monotonic() + wait_s * self._random.uniform(1.0, 1.25)
