"""Numbers and counts as words, the same for agent, collector and pages. Standard library only."""

from __future__ import annotations

import math

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


def count(items: int, noun: str, verb: tuple[str, str] | None = None) -> str:
    """Return ``1 layer``, ``1,200 layers``; with ``verb=("has", "have")`` also ``1 layer has``."""
    text = f"{items:,} {noun}" if items == 1 else f"{items:,} {noun}s"
    return text if verb is None else f"{text} {agree(items, verb)}"


def agree(items: int, verb: tuple[str, str]) -> str:
    """Return the singular or the plural of a pair, as ``("has", "have")``."""
    return verb[0] if items == 1 else verb[1]
