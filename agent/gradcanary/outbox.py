"""Rows on their way to the collector: cut into batches, numbered when first sent, kept until taken; pure.

A batch that was sent once keeps its number and its bytes, so that sending it again is safe. Memory is bounded: when
the collector stays away the oldest rows that were never sent are given up, and counted.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import islice

from gradcanary import wire
from gradcanary.batches import MAX_STEPS, build, cut, stored_in
from gradcanary.readings import Row

CAPACITY_BYTES = 128 * 2**20
BYTES_PER_LAYER = 64
"""Of a row, roughly: two columns, states, dtypes."""

BYTES_PER_METRIC = 256
"""Of a row, roughly: a key, a step and a value, as Python objects."""

BYTES_PER_ROW = 2048
"""Of a row without layers and metrics, roughly."""


@dataclass(frozen=True)
class Parcel:
    """A numbered batch as bytes, and the rows it was made of."""

    seq: int
    body: bytes
    rows: tuple[Row, ...]
    dropped_steps: int


class Outbox:
    """Holds rows until the collector took them; ``lost`` counts the sampled steps that it will never get."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._rows: deque[Row] = deque()
        self._parcel: Parcel | None = None
        self._seq = 0
        self._max_steps = MAX_STEPS
        self._stored: dict[int, str] = {}
        self._layer_set = ""
        self.lost = 0

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def is_empty(self) -> bool:
        return not self._rows and self._parcel is None

    def add(self, row: Row) -> None:
        """Keep a row; the oldest one goes where memory is full."""
        self._rows.append(row)
        size = BYTES_PER_ROW + BYTES_PER_LAYER * len(row.layer_set.layers) + BYTES_PER_METRIC * len(row.metrics)
        while len(self._rows) > max(MAX_STEPS, CAPACITY_BYTES // size):
            self._lose((self._rows.popleft(),))

    def next(self, limits: wire.Limits, dropped_steps: int) -> Parcel | None:
        """Return the batch to send: the one that is under way, else a new one; ``dropped_steps`` were lost before."""
        if self._parcel is None and self._rows:
            count = cut(self._rows_ahead(), limits, self._max_steps)
            rows = tuple(self._rows.popleft() for _ in range(count))
            try:
                self._pack(self._seq, rows, dropped_steps + self.lost)
            except Exception:
                self._lose(rows)
                raise
            self._seq += 1
        return self._parcel

    def taken(self) -> None:
        """Note that the collector has the batch."""
        if self._parcel is not None:
            self._layer_set = self._parcel.rows[0].layer_set.id
            self._stored.update(stored_in(self._parcel.rows))
        # Grows slowly after a halving: what was too large once would be so again.
        self._parcel, self._max_steps = None, min(self._max_steps + 1, MAX_STEPS)

    def repeat(self) -> None:
        """Note that the collector knows nothing of this session (any more): changes told before are told again."""
        self._stored = {}
        if self._parcel is not None:
            self._pack(self._parcel.seq, self._parcel.rows, self._parcel.dropped_steps)

    def clear(self) -> None:
        """Give everything up: nobody will take it."""
        self.set_aside()
        self._lose(tuple(self._rows))
        self._rows.clear()

    def halve(self) -> bool:
        """Cut the batch in two after the collector found it too large; False when it is a single step, which is lost.

        It was not stored, so its halves take its number and the next.
        """
        parcel = self._parcel
        if parcel is None or len(parcel.rows) == 1:
            self.set_aside()
            return False
        self._rows.extendleft(reversed(parcel.rows))
        self._max_steps = (len(parcel.rows) + 1) // 2
        self._parcel, self._seq = None, parcel.seq
        return True

    def set_aside(self) -> None:
        """Give the batch up."""
        if self._parcel is not None:
            self._lose(self._parcel.rows)
        self._parcel = None

    def _rows_ahead(self) -> list[Row]:
        return list(islice(self._rows, MAX_STEPS))

    def _pack(self, seq: int, rows: tuple[Row, ...], dropped_steps: int) -> None:
        if rows[0].layer_set.id != self._layer_set:
            self._stored = {}  # the first batch of a layer set repeats all
        batch = build(rows, self._every, self._stored, dropped_steps)
        self._parcel = Parcel(seq, wire.dump(batch), rows, dropped_steps)

    def _lose(self, rows: tuple[Row, ...]) -> None:
        self.lost += sum(row.states is not None for row in rows)
        self._stored = {}  # whatever change they told of has to be told again
