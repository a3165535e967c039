"""Many layer names in few patterns: ``blocks.7-9.*.lora_A`` instead of 18 lines.

Names are segments between dots. In a pattern a segment may be a list of numbers and ranges (``1,7-9``), and ``*``
stands for any text. A pattern is exact when it covers no other layer of the run; exact ones are preferred, and only
when too many would be left do patterns widen, ``*`` at last. Every given name is always covered.
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
"""Comparisons with other layers that one round of merging may cost (about 0.1 s); past it nothing is called exact."""
TAILS = (3, 2, 1, 0)
"""Last segments that layers of one kind share, longest first: PEFT ends names in ``lora_A.default.weight``."""


@dataclass(frozen=True)
class Pattern:
    """Segments of text, sets of numbers, and ``*``."""

    segments: tuple[Segment, ...]

    def __str__(self) -> str:
        return ".".join(segment if isinstance(segment, str) else _ranges(segment) for segment in self.segments)

    @cached_property
    def regex(self) -> re.Pattern[str]:
        """Matches the names that the pattern covers."""
        return re.compile(r"\.".join(_regex(segment) for segment in self.segments), re.DOTALL)

    @property
    def head(self) -> tuple[Segment, ...]:
        """The segments up to and including the first number: the block; else the first one."""
        for at, segment in enumerate(self.segments):
            if not isinstance(segment, str):
                return self.segments[: at + 1]
        return self.segments[:1]


def compress(names: Iterable[str], others: Sequence[str], limit: int) -> tuple[str, ...]:
    """Return at most ``limit`` patterns that cover all names; ``others`` are the run's layers that are not meant.

    1. Names that differ in numbers only become one pattern, where their numbers form a full grid.
    2. Patterns of one block and one ending merge over what is between, if that covers no other layer.
    3. While there are too many: merge by ending, then by beginning, then all, whatever that covers.
    """
    return tuple(sorted(map(str, patterns(names, others, limit))))


def patterns(names: Iterable[str], others: Sequence[str], limit: int) -> list[Pattern]:
    """Return what :func:`compress` prints."""
    given = sorted(set(names))
    found = _grids(given)
    if len(found) > 1 and not others:
        return [Pattern((ANY,))]
    for tail in TAILS:
        found = _merged(found, _by_block(tail), others)
    for key in (_by_ends, _by_start, _all):
        if len(found) > limit:
            found = _merged(found, key, ())
    return found


def _grids(names: Iterable[str]) -> list[Pattern]:
    numbers: dict[tuple[str | None, ...], list[tuple[int, ...]]] = defaultdict(list)
    for name in names:
        segments = [int(text) if _is_number(text) else text for text in name.split(".")]
        template = tuple(segment if isinstance(segment, str) else None for segment in segments)
        numbers[template].append(tuple(segment for segment in segments if isinstance(segment, int)))
    return [Pattern(_filled(template, grid)) for template, vectors in numbers.items() for grid in _full_grids(vectors)]


def _full_grids(vectors: list[tuple[int, ...]]) -> list[tuple[frozenset[int], ...]]:
    """Split vectors of numbers into grids: a set per place, every combination of which is there."""
    if not vectors[0]:
        return [()]
    rests: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    for first, *rest in vectors:
        rests[first].append(tuple(rest))
    firsts: dict[tuple[tuple[int, ...], ...], list[int]] = defaultdict(list)
    for first, vectors_of_rest in rests.items():
        firsts[tuple(vectors_of_rest)].append(first)
    return [(frozenset(numbers), *grid) for rest, numbers in firsts.items() for grid in _full_grids(list(rest))]


def _filled(template: tuple[str | None, ...], grid: tuple[frozenset[int], ...]) -> tuple[Segment, ...]:
    places = iter(grid)
    return tuple(next(places) if segment is None else segment for segment in template)


def _merged(found: list[Pattern], key: Callable[[Pattern], Hashable], others: Sequence[str]) -> list[Pattern]:
    groups: dict[Hashable, list[Pattern]] = defaultdict(list)
    for pattern in found:
        groups[key(pattern)].append(pattern)
    if sum(len(group) > 1 for group in groups.values()) * len(others) > MAX_CHECKS:
        return found
    merged: list[Pattern] = []
    for group in groups.values():
        wide = [_spanning(group)] if len(group) > 1 else group
        merged += wide if wide is group or not _covers_any(wide[0], others) else group
    return merged


def _covers_any(pattern: Pattern, others: Sequence[str]) -> bool:
    return any(pattern.regex.fullmatch(other) for other in others)


def _spanning(group: list[Pattern]) -> Pattern:
    """Return the narrowest pattern with one ``*`` over the whole group."""
    rows = [pattern.segments for pattern in group]
    start = _shared(rows)
    end = _shared([row[start:][::-1] for row in rows])
    first = rows[0]
    return Pattern((*first[:start], ANY, *first[len(first) - end :]))


def _shared(rows: list[tuple[Segment, ...]]) -> int:
    """Count the segments that all rows begin with; one of each row is left for the ``*`` to stand for."""
    most = min(map(len, rows)) - 1
    for at, segment in enumerate(rows[0][:most]):
        if segment == ANY or any(row[at] != segment for row in rows):
            return at
    return most


def _by_block(tail: int) -> Callable[[Pattern], Hashable]:
    def key(pattern: Pattern) -> Hashable:
        rest = pattern.segments[len(pattern.head) :]
        return pattern.head, rest[len(rest) - tail :] if len(rest) >= tail else pattern.segments

    return key


def _by_ends(pattern: Pattern) -> Hashable:
    return pattern.segments[0], pattern.segments[-1]


def _by_start(pattern: Pattern) -> Hashable:
    return pattern.segments[0]


def _all(_: Pattern) -> Hashable:
    return None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 9 and str(int(text)) == text


def _regex(segment: Segment) -> str:
    if segment == ANY:
        return ".*"
    return re.escape(segment) if isinstance(segment, str) else f"(?:{'|'.join(map(str, sorted(segment)))})"


def _ranges(numbers: frozenset[int]) -> str:
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
