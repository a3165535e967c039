"""Connections to a PostgreSQL that may fall silent: a network that loses all, a host or a disk that hangs.

TCP notices nothing while a kernel or a proxy acknowledges what nobody reads, and limits of the server's own are kept by
no server that hangs. So each wait ends here, where the client is: what is no work has ANSWER_S; who waits longer for
work asks on a connection of its own whether anybody is there, and goes on as long as somebody is. Only one thread at a
time tries to reach a server that said nothing, and the others are told so at once.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg.waiting import Ready

if TYPE_CHECKING:
    from psycopg.abc import PQGen
    from sqlalchemy import Dialect
    from sqlalchemy.pool import ConnectionPoolEntry

ANSWER_S = 2.0
"""Within which a server that lives answers what is no work; a failure that took as long is silence, and no refusal."""

AGAIN_S = 2.0
"""How long nobody tries again after that, which is what the 503 asks senders for."""

Result = TypeVar("Result")


class Line(psycopg.Connection[Any]):
    """A connection on which nobody waits in vain; ``limit_s`` is the longest that the server may take by right."""

    contact: Contact
    limit_s: float = ANSWER_S

    def wait(self, gen: PQGen[Result], *arguments: float | None, **options: float | None) -> Result:
        """Return what a statement gives; raises OperationalError, and closes, where no answer is to be had."""
        return super().wait(self._watched(gen), *arguments, **options)  # type: ignore[arg-type]  # as it was called

    def _watched(self, gen: PQGen[Result]) -> PQGen[Result]:
        # psycopg looks up every 0.1 s while nothing arrives (it has to hear of Ctrl-C), and says that nothing did.
        began, came = time.monotonic(), 0
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if not ready:
                    self._check(time.monotonic() - began)
                came |= ready & Ready.R
                wanted = gen.send(ready)
        except StopIteration as end:
            if came:  # there are some for which nothing goes to the server, as to turn autocommit on
                self.contact.hear()
            result: Result = end.value
            return result

    def _check(self, waited_s: float) -> None:
        # A store that is being prepared is not left for one packet that was lost.
        looks = 2 if self.limit_s == math.inf else 1
        if waited_s < ANSWER_S or (waited_s < self.limit_s and self.contact.answers(looks)):
            return
        self.close()
        raise psycopg.OperationalError(f"no answer in {waited_s:.1f} s")


class Contact:
    """Opens the connections of one engine, and knows whether the server answers; safe to share between threads."""

    def __init__(self, prepare: Callable[[psycopg.Connection[Any]], None]) -> None:
        """``prepare`` is what each connection is given before it is used."""
        self._prepare = prepare
        self._arguments: tuple[list[Any], dict[str, Any]] = [], {}
        self._lock = threading.Lock()
        self._asking = threading.Lock()
        self._silences = 0  # how many looks in a row had no answer
        self._again = self._answered = -math.inf  # when one may try; when it last said anything

    def connect(self, _dialect: Dialect, _entry: ConnectionPoolEntry, words: list[Any], named: dict[str, Any]) -> Line:
        """Return a new connection for SQLAlchemy's pool; raises psycopg's errors."""
        self._arguments = words, named
        return self._open()

    def answers(self, looks: int) -> bool:
        """Tell whether the server says anything, be it no, to who comes anew; one asks for all, now and then.

        It does until so many looks in a row had no answer, and while somebody looks: what is known may be old.
        """
        is_due = time.monotonic() >= (self._again if self._silences else self._answered + AGAIN_S)
        if is_due and self._asking.acquire(blocking=False):
            try:
                self._open().close()
            except psycopg.Error:
                pass  # whether that was an answer has been noted
            finally:
                self._asking.release()
        return self._silences < looks or self._again == math.inf

    def hear(self) -> None:
        """Note that the server said something on a connection that is open."""
        self._answered = time.monotonic()
        if self._silences:
            with self._lock:
                self._silences = 0

    def _open(self) -> Line:
        with self._trying():
            words, named = self._arguments
            line = Line.connect(*words, **named)
            line.contact = self
            try:
                self._prepare(line)
            except BaseException:
                line.close()
                raise
            return line

    @contextmanager
    def _trying(self) -> Iterator[None]:
        began = time.monotonic()
        with self._lock:
            before = self._silences
            if before and began < self._again:
                raise psycopg.OperationalError("the server was asked just now, and did not answer")
            self._again = math.inf  # looked at only while it is silent: others wait for how this one ends
        has_answered = False
        try:
            yield
            has_answered = True
        finally:
            now = time.monotonic()
            is_silent = not has_answered and now - began >= ANSWER_S
            self._note(began, now, before + 1 if is_silent else 0)

    def _note(self, began: float, now: float, silences: int) -> None:
        with self._lock:
            self._again = now + AGAIN_S
            if not silences:
                self._silences, self._answered = 0, now
            elif began > self._answered:  # else it says nothing of now: the way that it took may be gone
                self._silences = max(self._silences, silences)
