"""What waits for a collector that does not take it: in a file if that can be, else in memory.

Bounded: half full, it keeps every tenth step of the oldest that was not sent yet, then every hundredth, with all
metrics and change records; full, it gives up the oldest that was not sent. Both count. A file that fails is left: what
it holds is still sent if it can be read, what comes later is kept in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from gradcanary.batches import Draft, thin
from gradcanary.shelf import Entry, Memory, Shelf, Tally

if TYPE_CHECKING:
    from gradcanary.spool import Spool  # not imported: some Pythons are built without SQLite

THINNED = (10, 100)
THINNED_AT_ONCE = 8
"""Entries, for each that comes: all of a full file would take seconds, which the end of a process has not."""

Creates = Callable[[bytes, Tally], "Spool"]
"""Makes the file of a session from its hello and its tally."""


class Backlog:
    """Entries in their order; nothing here raises but for what is not the fault of a file.

    ``say`` takes a line and what fills its gaps, as :meth:`gradcanary.guard.Guard.say`.
    """

    def __init__(self, create: Creates | None, say: Callable[..., object]) -> None:
        self.tally = Tally()
        self._create, self._say = create, say
        self._memory = Memory()
        self._spool: Spool | None = None
        self._takes_more = False

    @classmethod
    def of(cls, spool: Spool, say: Callable[..., object]) -> Backlog:
        """Return what a process before this one left."""
        backlog = cls(None, say)
        backlog._spool, backlog._takes_more, backlog.tally = spool, True, spool.tally
        return backlog

    @property
    def is_empty(self) -> bool:
        return self.count == 0

    @property
    def count(self) -> int:
        return sum(shelf.totals.count for shelf in self._shelves())

    @property
    def size(self) -> int:
        """Bytes that wait."""
        return sum(shelf.totals.size for shelf in self._shelves())

    @property
    def steps(self) -> int:
        """Sampled steps that wait."""
        return sum(shelf.totals.steps for shelf in self._shelves())

    @property
    def lost(self) -> int:
        """Sampled steps that nobody gets any more."""
        return self.tally.told + self.tally.carried + sum(shelf.totals.lost for shelf in self._shelves())

    @property
    def left_in(self) -> Path | None:
        """The file, if all that waits is in it, and the end of the session too."""
        spool = self._spool
        return None if spool is None or spool.ending is None or self._memory.totals.count else spool.path

    def open(self, hello: bytes) -> None:
        """Make the file, once per outage; where that fails, memory has to do."""
        if self._spool is not None:
            if hello != self._spool.hello:
                self._write(lambda spool: spool.say(hello))
        elif self._create is not None:
            try:
                self._spool = self._create(hello, self.tally)
            except Exception as error:  # noqa: BLE001 -- however a file fails, memory has to do
                self._create = None
                line = "no spool can be kept ({error}); what the collector does not take waits in memory"
                self._say(line, error=error)
            else:
                self._takes_more = self._write(self._move)

    def append(self, entry: Entry) -> Entry:
        """Put an entry behind all others, make room, and return it with its place."""
        stored: list[Entry] = []
        if self._takes_more and self._write(lambda spool: stored.append(spool.append(entry))):
            self._takes_more = self._write(self._make_room)
            return stored[0]
        self._takes_more = False  # what is behind an entry in memory has to be in memory too
        placed = self._memory.append(entry)
        self._make_room(self._memory)
        return placed

    def first(self) -> Entry | None:
        """Return the oldest entry."""
        if self._spool is not None and self._spool.totals.count:
            try:
                if (entry := self._spool.first()) is not None:
                    return entry
                self._abandon(LookupError("it does not hold what was put there"))
            except Exception as error:  # noqa: BLE001 -- however a file fails, memory has to do
                self._abandon(error)
        return self._memory.first()

    def number(self, entry: Entry) -> None:
        """Keep the number and the bytes of the first entry, before it is sent."""
        self._change(lambda shelf: shelf.put(entry, self.tally))

    def split(self, entry: Entry, halves: tuple[Draft, Draft]) -> bool:
        """Put two in the place of the first entry; tell whether that went well."""
        # Nothing is before the first entry: one place further to the front is free.
        first, second = Entry.of(halves[0], entry.place - 1), Entry.of(halves[1], entry.place)
        return self._change(lambda shelf: shelf.split(entry, (first, second), self.tally))

    def drop(self, entry: Entry) -> None:
        """Let the first entry go, and the file with the last one; a session that has ended needs it for its end."""
        self._change(lambda shelf: shelf.drop(entry, self.tally))
        if self._spool is not None and not self._spool.totals.count and self._spool.ending is None:
            self.delete()

    def end(self, hello: bytes, ending: bytes) -> None:
        """Keep how the session ended; from now on the file stays until it is deleted."""
        self.open(hello)
        self._write(lambda spool: spool.end(ending, self.tally))

    def clear(self) -> None:
        """Let everything go: nobody will take it."""
        self.tally.carried += sum(shelf.totals.steps + shelf.totals.lost for shelf in self._shelves())
        self._memory = Memory()
        self.delete()

    def delete(self) -> None:
        """Remove the file."""
        if self._spool is not None:
            self._spool.delete()
            self._spool, self._takes_more = None, False

    def close(self) -> None:
        """Let go of the file, which stays for ``gradcanary sync``."""
        if self._spool is not None:
            self._spool.close()

    def _shelves(self) -> Iterator[Shelf]:
        if self._spool is not None:
            yield self._spool
        yield self._memory

    def _change(self, work: Callable[[Shelf], None]) -> bool:
        """Do something to the first entry, which is of the file as long as that holds any."""
        if self._spool is not None and self._spool.totals.count:
            return self._write(work)
        work(self._memory)
        return True

    def _write(self, work: Callable[[Spool], None]) -> bool:
        """Tell whether the file took it."""
        if self._spool is None:
            return False
        try:
            work(self._spool)
        except Exception as error:  # noqa: BLE001 -- however a file fails, memory has to do
            line = "{path} cannot be written ({error}); what comes now waits in memory"
            self._say(line, path=self._spool.path, error=error)
            return False
        return True

    def _move(self, spool: Spool) -> None:
        """Take over what already waits in memory."""
        while (entry := self._memory.first()) is not None:
            spool.insert(entry)
            self._memory.drop(entry, self.tally)

    def _abandon(self, error: Exception) -> None:
        spool = self._spool
        if spool is None:
            return
        self._spool, self._takes_more, self._create = None, False, None
        spool.close()
        self.tally.carried += spool.totals.steps + spool.totals.lost
        line = "{path} cannot be read ({error}); {steps} steps are lost"
        self._say(line, path=spool.path, error=error, steps=spool.totals.steps)

    def _make_room(self, shelf: Shelf) -> None:
        self._thin(shelf)
        while shelf.totals.size > shelf.limit and (entry := shelf.oldest_draft()) is not None:
            self.tally.carried += entry.loses
            shelf.drop(entry, self.tally)

    def _thin(self, shelf: Shelf) -> None:
        """Thin the oldest that are fine, some at a time; where none is left and it is still too much, thin further."""
        for every in THINNED:
            if shelf.totals.size <= shelf.limit // 2:
                return
            places = shelf.drafts_finer_than(every, THINNED_AT_ONCE)
            for place in places:
                shelf.put(Entry.of(thin(shelf.at(place).draft, every), place), self.tally)
            if len(places) == THINNED_AT_ONCE:
                return
