"""Steps in buckets, as the API answers them, and the walk over step windows that reads each stored sample.

An answer has at most 5,000 buckets. Where a bucket holds several samples, its steps are read again in narrower
windows, until a bucket is one sample, or the collector stores nothing finer. Nothing here needs a network.
"""

from __future__ import annotations

import math
import sys
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress, groupby
from operator import add
from typing import Any

from gradcanary.export.tables import decode
from gradcanary.wording import count

MOST_BUCKETS = 5_000
"""Of one answer of the API."""

PLANES = ("min", "mean", "max", "count", "nonfinite")


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

    @property
    def span(self) -> str:
        """The number of buckets and their steps, in words."""
        steps = f" of steps {self.steps[0]:,} to {self.last_step(-1):,}" if self.steps else ""
        return f"{count(len(self.steps), 'bucket')}{steps}"

    @classmethod
    def empty(cls) -> Buckets:
        """Return no buckets."""
        return cls(array("q"), array("q"), array("d"))

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


def decode_buckets(answer: Mapping[str, Any]) -> tuple[Buckets, array[int]]:
    """Return the buckets of an answer, and the interval in steps of the samples in each, 0 where it has none."""
    uniform = {"step": 0, "bucket_steps": max(1, answer["bucket_steps"]), "every": 0}
    spans, steps = answer["spans"] or [uniform], array("q", map(int, decode(answer["steps"])))
    counts = [bisect_left(steps, span["step"]) for span in spans[1:]]
    widths, intervals = array("q"), array("q")
    for span, first, end in zip(spans, [0, *counts], [*counts, len(steps)], strict=True):
        widths.extend([span["bucket_steps"]] * (end - first))
        intervals.extend([span["every"]] * (end - first))
    for end in counts:  # the last bucket of a span ends where the next span begins
        widths[end - 1] = min(widths[end - 1], steps[end] - steps[end - 1])
    return Buckets(steps, widths, decode(answer["times"])), intervals


@dataclass(frozen=True)
class Page:
    """An answer to a request for ``most`` buckets: these, the ``intervals`` of the samples in them (0: unknown), and
    names, tags and envelopes of its lines.
    """

    most: int
    phases: tuple[str, ...]
    titles: tuple[tuple[str, Mapping[str, str]], ...]
    buckets: Buckets
    intervals: array[int]
    lines: tuple[Envelope, ...]

    @classmethod
    def decode(cls, answer: Mapping[str, Any], lines: str, most: int) -> Page:
        """Return the page of an answer with its ``lines`` under this key."""
        buckets, intervals = decode_buckets(answer)
        titles = tuple((line["name"], line.get("tags", {})) for line in answer[lines])
        envelopes = tuple(map(Envelope.decode, answer[lines]))
        return cls(most, tuple(answer.get("phases", ())), titles, buckets, intervals, envelopes)

    @cached_property
    def samples(self) -> list[int]:
        """The most samples of a line in each bucket."""
        samples = [0] * len(self.intervals)
        for line in self.lines:
            samples = list(map(max, samples, line.samples()))
        return samples

    def are_coarse(self) -> list[bool]:
        """Return True for each bucket that may be there in narrower ones.

        Buckets that were widened to fit into the answer are more than half as many as fit: fewer are as narrow as
        their samples allow, unless a line has several in one.
        """
        unknown = 1 if len(self.intervals) > self.most // 2 - 2 else sys.maxsize
        buckets = zip(self.buckets.widths, self.intervals, self.samples, strict=True)
        return [width > 1 and (samples > 1 or width > (every or unknown)) for width, every, samples in buckets]

    def cut(self, kept: slice | Sequence[bool]) -> Page:
        """Return some of the buckets."""
        lines = tuple(line.cut(kept) for line in self.lines)
        return replace(self, buckets=self.buckets.cut(kept), intervals=cut(self.intervals, kept), lines=lines)

    def without_empty(self) -> Page:
        """Return the page without buckets in which nothing was sampled."""
        if not any(map(math.isnan, self.buckets.times)):
            return self
        return self.cut(
            [not math.isnan(time) or most > 0 for time, most in zip(self.buckets.times, self.samples, strict=True)]
        )


Read = Callable[["int | None", "int | None"], Page]
"""Answers for the steps from one to another, both included."""

Window = tuple[int, int, Page]
"""A first and a last step, and their page."""


def read_finest(read: Read, begin: int | None, end: int | None) -> Iterator[Window]:
    """Yield the steps between two, both included, as windows in rising order, each as fine as it is stored."""
    page = read(begin, end)
    yield from _refine(read, begin, end, page) if page.intervals else [(begin or 0, end or 0, page)]


def _refine(read: Read, begin: int | None, end: int | None, page: Page) -> Iterator[Window]:
    """Yield the windows of a page; what is coarse in it is read again."""
    if not page.intervals:
        return
    buckets, place = page.buckets, 0
    # The first bucket may begin before the steps that were asked for, and the last one end after them.
    low, high = max(buckets.steps[0], begin or 0), buckets.last_step(-1)
    high = high if end is None else min(high, end)
    if high - low < page.most:  # it was not widened to fit into the answer
        yield low, high, page.without_empty()
        return
    for is_coarse, stretch in groupby(page.are_coarse()):
        first, place = place, place + len(list(stretch))
        size = _window_size(page, first, place) if is_coarse else place - first
        for start in range(first, place, size):
            stop = min(start + size, place)
            since, until = max(buckets.steps[start], low), min(buckets.last_step(stop - 1), high)
            part = page.cut(slice(start, stop)).without_empty()
            if not is_coarse or (since, until) == (begin, end):
                yield since, until, part
            elif part.intervals:
                yield from _refine(read, since, until, read(since, until))


def _window_size(page: Page, first: int, end: int) -> int:
    """Return the number of coarse buckets to read again at once: at most half of them, and those whose samples fit."""
    samples = max(2, *page.samples[first:end])
    # An answer with a bucket for each step may be full; of others, half full ones are known to be the finest.
    room = page.most if samples >= max(page.buckets.widths[first:end]) else page.most // 2 - 2
    return max(1, min((end - first + 1) // 2, room // samples))
