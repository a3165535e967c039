"""Batches come first: what pages ask waits while batches wait for each other."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

QUEUE = 2
"""Batches at a time: one is stored, and the next one waits."""

MOST_S = 1.0
"""How long a question waits: where batches never end, pages become slow, and still are."""


class Precedence:
    """Who goes first; of one event loop. No thread waits for its turn: batches need those threads."""

    def __init__(self) -> None:
        self._batches = 0
        self._is_free = asyncio.Event()
        self._is_free.set()

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Count a batch that is here as a whole, until it is acknowledged."""
        self._count(+1)
        try:
            yield
        finally:
            self._count(-1)

    async def give_way(self) -> None:
        """Return once no batch waits for another one, or after ``MOST_S``."""
        if not self._is_free.is_set():
            with contextlib.suppress(asyncio.TimeoutError):  # Python 3.10 has one of its own
                await asyncio.wait_for(self._is_free.wait(), MOST_S)

    def _count(self, by: int) -> None:
        self._batches += by
        if self._batches < QUEUE:
            self._is_free.set()
        else:
            self._is_free.clear()
