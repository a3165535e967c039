"""Numbers, counts and names as words, the same for agent, collector and pages. Standard library only."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import takewhile

NOTHING = "\N{EN DASH}"


def number(value: float | None) -> str:
    """Return a value with two or three digits: ``6.1e-7``, ``0.125``, ``12,300``; None as a dash."""
    if value is None:
        return NOTHING
    if not math.isfinite(value) or value == 0:
        return "0" if value == 0 else str(value)
    if 1e-3 <= abs(value) < 1e6:
        digits = max(0, 2 - math.floor(math.log10(abs(value))))
        text = f"{value:,.{digits}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa.removesuffix('.0')}e{int(exponent)}"


def percent(share: float) -> str:
    """Return a share of 1 as ``0.42 %``, ``2.5 %`` or ``25 %``; only all is ``100 %``, only nothing ``0 %``."""
    value = 100 * share
    if 0 < value < 0.005:
        return "under 0.01 %"
    if 99.5 <= value < 100:
        return f"{math.floor(10 * value) / 10:g} %"
    return f"{value:.{0 if value == 0 or value >= 9.95 else 2 if value < 0.995 else 1}f} %"


def format_bytes(size: int) -> str:
    """Return bytes in the largest unit of which there is at least one: 72.8 GiB, 412 MiB."""
    units = ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB"), (0, "B"))
    power, name = next((each for each in units if size >= 2 ** each[0]), units[-1])
    value = size / 2**power
    decimals = max(3 - len(str(int(value))), 0) if power else 0
    return f"{value:.{decimals}f} {name}"


def count(items: int, noun: str, verb: tuple[str, str] | None = None) -> str:
    """Return ``1 layer``, ``1,200 layers``; with ``verb=("has", "have")`` also ``1 layer has``."""
    text = f"{items:,} {noun}" if items == 1 else f"{items:,} {noun}s"
    return text if verb is None else f"{text} {agree(items, verb)}"


def agree(items: int, verb: tuple[str, str]) -> str:
    """Return the singular or the plural of a pair, as ``("has", "have")``."""
    return verb[0] if items == 1 else verb[1]


def low(layers: int, before: str = "") -> str:
    """Return ``small, but not falling: 3``; empty for 0."""
    return f"{before}small, but not falling: {layers:,}" if layers else ""


def shared_ends(names: Iterable[str]) -> tuple[str, str]:
    """Return the beginning and the end that all names of a model share, in whole parts: ``("model.", ".weight")``.

    Of each name at least one part is left. No short name begins or ends with a number: ``blocks.0``, not ``0``.
    """
    parts = [name.split(".") for name in set(names)]
    if len(parts) < 2:
        return "", ""
    last = _count_shared([each[::-1] for each in parts])
    first = max(0, min(_count_shared(parts), min(map(len, parts)) - 1 - last))
    named = parts[0]
    return "".join(f"{part}." for part in named[:first]), "".join(f".{part}" for part in named[len(named) - last :])


def _count_shared(names: Sequence[list[str]]) -> int:
    """Return the number of parts that all names begin with; the next part is in none of them a number."""
    least, most = min(names), max(names)
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(least, most, strict=False)))
    shared = min(shared, min(map(len, names)) - 1)
    while shared and any(each[shared].isdecimal() for each in names):
        shared -= 1
    return shared
