"""The frames of SQLite's write-ahead log, and which of them are whole; pure.

After a header each frame is a page with a header of its own. Sums over all that came before are in each, so a frame
that is not what was written ends the log there: https://www.sqlite.org/fileformat2.html#walformat
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

HEADER = 32
"""Bytes in front of the first frame."""

INDEX = 48
"""Bytes of the shared file's beginning, which tells of the log: https://www.sqlite.org/walformat.html#walidxfmt"""

FOUND = slice(0, 96)
"""Where it does so, twice: of zeros SQLite knows that they are wrong, and counts anew what is whole."""

MOVED = slice(96, 100)
"""Where that file counts the frames that are in the database file."""

_MAGIC = {0x377F0682: "<u4", 0x377F0683: ">u4"}
"""In which order of bytes the sums read what they sum up."""

_OF_FRAME = 24
_MASK = 2**32 - 1

Sums = tuple[int, int]


@dataclass(frozen=True)
class Extent:
    """How long a log is by those who write it: frames, the sums of the last one, and the bytes of a page."""

    count: int
    sums: Sums
    page: int = 0

    @property
    def size(self) -> int:
        """Return the bytes of its frames."""
        return self.count * (_OF_FRAME + self.page)


def extent(index: bytes) -> Extent:
    """Return what the shared file says, which each process writes in its own order of bytes."""
    if len(index) < INDEX:
        return Extent(0, (0, 0))
    page, count, _pages, first, second = struct.unpack_from("=H4I", index, 14)
    return Extent(count, (first, second), 2**16 if page == 1 else page)


class Chain:
    """Follows the frames of a log, from the first one on as far as they are whole."""

    def __init__(self, header: bytes) -> None:
        """Raises ValueError where this is no header of a log."""
        magic, _version, page, _checkpoint = struct.unpack_from(">4I", header.ljust(HEADER, b"\0"))
        if magic not in _MAGIC:
            raise ValueError(f"A log begins otherwise than with {magic:#x}.")
        self.size: int = _OF_FRAME + page
        self.count = 0
        self._salts = header[16:24]
        self._order = _MAGIC[magic]
        words = np.frombuffer(header[:24], self._order).astype(np.uint32)
        self.sums = _after((0, 0), words @ _weights(len(words)), len(words))
        if self.sums != struct.unpack(">2I", header[24:32]):
            raise ValueError("The header of the log is not what was written.")

    def follow(self, raw: bytes, most: int) -> int:
        """Return how many bytes of ``raw``, which goes on where the last call ended, are whole frames, ``most`` of
        them at most."""
        found = np.frombuffer(raw, np.uint8)[: min(len(raw) // self.size, most) * self.size].reshape(-1, self.size)
        summed = np.concatenate((found[:, :8], found[:, _OF_FRAME:]), axis=1).view(self._order).astype(np.uint32)
        weights = _weights(summed.shape[1])
        for number, parts in enumerate(summed @ weights):
            head = found[number, 8:_OF_FRAME].tobytes()
            sums = _after(self.sums, parts, summed.shape[1])
            if head[:8] != self._salts or sums != struct.unpack(">2I", head[8:]):
                return number * self.size
            self.sums, self.count = sums, self.count + 1
        return len(found) * self.size


def _after(before: Sums, parts: NDArray[np.uint32], count: int) -> Sums:
    """Return the sums behind so many words, of those before them and of what the words themselves add to either."""
    fibonacci = _fibonacci(count)
    first, second = before
    return (
        (fibonacci[count - 1] * first + fibonacci[count] * second + int(parts[0])) & _MASK,
        (fibonacci[count] * first + fibonacci[count + 1] * second + int(parts[1])) & _MASK,
    )


# s += a + t; t += b + s for each pair of words is a Fibonacci number for each word: no loop over words, of which a log
# of megabytes has millions.
@lru_cache(maxsize=4)
def _weights(count: int) -> NDArray[Any]:
    numbers = np.array(_fibonacci(count), np.uint32)
    return np.stack((numbers[count - 1 :: -1], numbers[count:0:-1]), axis=1)


@lru_cache(maxsize=4)
def _fibonacci(count: int) -> list[int]:
    """Return the numbers 0 to ``count + 1``, by 2^32."""
    found = [0, 1]
    while len(found) < count + 2:
        found.append((found[-1] + found[-2]) & _MASK)
    return found
