"""Rows on their way to the collector: cut into batches, numbered when sent, kept until they are acknowledged.

A batch that was sent once keeps its number and its bytes, so that sending it again is safe. As long as the collector
takes everything, rows become batches as they are sent. Otherwise they wait as batches in the spool, or in memory where
there is none, and go before what is new.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from gradcanary import wire
from gradcanary.export.batches import (
    MAX_STEPS,
    Dtypes,
    StepRow,
    UnsentBatch,
    build_batch,
    count_fitting,
    dtypes_by_layer,
    halve_batch,
    parse_batch,
    set_dropped_steps,
)
from gradcanary.export.spool import Progress, Spool, StoredBatch, expendable_positions
from gradcanary.wording import count

MEMORY_BYTES = 128 * 2**20

Creates = Callable[[bytes, Progress], Spool]
"""Makes the spool of a session from its hello and its progress."""

NO_SPOOL = "no spool can be kept ({error}); what the collector does not take waits in memory"
NOT_WRITTEN = "{path} cannot be written ({error}); what comes now waits in memory"
NOT_READ = "{path} cannot be read ({error}); {steps} lost"


class RetryQueue:
    """Batches that the collector did not take, in their order: those in the spool, then those in memory.

    A spool that fails is left: what it holds is still sent if it can be read, what comes later is kept in memory. Each
    of the two is bounded; full, it gives up every second part of its oldest half. No method raises for the fault of a
    disk. A spool that could not be made is tried again in the next outage, and at the end of the session.
    ``print_once`` is :meth:`gradcanary.guard.Guard.print_once`.
    """

    def __init__(self, create: Creates | None, print_once: Callable[..., object], spool: Spool | None = None) -> None:
        self._create, self._print_once = create, print_once
        self._spool, self._takes_more = spool, spool is not None
        self._has_failed = False
        self._memory: deque[StoredBatch] = deque()
        self._memory_size = 0

    @property
    def is_empty(self) -> bool:
        return not self._memory and not self._is_spooled

    @property
    def size(self) -> int:
        """Bytes that wait."""
        return (self._spool.size if self._spool else 0) + self._memory_size

    @property
    def steps(self) -> int:
        """Sampled steps that wait."""
        return (self._spool.steps if self._spool else 0) + sum(batch.steps for batch in self._memory)

    @property
    def left_in(self) -> Path | None:
        """The spool, if it holds all that waits, and the end of the session too."""
        spool = self._spool
        return None if spool is None or spool.ending is None or self._memory else spool.path

    def open(self, hello: bytes, progress: Progress) -> None:
        """Make the spool, by one try per outage."""
        if self._spool is not None:
            if hello != self._spool.hello:
                self._try(lambda spool: spool.set_hello(hello))
        elif self._create is not None and not self._has_failed:
            try:
                self._spool = self._create(hello, progress)
            except Exception as error:  # noqa: BLE001 -- however a disk fails, memory has to do
                self._has_failed = True
                self._print_once(NO_SPOOL, error=error)
            else:
                self._takes_more = self._try(self._move)

    def append(self, batch: StoredBatch) -> None:
        """Put a batch after all others, and make room for it."""
        self._takes_more = self._takes_more and self._try(lambda spool: spool.append(batch))
        if self._takes_more:
            return
        self._memory.append(batch)  # as all that come after it
        self._memory_size += len(batch.body)
        while self._memory_size > MEMORY_BYTES and (positions := expendable_positions(len(self._memory))):
            for position in reversed(positions):
                self._forget(position)

    def first(self) -> StoredBatch | None:
        """Return the oldest batch."""
        if self._spool is not None and self._is_spooled:
            try:
                return self._spool.first() or self.first()
            except Exception as error:  # noqa: BLE001 -- however a disk fails, memory has to do
                lost = count(self._spool.steps, "sampled step")
                self._print_once(NOT_READ, path=self._spool.path, error=error, steps=lost)
                self._create = None
                self.delete()
        return self._memory[0] if self._memory else None

    def pop(self, progress: Progress) -> None:
        """Remove the oldest batch, and the spool with the last one; a session that has ended needs it for its end."""
        if self._is_spooled:
            self._try(lambda spool: spool.pop(progress))
        else:
            self._forget(0)
        if self.is_empty:
            self._has_failed = False
        if not self._is_spooled and self._spool is not None and self._spool.ending is None:
            self.delete()

    def end(self, hello: bytes, progress: Progress, ending: bytes, made: int) -> None:
        """Keep how the session ended; from now on the spool stays until it is deleted."""
        self._has_failed = False
        self.open(hello, progress)
        self._try(lambda spool: spool.end(ending, made))

    def discard_all(self) -> None:
        """Remove everything: no collector will take it."""
        self._memory.clear()
        self._memory_size = 0
        self.delete()

    def delete(self) -> None:
        """Remove the spool."""
        if self._spool is not None:
            self._spool.delete()
            self._spool, self._takes_more = None, False

    def close(self) -> None:
        """Leave the spool to ``gradcanary sync``."""
        if self._spool is not None:
            self._spool.close()

    @property
    def _is_spooled(self) -> bool:
        return self._spool is not None and self._spool.count > 0

    def _try(self, work: Callable[[Spool], None]) -> bool:
        """Return True if the spool took it."""
        if self._spool is None:
            return False
        try:
            work(self._spool)
        except Exception as error:  # noqa: BLE001 -- however a disk fails, memory has to do
            self._print_once(NOT_WRITTEN, path=self._spool.path, error=error)
            return False
        return True

    def _move(self, spool: Spool) -> None:
        """Take over what waits in memory."""
        while self._memory:
            spool.append(self._memory[0])
            self._forget(0)

    def _forget(self, position: int) -> None:
        self._memory_size -= len(self._memory[position].body)
        del self._memory[position]


@dataclass(frozen=True)
class InFlight:
    """A numbered batch as it is sent; ``dropped_steps`` is what it reports."""

    seq: int
    body: bytes
    dropped_steps: int


class Outbox:
    """Holds rows until the collector has them.

    It counts the sampled steps that were made and those that were delivered. The steps between the two that do not
    wait here are dropped. A batch reports those that are missing before its last step. So the gap is shown where
    the steps are missing, also when hours are replayed.
    """

    def __init__(self, queue: RetryQueue, spool: Spool | None = None) -> None:
        """``spool`` is what an earlier process left in the queue."""
        self.queue = queue
        self.progress = Progress() if spool is None else spool.progress
        self._made = 0 if spool is None else max(spool.made, self.progress.delivered + self.progress.reported)
        self._unplaced = 0
        self._last_step = -1
        self._rows: deque[tuple[StepRow, int]] = deque()
        self._pieces: deque[UnsentBatch | StoredBatch] = deque()
        self._head: StoredBatch | None = None
        self._in_flight: InFlight | None = None
        self._max_steps = MAX_STEPS
        self._known: dict[int, Dtypes] = {}
        self._layer_set = ""

    @property
    def is_empty(self) -> bool:
        return not self._rows and not self._has_batch

    @property
    def has_samples(self) -> bool:
        """Return True if there is more than numbers of steps that were not sampled."""
        return self._has_batch or any(row.states is not None for row, _ in self._rows)

    @property
    def has_full_batch(self) -> bool:
        return self._has_batch or len(self._rows) >= self._max_steps

    @property
    def steps(self) -> int:
        """Sampled steps that wait."""
        rows = sum(row.states is not None for row, _ in self._rows)
        cut_up = 0 if self._head is None else self._head.steps
        return rows + sum(piece.steps for piece in self._pieces) + self.queue.steps - cut_up

    @property
    def lost(self) -> int:
        """Sampled steps that the collector will never have."""
        return self._made + self._unplaced - self.progress.delivered - self.steps

    @property
    def dropped_steps(self) -> int:
        """Dropped steps for a heartbeat: those reported, and the others too if no batch waits that will report them."""
        return self.lost if self.is_empty else self.progress.reported

    @property
    def has_unreported_drops(self) -> bool:
        """Return True if steps were dropped that no batch will report."""
        return self.is_empty and self.lost > self.progress.reported

    def add(self, row: StepRow) -> None:
        """Keep a row."""
        # Steps of windows rise by 1: the dropped ones belong where they do not.
        if row.step > self._last_step + 1:
            self._made, self._unplaced = self._made + self._unplaced, 0
        self._last_step = row.step
        self._made += row.states is not None
        self._rows.append((row, self._made))

    def count_dropped(self, steps: int) -> None:
        """Count sampled steps that became no row."""
        self._unplaced += steps

    def next_batch(self, limits: wire.Limits) -> InFlight | None:
        """Return the batch to send: the one that is in flight, else a new one."""
        if self._in_flight is None and (self._pieces or self._load_piece(limits)):
            self._in_flight = self._number()
            while len(self._in_flight.body) > limits.max_body and self._halve_first():
                self._in_flight = self._number()
        return self._in_flight

    def acked(self) -> None:
        """Note that the collector has the batch in flight."""
        if self._in_flight is None:
            return
        piece, dropped = self._pieces[0], self._in_flight.dropped_steps
        if self._head is None and isinstance(piece, UnsentBatch):
            self._layer_set = piece.batch.layer_set
            self._known.update(dtypes_by_layer(piece.batch))
        else:
            self._known = {}  # of a stored batch, which is not parsed
        self._remove_first(Progress(self.progress.next_seq + 1, self.progress.delivered + piece.steps, dropped))
        # Grows slowly after a halving: what was too large once would be so again.
        self._max_steps = min(self._max_steps + 1, MAX_STEPS)

    def set_aside(self) -> None:
        """Give up the batch in flight."""
        self._known = {}  # a change that it reported is reported again
        if self._in_flight is not None:
            self._remove_first(replace(self.progress, next_seq=self.progress.next_seq + 1))

    def halve(self) -> bool:
        """Cut the batch in two after the collector found it too large; a single step is given up: return False.

        It was not stored, so its halves take its number and the next.
        """
        if self._in_flight is None or not self._halve_first():
            self.set_aside()
            return False
        self._max_steps = max(1, self._pieces[0].steps)
        self._in_flight = None
        return True

    def resend_all(self) -> None:
        """Note that the collector knows nothing of this session: what earlier batches reported is sent again."""
        self._known = {}
        if self._in_flight is not None:
            self._in_flight = self._number()

    def move_to_queue(self, hello: bytes, limits: wire.Limits) -> None:
        """Put everything into the queue."""
        is_new = bool(self._pieces) and self._head is None
        if not is_new and not self._rows:
            return
        self.queue.open(hello, self.progress)
        if is_new:
            self._store_pieces()
        while self._rows:
            self.queue.append(_stored(self._pack(limits)))

    def end(self, hello: bytes, ending: bytes) -> None:
        """Keep the end of the session beside what waits."""
        self.queue.end(hello, self.progress, ending, self._made + self._unplaced)

    def discard_all(self) -> None:
        """Give everything up: no collector will take it."""
        self._rows.clear()
        self._pieces.clear()
        self._head = self._in_flight = None
        self.queue.discard_all()

    @property
    def _has_batch(self) -> bool:
        return bool(self._pieces) or not self.queue.is_empty

    def _load_piece(self, limits: wire.Limits) -> bool:
        """Take the oldest batch of the queue, else one of rows; return False if there is none."""
        self._head = self.queue.first()
        if self._head is not None:
            self._pieces.append(self._head)
        elif self._rows:
            self._pieces.append(self._pack(limits))
        return bool(self._pieces)

    def _pack(self, limits: wire.Limits) -> UnsentBatch:
        """Make a batch of the first rows."""
        ahead = [row for row, _ in islice(self._rows, MAX_STEPS)]
        taken = [self._rows.popleft() for _ in range(count_fitting(ahead, limits, self._max_steps))]
        try:
            return UnsentBatch(build_batch([row for row, _ in taken]), taken[-1][1])
        except Exception:
            self._known = {}  # a change that it reported is reported again
            raise

    def _number(self) -> InFlight:
        """Return the first piece as it is sent."""
        piece, progress = self._pieces[0], self.progress
        # The collector looks for the gap between steps: a batch without any reports nothing new.
        dropped = piece.made - progress.delivered - piece.steps if piece.steps else progress.reported
        if isinstance(piece, StoredBatch):
            return InFlight(progress.next_seq, set_dropped_steps(piece.body, dropped), dropped)
        if piece.batch.layer_set != self._layer_set:
            self._known = {}  # the first batch of a layer set repeats all
        # A part of a stored batch must be the same after a restart, when no earlier batch is known.
        known = self._known if self._head is None else {}
        return InFlight(progress.next_seq, piece.body(known, dropped), dropped)

    def _halve_first(self) -> bool:
        """Cut the first piece in two; return False if it is a single step."""
        piece = self._pieces[0]
        halves = halve_batch(
            UnsentBatch(parse_batch(piece.body), piece.made) if isinstance(piece, StoredBatch) else piece
        )
        if halves is None:
            return False
        self._pieces.popleft()
        self._pieces.extendleft(reversed(halves))
        return True

    def _store_pieces(self) -> None:
        """Put the pieces of rows into the queue; the one in flight keeps its bytes."""
        stored = [_stored(piece) for piece in self._pieces if isinstance(piece, UnsentBatch)]
        if self._in_flight is None:
            self._pieces.clear()
        else:
            stored[0] = self._head = replace(stored[0], body=self._in_flight.body)
            while len(self._pieces) > 1:
                self._pieces.pop()
        for batch in stored:
            self.queue.append(batch)

    def _remove_first(self, progress: Progress) -> None:
        self.progress, self._in_flight = progress, None
        self._pieces.popleft()
        if self._head is not None and not self._pieces:
            self._head = None
            self.queue.pop(progress)


def _stored(batch: UnsentBatch) -> StoredBatch:
    return StoredBatch(wire.dump(batch.batch), batch.steps, batch.made)
