"""Steps in buckets, as the API answers them, and the walk over step windows that reads each stored sample.

An answer has at most 5,000 buckets. Where a bucket holds several samples, its steps are read again in narrower
windows, until a bucket is one sample, or the collector stores nothing finer. Nothing here needs a network.
"""

from __future__ import annotations

import base64
import math
import sys
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, groupby
from operator import add
from typing import Any, TypeVar

T = TypeVar("T")

MOST_BUCKETS = 5_000
"""Of one answer of the API."""

CODES = {"float64": "d", "float32": "f", "int16": "h", "int32": "i"}
"""The type codes of ``array`` for the dtypes of the API."""

PLANES = ("min", "mean", "max", "count", "nonfinite")


def decode(column: Mapping[str, Any]) -> array[Any]:
    """Return the flat array of one of the API, rows first; raises ValueError if it does not have its shape."""
    values = array(CODES[column["dtype"]], base64.b64decode(column["data"]))
    if len(values) != math.prod(column["shape"]):
        raise ValueError(f"an array of shape {column['shape']} has {len(values)} values")
    if sys.byteorder == "big":
        values.byteswap()
    return values


def cut(values: array[Any], kept: slice | Sequence[bool]) -> array[Any]:
    """Return a part of an array."""
    return values[kept] if isinstance(kept, slice) else array(values.typecode, compress(values, kept))


def join(parts: Sequence[array[Any]]) -> array[Any]:
    """Return arrays, at least one, one after the other."""
    joined = array(parts[0].typecode)
    for part in parts:
        joined += part
    return joined


@dataclass(frozen=True)
class Envelope:
    """Per bucket the minimum, mean, maximum and ``count`` of the finite samples, and how many were ``nonfinite``."""

    min: array[float]
    mean: array[float]
    max: array[float]
    count: array[int]
    nonfinite: array[int]

    @classmethod
    def decode(cls, line: Mapping[str, Any]) -> Envelope:
        """Return the envelope of a line of the API."""
        return cls(*(decode(line[plane]) for plane in PLANES))

    def cut(self, kept: slice | Sequence[bool]) -> Envelope:
        """Return the envelope of some buckets."""
        return Envelope(*(cut(getattr(self, plane), kept) for plane in PLANES))

    @classmethod
    def concat(cls, parts: Sequence[Envelope]) -> Envelope:
        """Return parts, at least one, as one."""
        return cls(*(join([getattr(part, plane) for part in parts]) for plane in PLANES))

    def samples(self) -> list[int]:
        """Return the number of samples in each bucket."""
        return list(map(add, self.count, self.nonfinite))


@dataclass(frozen=True)
class Buckets:
    """Per bucket its first step, its ``widths`` in steps, and the unix time of its first sample (NaN: unknown)."""

    steps: array[int]
    widths: array[int]
    times: array[float]

    @classmethod
    def empty(cls) -> Buckets:
        """Return no buckets."""
        return cls(array("q"), array("q"), array("d"))

    @classmethod
    def decode(cls, answer: Mapping[str, Any]) -> Buckets:
        """Return the buckets of an answer."""
        steps = array("q", map(int, decode(answer["steps"])))
        widths = array("q", (width for _, width, _ in _spans(answer, steps)))
        for place, step in enumerate(steps[1:]):  # the last one of a span may end early
            widths[place] = min(widths[place], step - steps[place])
        return cls(steps, widths, decode(answer["times"]))

    def cut(self, kept: slice | Sequence[bool]) -> Buckets:
        """Return some of the buckets."""
        return Buckets(cut(self.steps, kept), cut(self.widths, kept), cut(self.times, kept))

    @classmethod
    def concat(cls, parts: Sequence[Buckets]) -> Buckets:
        """Return parts, at least one, as one."""
        return cls(*(join([getattr(part, name) for part in parts]) for name in ("steps", "widths", "times")))

    def last_step(self, place: int) -> int:
        """Return the last step of a bucket."""
        return self.steps[place] + self.widths[place] - 1


def _spans(answer: Mapping[str, Any], steps: Sequence[int]) -> Iterator[tuple[int, int, int | None]]:
    """Yield for each bucket its step, width, and the interval of its samples if the answer has it."""
    spans = [(span["step"], span["bucket_steps"], span["every"]) for span in answer["spans"]]
    spans = spans or [(0, max(1, answer["bucket_steps"]), None)]
    place = 0
    for step in steps:
        while place + 1 < len(spans) and spans[place + 1][0] <= step:
            place += 1
        yield step, spans[place][1], spans[place][2]


@dataclass(frozen=True)
class Page:
    """An answer: its buckets and phases, the names, tags and envelopes of its lines, the most samples of a line in each
    bucket, and True for each bucket that may hold several samples.
    """

    phases: tuple[str, ...]
    titles: tuple[tuple[str, Mapping[str, str]], ...]
    buckets: Buckets
    lines: tuple[Envelope, ...]
    samples: tuple[int, ...]
    is_coarse: tuple[bool, ...]

    @classmethod
    def decode(cls, answer: Mapping[str, Any], lines: str, most: int, every: int | None = None) -> Page:
        """Return the page of an answer to a request for ``most`` buckets, which has its ``lines`` under this key.

        ``every`` is the interval of its samples, None for that of its spans.
        """
        buckets, envelopes = Buckets.decode(answer), tuple(map(Envelope.decode, answer[lines]))
        samples = [0] * len(buckets.steps)
        for envelope in envelopes:
            samples = list(map(max, samples, envelope.samples()))
        unknown = 1 if len(buckets.steps) > sure_buckets(most) else sys.maxsize
        intervals = [every or interval or unknown for _, _, interval in _spans(answer, buckets.steps)]
        is_coarse = [
            width > 1 and (most > 1 or width > interval)
            for width, most, interval in zip(buckets.widths, samples, intervals, strict=True)
        ]
        titles = tuple((line["name"], line.get("tags", {})) for line in answer[lines])
        return cls(tuple(answer.get("phases", ())), titles, buckets, envelopes, tuple(samples), tuple(is_coarse))

    def cut(self, kept: slice | Sequence[bool]) -> Page:
        """Return some of the buckets."""

        def choose(flags: tuple[T, ...]) -> tuple[T, ...]:
            return flags[kept] if isinstance(kept, slice) else tuple(compress(flags, kept))

        lines = tuple(line.cut(kept) for line in self.lines)
        chosen = choose(self.samples), choose(self.is_coarse)
        return Page(self.phases, self.titles, self.buckets.cut(kept), lines, *chosen)

    def without_empty(self) -> Page:
        """Return the page without buckets in which nothing was sampled."""
        kept = [most > 0 or not math.isnan(time) for most, time in zip(self.samples, self.buckets.times, strict=True)]
        return self if all(kept) else self.cut(kept)


Read = Callable[["int | None", "int | None"], Page]
"""Answers for the steps from one to another, both included."""

Window = tuple[int, int, Page]
"""A first and a last step, and their page."""


def read_finest(read: Read, begin: int | None, end: int | None, most: int = MOST_BUCKETS) -> Iterator[Window]:
    """Yield the steps between two, both included, as windows in rising order, each as fine as it is stored.

    ``most`` is the number of buckets that ``read`` asks for.
    """
    page = read(begin, end)
    if page.samples:
        yield from _refine(read, begin, end, most, page)
    else:
        yield begin or 0, end or 0, page


def _refine(read: Read, begin: int | None, end: int | None, most: int, page: Page) -> Iterator[Window]:
    """Yield the windows of a page; what is coarse in it is read again."""
    if not page.samples:
        return
    buckets = page.buckets
    # The first bucket may begin before the steps that were asked for, and the last one end after them.
    low, high = max(buckets.steps[0], begin or 0), buckets.last_step(-1)
    high = high if end is None else min(high, end)
    if high - low < most:  # it was not widened to fit into the answer
        yield low, high, page.without_empty()
        return
    place = 0
    for is_coarse, stretch in groupby(page.is_coarse):
        first, place = place, place + len(list(stretch))
        size = place - first
        if is_coarse:
            size = max(1, min(-(-size // 2), sure_buckets(most) // max(2, *page.samples[first:place])))
        for start in range(first, place, size):
            stop = min(start + size, place)
            since, until = max(buckets.steps[start], low), min(buckets.last_step(stop - 1), high)
            part = page.cut(slice(start, stop)).without_empty()
            if not is_coarse or (since, until) == (begin, end):
                yield since, until, part
            elif part.samples:
                yield from _refine(read, since, until, most, read(since, until))


def sure_buckets(most: int) -> int:
    """Return the largest number of buckets of an answer, of ``most`` that were asked for, that shows that they were
    not widened to fit: widened ones are more than half as many.
    """
    return max(1, most // 2 - 2)
