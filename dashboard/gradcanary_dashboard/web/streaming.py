"""Answers that are sent in pieces, as the collector sends them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Lock
from typing import Generic, TypeVar

from gradcanary_dashboard.web.threads import in_thread

Head = TypeVar("Head")
Pieces = Iterator[bytes]


class _Opened(Generic[Head]):
    """A streamed answer, used by one thread at a time: ``close`` waits for the piece that is being read."""

    def __init__(self) -> None:
        self._stack, self._lock = ExitStack(), Lock()
        self._pieces: Pieces = iter(())

    def open(self, made: Callable[[ExitStack], tuple[Head, Pieces]]) -> Head:
        """Open the answer in a stack that ``close`` closes; return its head, known before the first piece."""
        with self._lock:
            head, self._pieces = made(self._stack)
            return head

    def next(self) -> bytes | None:
        """Return the next piece, None at the end."""
        with self._lock:
            return next(self._pieces, None)

    def close(self) -> None:
        """Close the stack."""
        with self._lock:
            self._stack.close()


async def open_stream(
    pool: ThreadPoolExecutor, made: Callable[[ExitStack], tuple[Head, Pieces]]
) -> tuple[Head, AsyncIterator[bytes]]:
    """Open an answer in a thread of the pool; return its head, known before the first piece, and its pieces."""
    answer: _Opened[Head] = _Opened()
    with ExitStack() as unless_open:
        unless_open.callback(pool.submit, answer.close)
        head = await in_thread(pool, answer.open, made)
        unless_open.pop_all()
    return head, _sent(answer, pool)


async def _sent(answer: _Opened[Head], pool: ThreadPoolExecutor) -> AsyncIterator[bytes]:
    """Yield pieces, each read in a thread of the pool; the collector makes them in other threads."""
    try:
        while (piece := await in_thread(pool, answer.next)) is not None:
            yield piece
    finally:
        # Not awaited: a cancelled answer is cancelled at each await, and a thread may be reading a piece.
        pool.submit(answer.close)
