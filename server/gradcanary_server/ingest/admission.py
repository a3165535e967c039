"""Back-pressure: pages wait for batches, and agents of a busy collector send less often. No I/O.

A batch of ten steps costs little more than one of five (docs/results/performance.md), so fewer batches are the
largest relief for a busy collector. Agents follow ``Reply.spacing_s``: steps wait longer, and none is lost.
"""

import asyncio
import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Iterator

MAX_BATCHES, MAX_PARALLEL_BATCHES, MAX_CLUSTER_BATCHES = 2, 4, 1
"""Pages wait from this many batches on. With one writer one is stored, and the next one waits for it; else they are
stored in parallel, and the interpreter is what they wait for. On a cluster a list asks all nodes, and a batch that
opens an incident waited too long beside lists (docs/results/scaling.md).
"""

MAX_WAIT_S = 1.0
"""Of a page's request: where batches never end, pages are slow, but answered."""

SEND_INTERVALS_S = (0.0, 1.0, 2.0, 4.0)
"""Seconds between two batches of a session, least busy first; 0 is the agent's own half second."""

OWN_INTERVAL_S = 0.5
"""Between two batches of an agent without a request for more."""

BUSY, IDLE = 0.6, 0.25
"""Shares of one core, which Python's threads have together: above the first the interval rises, below the second it
falls. A fall may double the work, which must not be busy again. Of more workers than cores each has a part of one."""

MIN_TRAININGS = 20
"""The batches of fewer trainings cannot keep a collector busy; all its workers count."""

WINDOW_S = 5.0
"""The shortest time over which CPU use is measured: compaction of all runs at once is no lasting load."""


class IngestPriority:
    """Batches before reads, in one event loop. No thread waits: batches need the threads."""

    def __init__(self, max_batches: int = MAX_BATCHES) -> None:
        self.max_batches, self._batches = max_batches, 0
        self._is_free = asyncio.Event()
        self._is_free.set()

    @contextlib.contextmanager
    def track(self) -> Iterator[None]:
        """Count a batch that has arrived, until it is acknowledged."""
        self._count(+1)
        try:
            yield
        finally:
            self._count(-1)

    async def wait_for_batches(self) -> None:
        """Wait until fewer batches are in progress, at most ``MAX_WAIT_S``."""
        if not self._is_free.is_set():
            with contextlib.suppress(asyncio.TimeoutError):  # Python 3.10 has one of its own
                await asyncio.wait_for(self._is_free.wait(), MAX_WAIT_S)

    def _count(self, by: int) -> None:
        self._batches += by
        if self._batches < self.max_batches:
            self._is_free.set()
        else:
            self._is_free.clear()


class Backpressure:
    """The interval requested of agents, by the CPU time of this process; safe to share between threads."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        cpu_time: Callable[[], float] = time.process_time,
        *,
        workers: int = 1,
        cores: int | None = None,
    ) -> None:
        """``workers`` are the processes of this collector, of which this is one, on so many cores: all, if None."""
        self._clock, self._cpu_time = clock, cpu_time
        self._core = min(1.0, (cores or os.cpu_count() or 1) / workers)
        self._min_trainings = MIN_TRAININGS / workers
        self._lock = threading.Lock()
        self._level = self._replies = 0
        self._window_began = clock()
        self._cpu_before = cpu_time()
        self._raised = -math.inf

    def next_interval_s(self) -> float:
        """Count a reply, and return its interval."""
        with self._lock:
            self._replies += 1
            interval_s = self._current()
            # In the first interval after a rise every second reply still has the interval of before. So half of the
            # agents send between the others, and not all within the same part of a second.
            before = SEND_INTERVALS_S[max(self._level - 1, 0)]
            is_first_turn = self._clock() - self._raised < max(before, OWN_INTERVAL_S)
            return before if is_first_turn and self._replies % 2 else interval_s

    def interval_s(self) -> float:
        """Return the interval of a reply now, also where no agent sends any more."""
        with self._lock:
            return self._current()

    def _current(self) -> float:
        elapsed_s = self._clock() - self._window_began
        if elapsed_s >= WINDOW_S:
            self._measure(elapsed_s)
        return SEND_INTERVALS_S[self._level]

    def _measure(self, elapsed_s: float) -> None:
        cpu_time = self._cpu_time()
        share = (cpu_time - self._cpu_before) / elapsed_s / self._core
        trainings = self._replies / elapsed_s * max(SEND_INTERVALS_S[self._level], OWN_INTERVAL_S)
        if share > BUSY and trainings >= self._min_trainings:
            if self._level < len(SEND_INTERVALS_S) - 1:
                self._level, self._raised = self._level + 1, self._clock()
        elif share < IDLE or trainings < self._min_trainings:
            self._level = max(self._level - 1, 0)
        self._window_began = self._clock()
        self._cpu_before = cpu_time
        self._replies = 0
