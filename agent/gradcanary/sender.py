"""The agent's one thread: reads the records of the training thread, sends them, and hears of incidents.

The training never waits for it. Nothing here raises; what the collector refuses is counted and set aside, what it
cannot take now is sent again later, byte for byte.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from gradcanary import wire
from gradcanary.greeting import INTERVAL_S, Greeting
from gradcanary.guard import Guard
from gradcanary.observer import Observer
from gradcanary.outbox import Outbox, Parcel
from gradcanary.readings import Reader
from gradcanary.records import Record
from gradcanary.ring import Ring
from gradcanary.transport import Answer, Transport, UnreachableError

FLUSH_S = 0.5
ORIGIN_WAIT_S = 2.0
"""How long the first hello waits for the first window, which knows more."""

RETRY_S = (1.0, 60.0)
REFUSED = (401, 403, 426)
"""Answers that only a person changes."""

LAST_RETRY_S = 0.25
"""Between two tries while the process waits to end."""

ABORT_S = 0.2
"""For a request that was cut off to fail."""

LIMITS = wire.Limits(max_body=4 * 2**20, max_points=1_000_000, max_layers=20_000)
"""Until the collector has told its own."""

Alerted = Callable[[wire.Brief], None]


class Sender:
    """Sends a session: hello, batches, heartbeats, end."""

    def __init__(
        self,
        observer: Observer,
        ring: Ring[Record],
        transport: Transport,
        greeting: Greeting,
        guard: Guard,
        on_alert: Alerted | None,
        *,
        is_silent: bool,
    ) -> None:
        self.incidents: tuple[wire.Brief, ...] = ()
        self._observer, self._ring, self._transport = observer, ring, transport
        self._greeting, self._guard, self._on_alert = greeting, guard, on_alert
        self._is_silent = is_silent
        self._reader = Reader(observer.settings.absmax_below)
        self._outbox = Outbox(observer.settings.interval)
        self._limits = LIMITS
        self._told: dict[int, str] = {}
        self._end: wire.End | None = None
        self._deadline = 0.0
        self._is_over = False
        self._step: int | None = None
        self._forgiven: int | None = None
        self._failures = 0
        self._retry_at = 0.0
        self._asked_until = 0.0
        self._is_there = False
        self._beat_at = time.monotonic() + INTERVAL_S
        self._began = time.monotonic()
        # An own generator: the global one belongs to the training.
        self._random = random.Random()  # noqa: S311 -- jitter
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gradcanary-sender", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    @property
    def is_done(self) -> bool:
        """Whether all that was to be sent went out, or nothing is to be sent any more."""
        return self._is_over or (not len(self._ring) and self._outbox.is_empty)

    def stop(self, end: wire.End, timeout_s: float) -> None:
        """Send what is left and the end, for so long at most."""
        self._end = end
        self._deadline = time.monotonic() + timeout_s
        self._stopping.set()
        if threading.current_thread() is self._thread:
            return  # on_alert closed the watch: the rest is sent when it returns
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._transport.abort()
            self._thread.join(ABORT_S)

    def _run(self) -> None:
        while not self._stopping.wait(FLUSH_S):
            self._guarded(self._round)
        self._guarded(self._finish)
        self._transport.close()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 -- a thread that dies would be a silent end of the monitoring
            self._guard.catch("the sender", error)

    def _round(self) -> None:
        self._read_records()
        if self._is_over or time.monotonic() < self._retry_at:
            return
        self._flush()
        if time.monotonic() >= max(self._beat_at, self._retry_at):
            self._beat()

    def _finish(self) -> None:
        """Send what is left and the end, again and again until the time given is over."""
        self._read_records()
        while self._end is not None and not self._is_over and not self._is_said(self._end):
            wait_s = max(LAST_RETRY_S, self._asked_until - time.monotonic())
            # A collector that never answered is not waited for.
            if not self._is_there or time.monotonic() + wait_s > self._deadline:
                return
            time.sleep(wait_s)

    def _is_said(self, end: wire.End) -> bool:
        self._flush()
        if not self._outbox.is_empty or not self._greet():
            return False
        answer = self._request("POST", "/end", wire.dump(replace(end, last_step=self._step)))
        if answer is not None and answer.status == 404:
            self._forget()
            return False
        return answer is not None

    def _read_records(self) -> None:
        while (record := self._ring.take()) is not None:
            try:
                row = self._reader.read(record)
            except Exception as error:  # noqa: BLE001 -- one bad step must not hold up the others
                self._guard.catch("reading a step", error)
                self._outbox.lost += 1
                continue
            self._observer.wishes = self._reader.wishes
            self._step = row.step
            self._greeting.learn(self._observer, row.layer_set)
            if not self._is_silent and not self._is_over:
                self._outbox.add(row)

    def _flush(self) -> None:
        if not self._greet():
            return
        while (parcel := self._outbox.next(self._limits, self._ring.dropped)) is not None:
            if not self._greet() or not self._deliver(parcel):
                return

    def _greet(self) -> bool:
        """Say hello where the collector does not know yet what we know; tell whether it does now."""
        greeting = self._greeting
        greeting.learn(self._observer, None)
        is_early = not greeting.is_complete and time.monotonic() - self._began < ORIGIN_WAIT_S
        if not greeting.is_due or (is_early and self._end is None):
            return greeting.was_said
        answer = self._request("PUT", "", wire.dump(greeting.hello()), compress=True)
        if answer is not None and answer.status == 200:
            greeting.said()
            return True
        if answer is not None and answer.status in (400, 409, 413, 415, 422):
            self._guard.say(f"the collector refuses this session: {answer.message}. Nothing is sent.")
            self._give_up()
        return False

    def _deliver(self, parcel: Parcel) -> bool:
        """Send a batch; tell whether the next one may follow."""
        answer = self._request("POST", f"/batches/{parcel.seq}", parcel.body)
        if answer is None:
            return False
        if answer.status == 200:
            self._outbox.taken()
            self._forgiven = None
        elif answer.status == 410:
            return False
        elif answer.status == 404 or answer.code == "unknown_layer_set":
            return self._greet_again(parcel)
        elif answer.status == 413:
            if not self._outbox.halve():
                self._guard.say("a step was too large for the collector and is lost")
        else:
            self._guard.say(f"the collector refused a batch, which is lost ({answer.status}: {answer.message})")
            self._outbox.set_aside()
        return True

    def _greet_again(self, parcel: Parcel) -> bool:
        """Say hello to a collector that does not know us; once per batch, so that we do not go round in circles."""
        self._forget()
        if self._forgiven == parcel.seq:
            self._retry_later(None)
            return False
        self._forgiven = parcel.seq
        return self._greet()

    def _beat(self) -> None:
        self._beat_at = time.monotonic() + INTERVAL_S
        if not self._greeting.was_said:
            return
        share = self._observer.share()
        body = wire.dump(wire.Heartbeat(self._step, 0, self._ring.dropped + self._outbox.lost, share))
        answer = self._request("POST", "/heartbeat", body)
        if answer is not None and answer.status == 404:
            self._forget()

    def _forget(self) -> None:
        """The collector has nothing of this session: say everything again."""
        self._greeting.forgotten()
        self._outbox.repeat()

    def _give_up(self) -> None:
        self._is_over = True
        self._outbox.clear()

    def _request(self, method: str, path: str, body: bytes, *, compress: bool = False) -> Answer | None:
        """Return an answer that settles the request, None where it has to be made again later."""
        try:
            answer = self._transport.send(method, path, body, compress=compress)
        except UnreachableError as error:
            self._guard.say(
                f"no collector at {self._observer.settings.url} ({error}); the training goes on, still trying"
            )
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
            self._give_up()
            return True
        if status in (401, 403):
            self._guard.say("the collector refuses our token: set GRADCANARY_TOKEN, or watch(token=); still trying")
            return False
        if status == 426:
            self._guard.say(f"the collector does not speak this agent's protocol: {answer.message}; still trying")
            return False
        if status in (400, 404, 409, 413, 415, 422) and not (is_hello and status == 404):
            self._is_there = True
            return True
        self._is_there = status in (408, 429) or status >= 500
        if not self._is_there:
            self._guard.say(f"{self._observer.settings.url} answers {status}, which no collector does; still trying")
        return False

    def _hear(self, answer: Answer) -> bool:
        try:
            reply = wire.load_reply(answer.body)
        except ValueError:
            self._guard.say(f"{self._observer.settings.url} does not answer as a collector does; still trying")
            return False
        self._is_there = True
        self._failures = 0
        self._limits = reply.limits
        self.incidents = reply.incidents
        for brief in reply.incidents:
            if self._told.get(brief.id) != brief.severity:
                self._told[brief.id] = brief.severity
                self._alert(brief)
        return True

    def _alert(self, brief: wire.Brief) -> None:
        if self._on_alert is None:
            return
        try:
            self._on_alert(brief)
        except (Exception, SystemExit) as error:  # noqa: BLE001 -- not ours; an exit() would end only this thread
            self._guard.catch("on_alert", error)

    def _retry_later(self, wish_s: float | None) -> None:
        low, high = RETRY_S
        wait_s = min(low * 2.0**self._failures, high) if wish_s is None else min(max(wish_s, low), high)
        self._asked_until = 0.0 if wish_s is None else time.monotonic() + wait_s
        self._failures = min(self._failures + 1, 10)
        self._retry_at = time.monotonic() + wait_s * self._random.uniform(1.0, 1.25)
