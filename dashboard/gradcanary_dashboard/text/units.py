"""In what bytes and seconds are told, so that a number has few digits before its point; no I/O."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Unit:
    """What numbers are told in: ``1 name`` is ``size`` of what was logged."""

    size: float = 1.0
    name: str = ""


BYTES = tuple(Unit(2.0**power, name) for power, name in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB"), (0, "B")))
"""Binary ones: in them torch and ``nvidia-smi`` say how much memory there is, and how much was asked for."""


def plain(_number: float) -> Unit:
    """Return no unit: a metric is what its name says."""
    return Unit()


def of_bytes(number: float) -> Unit:
    """Return the largest unit of which so many bytes are at least one."""
    return next((unit for unit in BYTES if number >= unit.size), BYTES[-1])


def of_seconds(number: float) -> Unit:
    """Return s or ms, by what would be said: 999.9 ms is a second."""
    return Unit(1.0, "s") if number >= 0.9995 else Unit(1e-3, "ms")
