"""Patterns for many layer names: ``blocks.7-9.*.lora_A`` instead of 18 lines.

Names are segments between dots. In a pattern a segment may be a list of numbers and ranges (``1,7-9``), and ``*``
stands for any text. A pattern is exact if it covers no other layer of the run. Exact ones are preferred; patterns
widen, at last to ``*``, only if there would be too many. Each given name is always covered.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

Segment = str | frozenset[int]
ANY = "*"
MAX_CHECKS = 100_000
"""Comparisons with other layers in one round of merging (about 0.1 s); beyond it no merged pattern counts as exact."""
TAILS = (3, 2, 1, 0)
"""Last segments that layers of one kind share, longest first: PEFT ends names in ``lora_A.default.weight``."""


@dataclass(frozen=True)
class Pattern:
    """A pattern of names: segments of text, sets of numbers, and ``*``."""

    segments: tuple[Segment, ...]

    def __str__(self) -> str:
        return ".".join(segment if isinstance(segment, str) else _ranges(segment) for segment in self.segments)

    @cached_property
    def regex(self) -> re.Pattern[str]:
        """The expression that matches the names."""
        return re.compile(r"\.".join(_regex(segment) for segment in self.segments), re.DOTALL)

    @property
    def head(self) -> tuple[Segment, ...]:
        """The block: the segments up to and including the first number, else the first segment."""
        for at, segment in enumerate(self.segments):
            if not isinstance(segment, str):
                return self.segments[: at + 1]
        return self.segments[:1]


def compress_names(names: Iterable[str], others: Sequence[str], limit: int) -> tuple[str, ...]:
    """Return at most ``limit`` patterns that cover all names; ``others`` are the run's other layers.

    1. Names that differ only in numbers become one pattern if their numbers form a full grid.
    2. Patterns of one block and one ending merge if the result covers no other layer.
    3. While there are too many: merge by ending, then by beginning, then all, whatever they cover.
    """
    return tuple(sorted(map(str, compressed_patterns(names, others, limit))))


def compressed_patterns(names: Iterable[str], others: Sequence[str], limit: int) -> list[Pattern]:
    """Return the patterns of :func:`compress_names` as segments."""
    patterns = _grids(sorted(set(names)))
    if len(patterns) > 1 and not others:
        return [Pattern((ANY,))]
    for tail in TAILS:
        patterns = _merged(patterns, _by_block(tail), others)
    wider: tuple[Callable[[Pattern], Hashable], ...] = (
        lambda pattern: (pattern.segments[0], pattern.segments[-1]),
        lambda pattern: pattern.segments[0],
        lambda _: None,
    )
    for key in wider:
        if len(patterns) > limit:
            patterns = _merged(patterns, key, ())
    return patterns


def _grids(names: Iterable[str]) -> list[Pattern]:
    numbers: dict[tuple[str | None, ...], list[tuple[int, ...]]] = defaultdict(list)
    for name in names:
        segments = [int(text) if _is_number(text) else text for text in name.split(".")]
        template = tuple(segment if isinstance(segment, str) else None for segment in segments)
        numbers[template].append(tuple(segment for segment in segments if isinstance(segment, int)))
    return [Pattern(_filled(template, grid)) for template, vectors in numbers.items() for grid in _full_grids(vectors)]


def _full_grids(vectors: list[tuple[int, ...]]) -> list[tuple[frozenset[int], ...]]:
    """Split vectors of numbers into grids, sets of numbers of which every combination occurs.

    (1, 7), (1, 8), (2, 7), (2, 8), (3, 9) become {1, 2} x {7, 8} and {3} x {9}.
    """
    if not vectors[0]:
        return [()]
    tails: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    for first, *tail in vectors:
        tails[first].append(tuple(tail))
    firsts: dict[tuple[tuple[int, ...], ...], list[int]] = defaultdict(list)
    for first, vectors_of_tail in tails.items():
        firsts[tuple(vectors_of_tail)].append(first)
    return [(frozenset(numbers), *grid) for tail, numbers in firsts.items() for grid in _full_grids(list(tail))]


def _filled(template: tuple[str | None, ...], grid: tuple[frozenset[int], ...]) -> tuple[Segment, ...]:
    numbers = iter(grid)
    return tuple(next(numbers) if segment is None else segment for segment in template)


def _merged(patterns: list[Pattern], key: Callable[[Pattern], Hashable], others: Sequence[str]) -> list[Pattern]:
    groups: dict[Hashable, list[Pattern]] = defaultdict(list)
    for pattern in patterns:
        groups[key(pattern)].append(pattern)
    if sum(len(group) > 1 for group in groups.values()) * len(others) > MAX_CHECKS:
        return patterns
    merged: list[Pattern] = []
    for group in groups.values():
        wide = _spanning(group) if len(group) > 1 else group[0]
        merged += group if len(group) > 1 and any(map(wide.regex.fullmatch, others)) else [wide]
    return merged


def _spanning(group: list[Pattern]) -> Pattern:
    """Return the narrowest pattern with one ``*`` over the whole group."""
    rows = [pattern.segments for pattern in group]
    start = _shared(rows)
    end = _shared([row[start:][::-1] for row in rows])
    first = rows[0]
    return Pattern((*first[:start], ANY, *first[len(first) - end :]))


def _shared(rows: list[tuple[Segment, ...]]) -> int:
    """Count the first segments that all rows share; the ``*`` stands for at least one of each row."""
    limit = min(map(len, rows)) - 1
    for at, segment in enumerate(rows[0][:limit]):
        if segment == ANY or any(row[at] != segment for row in rows):
            return at
    return limit


def _by_block(tail: int) -> Callable[[Pattern], Hashable]:
    def key(pattern: Pattern) -> Hashable:
        rest = pattern.segments[len(pattern.head) :]
        return pattern.head, rest[len(rest) - tail :] if len(rest) >= tail else pattern.segments

    return key


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 9 and str(int(text)) == text


def _regex(segment: Segment) -> str:
    if segment == ANY:
        return ".*"
    return re.escape(segment) if isinstance(segment, str) else f"(?:{'|'.join(map(str, sorted(segment)))})"


def _ranges(numbers: frozenset[int]) -> str:
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1].append(number)
        else:
            ranges.append([number])
    return ",".join(str(first) if not rest else f"{first}-{rest[-1]}" for first, *rest in ranges)
