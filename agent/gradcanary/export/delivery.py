"""Requests of a session to its collector (hello, batches, heartbeat, end), and the meaning of each answer.

The sender of a training uses it, and ``gradcanary sync`` for what such a sender could not deliver.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Protocol

from gradcanary import __version__, wire
from gradcanary.export.outbox import InFlight, Outbox
from gradcanary.export.transport import Answer, Transport, UnreachableError
from gradcanary.guard import Guard

RETRY_S = (1.0, 60.0)
REFUSED = (401, 403, 426)
"""Statuses that last until an operator acts."""

MOST_SPACING_S = 10.0
"""At most between two batches: with more, the pages of a training would be too old."""

HOW_TO_CREATE = "'gradcanary token create --scope ingest --name NAME' makes one where the collector runs"
REFUSED_TOKEN = f"{{url}} refuses the token: set GRADCANARY_TOKEN to a valid one; {HOW_TO_CREATE} ({{why}}); {{hint}}"
OTHER_VERSION = "{message} Here is gradcanary {here}. What is measured is kept; {hint}"
"""The collector compares the protocols, so its message names the side to upgrade."""

LIMITS = wire.Limits(max_body=4 * 2**20, max_points=1_000_000, max_layers=20_000)
"""Until the collector has sent its own."""


class HelloSource(Protocol):
    """The hello of a session, and the state of its delivery."""

    was_sent: bool

    @property
    def is_due(self) -> bool:
        """Return True if the collector does not have the present hello."""

    def body(self) -> bytes:
        """Return the present hello as it is sent."""

    def leave_out_extras(self) -> bool:
        """Leave out the fields that an older collector refuses; return False if they were left out already."""

    def mark_sent(self) -> None:
        """Note that the collector has it."""

    def mark_unknown(self) -> None:
        """Note that the collector does not know the session."""


class Delivery:
    """Sends what is in the outbox. Nothing raises; what the collector does not take now is sent again later."""

    def __init__(
        self,
        url: str,
        transport: Transport,
        hello: HelloSource,
        outbox: Outbox,
        guard: Guard,
        on_reply: Callable[[wire.Reply], None],
        hint: str,
    ) -> None:
        self.limits = LIMITS
        self.spacing_s = 0.0
        self.is_refused = False
        self.is_deleted = False
        self.is_reachable = False
        self.is_unauthorized = False
        self.failures = 0
        self.retry_at = 0.0
        self.asked_until = 0.0
        self._url = url
        self._transport, self._hello, self._outbox = transport, hello, outbox
        self._guard, self._on_reply, self._hint = guard, on_reply, hint
        self._rehello_seq: int | None = None
        # Its own generator: the global one belongs to the training.
        self._random = random.Random()  # noqa: S311 -- jitter

    @property
    def is_closed(self) -> bool:
        """Return True if the collector will never take anything of this session."""
        return self.is_refused or self.is_deleted

    def send_hello(self) -> bool:
        """Send the hello if the collector does not have it; return True if it does now."""
        hello = self._hello
        if not hello.is_due:
            return hello.was_sent
        answer = self._request("PUT", "", hello.body(), compress=True)
        if answer is not None and answer.status == 200:
            hello.mark_sent()
            return True
        if answer is not None and answer.status in (413, 422) and hello.leave_out_extras():
            return self.send_hello()
        if answer is not None and answer.status in (400, 409, 413, 415, 422):
            self._guard.print_once(
                "the collector refuses this session: {message}. Nothing is sent.", message=answer.message
            )
            self.is_refused = True
        return False

    def send_next(self) -> bool:
        """Send a batch, and before it the hello if it is due; return True if the next one may follow."""
        if not self.send_hello():
            return False
        batch = self._outbox.next_batch(self.limits)
        return batch is not None and self._send(batch)

    def send_heartbeat(self, heartbeat: wire.Heartbeat) -> None:
        """Send a heartbeat."""
        answer = self._request("POST", "/heartbeat", wire.dump(heartbeat))
        if answer is not None and answer.status == 404:
            self._mark_unknown()

    def send_end(self, ending: bytes) -> bool:
        """Send the end of the session; return True if the collector has it."""
        if not self._outbox.is_empty or not self.send_hello():
            return False
        answer = self._request("POST", "/end", ending)
        if answer is not None and answer.status in (400, 422) and (plain := wire.without_crash(ending)) != ending:
            answer = self._request("POST", "/end", plain)  # an older collector
        if answer is not None and answer.status == 404:
            self._mark_unknown()
            return False
        return answer is not None

    def _send(self, batch: InFlight) -> bool:
        answer = self._request("POST", f"/batches/{batch.seq}", batch.body)
        if answer is None or answer.status == 410:
            return False
        if answer.status == 200:
            self._outbox.acked()
            self._rehello_seq = None
        elif answer.status == 404 or answer.code == "unknown_layer_set":
            return self._rehello(batch)
        elif answer.status == 413:
            if not self._outbox.halve():
                self._guard.print_once("a step was too large for the collector and is lost")
        else:
            line = "the collector refused a batch, which is lost ({status}: {message})"
            self._guard.print_once(line, status=answer.status, message=answer.message)
            self._outbox.set_aside()
        return True

    def _rehello(self, batch: InFlight) -> bool:
        """Send the hello to a collector that does not know the session, once per batch: it may never accept one."""
        self._mark_unknown()
        if self._rehello_seq == batch.seq:
            self._retry_later(None)
            return False
        self._rehello_seq = batch.seq
        return self.send_hello()

    def _mark_unknown(self) -> None:
        """Send everything again: the collector has nothing of this session."""
        self._hello.mark_unknown()
        self._outbox.resend_all()

    def _request(self, method: str, path: str, body: bytes, *, compress: bool = False) -> Answer | None:
        """Return an answer that settles the request, None if it has to be made again later."""
        try:
            answer = self._transport.send(method, path, body, compress=compress)
        except UnreachableError as error:
            if not self._transport.is_aborted:
                self._print_once("no collector at {url} ({error}); {hint}", error=error)
            self._retry_later(None)
            return None
        if self._is_settled(answer, is_hello=method == "PUT"):
            return answer
        self._retry_later(answer.retry_after_s or (RETRY_S[1] if answer.status in REFUSED else None))
        return None

    def _is_settled(self, answer: Answer, *, is_hello: bool) -> bool:
        """Return True if the request is not to be made again."""
        status = answer.status
        if status == 200:
            return self._read_reply(answer)
        if status == 410:
            self._guard.print_once("this run was deleted in the collector; nothing more is sent")
            self.is_deleted = True
            return True
        if status in (401, 403):
            self._print_once(REFUSED_TOKEN, why=answer.message or f"it answers {status}")
            self.is_unauthorized = True
            return False
        if status == 426:
            self._print_once(OTHER_VERSION, message=answer.message, here=__version__)
            return False
        if status in (400, 404, 409, 413, 415, 422) and not (is_hello and status == 404):
            self.is_reachable = True
            return True
        self.is_reachable = status in (408, 429) or status >= 500
        if not self.is_reachable:
            self._print_once("{url} answered {status} (is it a gradcanary collector?); {hint}", status=status)
        return False

    def _read_reply(self, answer: Answer) -> bool:
        try:
            reply = wire.load_reply(answer.body)
        except ValueError:
            self._print_once("{url} does not answer as a collector does; {hint}")
            return False
        self.is_reachable = True
        self.is_unauthorized = False
        self.failures = 0
        self.limits = reply.limits
        self.spacing_s = min(max(0.0, reply.spacing_s), MOST_SPACING_S)  # a NaN is 0
        self._on_reply(reply)
        return True

    def _print_once(self, line: str, **gaps: object) -> None:
        self._guard.print_once(line, url=self._url, hint=self._hint, **gaps)

    def _retry_later(self, wish_s: float | None) -> None:
        low, high = RETRY_S
        wait_s = min(low * 2.0**self.failures, high) if wish_s is None else min(max(wish_s, low), high)
        self.asked_until = 0.0 if wish_s is None else time.monotonic() + wait_s
        self.failures = min(self.failures + 1, 10)
        self.retry_at = time.monotonic() + wait_s * self._random.uniform(1.0, 1.25)
