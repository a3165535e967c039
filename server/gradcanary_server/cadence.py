"""How often trainings send: each half second, and more seldom where a collector has many and is busy; no I/O.

A batch of ten steps costs little more than one of five (server/README.md, *What it takes*), so half as many are the
most that a busy collector can be given. Agents heed it (``Reply.spacing_s``); steps wait that much longer, and no more
of them get lost. They are asked one half after the other, or they would all send within the same part of a second.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

SPACINGS_S = (0.0, 1.0, 2.0)
"""What a session is asked to leave between two batches, least busy first; 0 is the agent's own half second."""

OWN_S = 0.5
"""Between two batches of an agent that is not asked for anything."""

BUSY, IDLE = 0.6, 0.25
"""Of one core, which is what Python's threads have together: over the one to the next spacing, under the other back.
Back is up to twice as much work, and must not be busy again."""

FEW = 20
"""Trainings: of fewer it is not their batches that keep a collector busy."""

WINDOW_S = 5.0
"""What is judged is of so many seconds at least: the tiles of all runs at once are no load."""


class Cadence:
    """What is asked of those who send, by the CPU that this process needs; of many threads."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, used: Callable[[], float] = time.process_time
    ) -> None:
        self._clock, self._used = clock, used
        self._lock = threading.Lock()
        self._level = self._answers = 0
        self._since, self._before = clock(), used()
        self._raised = -math.inf

    def answered(self) -> float:
        """Count an answer, and return the seconds to ask for in it."""
        with self._lock:
            self._answers += 1
            asked = self._asked()
            # Who is asked in the first turn of all, which takes as long as was asked for before, sends twice as seldom
            # from then on: so each second one is asked in the next turn, and comes between the others.
            before = SPACINGS_S[max(self._level - 1, 0)]
            is_first_turn = self._clock() - self._raised < max(before, OWN_S)
            return before if is_first_turn and self._answers % 2 else asked

    def asked(self) -> float:
        """Return the seconds that an answer would ask for now, also where nobody sends any more."""
        with self._lock:
            return self._asked()

    def _asked(self) -> float:
        took_s = self._clock() - self._since
        if took_s >= WINDOW_S:
            self._judge(took_s)
        return SPACINGS_S[self._level]

    def _judge(self, took_s: float) -> None:
        used = self._used()
        share, trainings = (used - self._before) / took_s, self._answers / took_s * max(SPACINGS_S[self._level], OWN_S)
        if share > BUSY and trainings >= FEW:
            if self._level < len(SPACINGS_S) - 1:
                self._level, self._raised = self._level + 1, self._clock()
        elif share < IDLE or trainings < FEW:
            self._level = max(self._level - 1, 0)
        self._since, self._before, self._answers = self._clock(), used, 0
