"""Rows on their way to the collector: cut into batches, numbered when first sent, kept until taken.

A batch that was sent once keeps its number and its bytes, so that sending it again is safe. As long as the collector
takes everything rows become batches as they are sent; else they wait as batches in the backlog, and go before what is
new.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from itertools import islice

from gradcanary import wire
from gradcanary.backlog import Backlog
from gradcanary.batches import MAX_STEPS, Draft, Dtypes, Row, accumulators_of, build, cut, finish, halve
from gradcanary.shelf import Entry


@dataclass(frozen=True)
class Parcel:
    """A numbered batch as bytes, and the draft that it was made of; ``entry`` where it lies in the backlog."""

    seq: int
    body: bytes
    draft: Draft
    dropped_steps: int
    entry: Entry | None


class Outbox:
    """Holds rows until the collector took them; ``lost`` counts the sampled steps that it will never get."""

    def __init__(self, backlog: Backlog) -> None:
        self.backlog = backlog
        self._rows: deque[tuple[Row, int]] = deque()
        self._parcel: Parcel | None = None
        self._max_steps = MAX_STEPS
        self._known: dict[int, Dtypes] = {}
        self._layer_set = ""
        self._last_step = -1
        self._unplaced = 0

    @property
    def is_empty(self) -> bool:
        return not self._rows and self._parcel is None and self.backlog.is_empty

    @property
    def is_waited_for(self) -> bool:
        """Whether there is more than numbers of steps that were not sampled."""
        is_new = self._parcel is None and self.backlog.is_empty
        return not is_new or any(row.states is not None for row, _ in self._rows)

    @property
    def is_behind(self) -> bool:
        """Whether there is a whole batch, or more."""
        return self._parcel is not None or not self.backlog.is_empty or len(self._rows) >= self._max_steps

    @property
    def lost(self) -> int:
        return self._unplaced + sum(lost for _, lost in self._rows) + self.backlog.lost

    @property
    def dropped_steps(self) -> int:
        """The losses up to the last batch that was numbered; all of them where nothing waits to tell of the others."""
        return self.lost if self.is_empty else self.backlog.tally.told

    @property
    def is_untold(self) -> bool:
        """Whether steps were lost that no batch will tell of."""
        return self.is_empty and self.lost > self.backlog.tally.told

    def add(self, row: Row) -> None:
        """Keep a row."""
        # Steps of windows rise by 1: where they do not is where those that were lost belong.
        lost = self._unplaced if row.step > self._last_step + 1 else 0
        self._unplaced -= lost
        self._last_step = row.step
        self._rows.append((row, lost))

    def lose(self, steps: int) -> None:
        """Count steps of which no row came."""
        self._unplaced += steps

    def settle(self) -> None:
        """Count what was lost after the last row with the backlog: no row comes any more that would tell of it."""
        self.backlog.tally.carried += self._unplaced
        self._unplaced = 0

    def spill(self, hello: bytes, limits: wire.Limits) -> None:
        """Put everything into the backlog."""
        if self._parcel is None and not self._rows:
            return
        self.backlog.open(hello)
        if self._parcel is not None and self._parcel.entry is None:
            self._shelve(self._parcel)
        while self._rows:
            self.backlog.append(Entry.of(self._packed(limits)))

    def next(self, limits: wire.Limits) -> Parcel | None:
        """Return the batch to send: the one that is under way, else a new one."""
        while self._parcel is None and (entry := self.backlog.first()) is not None:
            self._open(entry, limits)
        if self._parcel is None and self._rows:
            self._number(self._packed(limits), None)
        return self._parcel

    def taken(self) -> None:
        """Note that the collector has the batch."""
        if self._parcel is not None:
            self._layer_set = self._parcel.draft.batch.layer_set
            self._known.update(accumulators_of(self._parcel.draft.batch))
            self._drop(self._parcel)
        # Grows slowly after a halving: what was too large once would be so again.
        self._max_steps = min(self._max_steps + 1, MAX_STEPS)

    def repeat(self) -> None:
        """Note that the collector knows nothing of this session (any more): changes told before are told again."""
        self._known = {}
        if self._parcel is not None:
            self._pack(self._parcel.seq, self._parcel.draft, self._parcel.dropped_steps, self._parcel.entry)

    def clear(self) -> None:
        """Give everything up: nobody will take it."""
        self.set_aside()
        self._unplaced += sum(lost + (row.states is not None) for row, lost in self._rows)
        self._rows.clear()
        self.backlog.clear()

    def halve(self) -> bool:
        """Cut the batch in two after the collector found it too large; False when it is a single step, which is lost.

        It was not stored, so its halves take its number and the next.
        """
        parcel = self._parcel
        # What was lost in it was told with its number.
        halves = None if parcel is None else halve(Draft(parcel.draft.batch))
        if parcel is None or halves is None or not self._put_back(parcel, halves):
            self.set_aside()
            return False
        self._max_steps = max(1, (len(parcel.draft.batch.steps) + 1) // 2)
        self.backlog.tally.next_seq = parcel.seq
        self._parcel = None
        return True

    def set_aside(self) -> None:
        """Give the batch up."""
        if self._parcel is not None:
            self._lose(len(self._parcel.draft.batch.steps))
            self._drop(self._parcel)

    def _put_back(self, parcel: Parcel, halves: tuple[Draft, Draft]) -> bool:
        if parcel.entry is not None:
            return self.backlog.split(parcel.entry, halves)
        for half in halves:
            self.backlog.append(Entry.of(half))
        return True

    def _packed(self, limits: wire.Limits) -> Draft:
        """Make a draft of the first rows."""
        ahead = [row for row, _ in islice(self._rows, MAX_STEPS)]
        rows = [self._rows.popleft() for _ in range(cut(ahead, limits, self._max_steps))]
        lost = sum(lost for _, lost in rows)
        try:
            return Draft(build([row for row, _ in rows]), lost)
        except Exception:
            self._lose(lost + sum(row.states is not None for row, _ in rows))
            raise

    def _open(self, entry: Entry, limits: wire.Limits) -> None:
        """Make the first entry of the backlog the batch to send, or two entries of it, or nothing if it is damaged."""
        try:
            draft = entry.draft
        except ValueError:
            self._lose(entry.loses)
            self.backlog.drop(entry)
            return
        if entry.seq is not None:
            self._parcel = Parcel(entry.seq, entry.body, draft, draft.batch.dropped_steps, entry)
            return
        is_too_large = entry.steps > self._max_steps or len(entry.body) > limits.max_body
        if is_too_large and (halves := halve(draft)) is not None and self.backlog.split(entry, halves):
            return
        self._number(draft, entry)

    def _number(self, draft: Draft, entry: Entry | None) -> None:
        tally = self.backlog.tally
        if draft.batch.steps:
            tally.told += tally.carried + draft.lost
            tally.carried = draft.lost_after
        else:
            # Who looks for the gap looks at steps: the next batch that has some says it.
            tally.carried += draft.lost + draft.lost_after
        tally.next_seq += 1
        self._pack(tally.next_seq - 1, draft, tally.told, entry)

    def _pack(self, seq: int, draft: Draft, dropped_steps: int, entry: Entry | None) -> None:
        if draft.batch.layer_set != self._layer_set:
            self._known = {}  # the first batch of a layer set repeats all
        body = wire.dump(finish(draft, self._known, dropped_steps))
        if entry is not None:
            entry = replace(entry, body=body, seq=seq, lost=0, lost_after=0)
            self.backlog.number(entry)
        self._parcel = Parcel(seq, body, draft, dropped_steps, entry)

    def _shelve(self, parcel: Parcel) -> None:
        batch = parcel.draft.batch
        entry = self.backlog.append(Entry(parcel.body, batch.every, len(batch.steps), seq=parcel.seq))
        self._parcel = replace(parcel, entry=entry)

    def _drop(self, parcel: Parcel) -> None:
        self._parcel = None
        if parcel.entry is not None:
            self.backlog.drop(parcel.entry)

    def _lose(self, steps: int) -> None:
        self.backlog.tally.carried += steps
        self._known = {}  # whatever change they told of has to be told again
