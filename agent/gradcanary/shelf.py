"""Where batches wait, oldest first: what a shelf does, and the one in memory; pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Protocol

from gradcanary import wire
from gradcanary.batches import Draft, load

MEMORY_BYTES = 128 * 2**20
SPACING = 2**16
"""Between two places: the first entry may be cut in two that often."""


@dataclass(frozen=True)
class Entry:
    """A batch that waits: a draft until it has its ``seq``, then the bytes that are sent.

    ``place`` says where in the row it stands; ``steps`` are how many it has; ``lost`` and ``lost_after`` are those of
    its draft, and 0 once they are told.
    """

    body: bytes
    every: int
    steps: int
    lost: int = 0
    lost_after: int = 0
    seq: int | None = None
    place: int = 0

    @classmethod
    def of(cls, draft: Draft, place: int = 0) -> Entry:
        """Return a draft as it waits."""
        batch = draft.batch
        return cls(wire.dump(batch), batch.every, len(batch.steps), draft.lost, draft.lost_after, None, place)

    @property
    def draft(self) -> Draft:
        """The batch again; raises ValueError when the bytes were damaged."""
        return Draft(load(self.body), self.lost, self.lost_after)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """What :meth:`Totals.put` counts."""
        return self.place, len(self.body), self.steps, self.lost + self.lost_after

    @property
    def loses(self) -> int:
        """The sampled steps that never arrive if this entry does not."""
        return self.steps + self.lost + self.lost_after


@dataclass
class Tally:
    """The next number, the steps whose loss the last numbered batch told, and those lost since."""

    next_seq: int = 0
    told: int = 0
    carried: int = 0


class Totals:
    """What lies on a shelf: bytes of bodies, entries, their steps, and steps lost out of them."""

    def __init__(self) -> None:
        self.size = self.steps = self.lost = 0
        self._each: dict[int, tuple[int, int, int]] = {}

    @property
    def count(self) -> int:
        return len(self._each)

    def put(self, place: int, size: int, steps: int, lost: int) -> None:
        """Count what now is at a place."""
        self.drop(place)
        self._each[place] = size, steps, lost
        self._add(1, size, steps, lost)

    def drop(self, place: int) -> None:
        """Count that nothing is at a place."""
        self._add(-1, *self._each.pop(place, (0, 0, 0)))

    def _add(self, sign: int, size: int, steps: int, lost: int) -> None:
        self.size += sign * size
        self.steps += sign * steps
        self.lost += sign * lost


class Shelf(Protocol):
    """Keeps entries in their order; ``limit`` is in bytes of bodies."""

    limit: int
    totals: Totals

    def append(self, entry: Entry) -> Entry:
        """Put an entry behind all others, and return it with its place."""

    def first(self) -> Entry | None:
        """Return the oldest entry."""

    def oldest_draft(self) -> Entry | None:
        """Return the oldest entry without a number."""

    def drafts_finer_than(self, every: int, count: int) -> Sequence[int]:
        """Return the first places of entries without a number that hold more than the multiples of ``every``."""

    def at(self, place: int) -> Entry:
        """Return an entry by its place."""

    def put(self, entry: Entry, tally: Tally) -> None:
        """Change the entry that has this place."""

    def split(self, entry: Entry, halves: tuple[Entry, Entry], tally: Tally) -> None:
        """Put two, each with a place of its own, where the first entry was."""

    def drop(self, entry: Entry, tally: Tally) -> None:
        """Let an entry go."""


class Memory:
    """A shelf that a process takes with it when it ends."""

    def __init__(self) -> None:
        self.limit = MEMORY_BYTES
        self.totals = Totals()
        self._entries: OrderedDict[int, Entry] = OrderedDict()
        self._next = 0

    def append(self, entry: Entry) -> Entry:
        placed = replace(entry, place=self._next)
        self._next += SPACING
        self._entries[placed.place] = placed
        self.totals.put(*placed.sizes)
        return placed

    def first(self) -> Entry | None:
        return next(iter(self._entries.values()), None)

    def oldest_draft(self) -> Entry | None:
        return next((entry for entry in self._entries.values() if entry.seq is None), None)

    def drafts_finer_than(self, every: int, count: int) -> Sequence[int]:
        found = (entry.place for entry in self._entries.values() if entry.seq is None and entry.every < every)
        return list(islice(found, count))

    def at(self, place: int) -> Entry:
        return self._entries[place]

    def put(self, entry: Entry, tally: Tally) -> None:  # noqa: ARG002 -- memory has nobody to tell
        self._entries[entry.place] = entry
        self.totals.put(*entry.sizes)

    def split(self, entry: Entry, halves: tuple[Entry, Entry], tally: Tally) -> None:
        self.drop(entry, tally)
        for half in reversed(halves):
            self.put(half, tally)
            self._entries.move_to_end(half.place, last=False)

    def drop(self, entry: Entry, tally: Tally) -> None:  # noqa: ARG002 -- likewise
        del self._entries[entry.place]
        self.totals.drop(entry.place)
