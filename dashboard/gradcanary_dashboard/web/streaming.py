"""Answers that are passed on piece by piece, as the collector sends them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Lock
from typing import Generic, TypeVar

from gradcanary_dashboard.web.threads import apart

Head = TypeVar("Head")
Pieces = Iterator[bytes]


class _Opened(Generic[Head]):
    """An answer that is streamed, used by one thread at a time: to close it waits for the piece that is under way."""

    def __init__(self) -> None:
        self._stack, self._lock = ExitStack(), Lock()
        self._pieces: Pieces = iter(())

    def open(self, made: Callable[[ExitStack], tuple[Head, Pieces]]) -> Head:
        """Open it in a stack that is closed in the end, and return what is known before its first piece."""
        with self._lock:
            head, self._pieces = made(self._stack)
            return head

    def next(self) -> bytes | None:
        """Return its next piece, None at the end."""
        with self._lock:
            return next(self._pieces, None)

    def close(self) -> None:
        """Close the stack."""
        with self._lock:
            self._stack.close()


async def opened(
    pool: ThreadPoolExecutor, made: Callable[[ExitStack], tuple[Head, Pieces]]
) -> tuple[Head, AsyncIterator[bytes]]:
    """Open an answer in a thread of the pool, and return what is known before its first piece, and its pieces."""
    answer: _Opened[Head] = _Opened()
    with ExitStack() as unless_opened:
        unless_opened.callback(pool.submit, answer.close)
        head = await apart(pool, answer.open, made)
        unless_opened.pop_all()
    return head, _sent(answer, pool)


async def _sent(answer: _Opened[Head], pool: ThreadPoolExecutor) -> AsyncIterator[bytes]:
    """Yield pieces, each got in a thread of the pool; they are not the threads in which the collector makes them."""
    try:
        while (piece := await apart(pool, answer.next)) is not None:
            yield piece
    finally:
        # Not awaited: an answer that is broken off is cancelled at each await, and a thread may be within a piece.
        pool.submit(answer.close)
