"""Units of bytes and seconds, so that a number has few digits before its point. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Unit:
    """A unit: ``1 name`` is ``size`` of the logged value."""

    size: float = 1.0
    name: str = ""


BYTES = tuple(Unit(2.0**power, name) for power, name in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB"), (0, "B")))
"""Binary units, as in torch and ``nvidia-smi``."""


def plain(_number: float) -> Unit:
    """Return no unit: the name of the metric has it."""
    return Unit()


def of_bytes(number: float) -> Unit:
    """Return the largest unit that is not larger than these bytes."""
    return next((unit for unit in BYTES if number >= unit.size), BYTES[-1])


def of_seconds(number: float) -> Unit:
    """Return s or ms, by the rounded number: 999.9 ms is a second."""
    return Unit(1.0, "s") if number >= 0.9995 else Unit(1e-3, "ms")
