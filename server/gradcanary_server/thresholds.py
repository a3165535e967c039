"""The numbers of the rules over the layers of a launch: one for all, unless ``layers`` of rules.yaml moves some. Pure.

An array is [L] where layers differ, and [] where they do not, which costs a step what a plain number does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from gradcanary_server.rules import Section

Mask = NDArray[np.bool_]
Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Thresholds:
    """The numbers of one rule that layers may have of their own, by their names in :mod:`gradcanary_server.rules`."""

    enabled: Mask

    REAL: ClassVar[type[np.float32 | np.float64]] = np.float64
    """What is measured in float32 is compared in float32: an error of 0.05, as measured, is not over 0.05."""

    @cached_property
    def is_on(self) -> bool:
        """Whether the rule judges any layer."""
        return bool(self.enabled.any())


@dataclass(frozen=True, eq=False)
class OfExplosion(Thresholds):
    """Of ``explosion``."""

    ratio: Floats
    absmax: Floats
    observations: Ints


@dataclass(frozen=True, eq=False)
class OfVanished(Thresholds):
    """Of ``vanished``."""

    steady_share: Floats
    observations: Ints
    fire_after_steps: Ints
    rare_factor: Ints


@dataclass(frozen=True, eq=False)
class OfUnused(Thresholds):
    """Of ``unused``."""

    observations: Ints


@dataclass(frozen=True, eq=False)
class OfAccumulationLoss(Thresholds):
    """Of ``accumulation_loss``."""

    error: Singles
    norm_ratio: Singles

    REAL = np.float32


@dataclass(frozen=True, eq=False)
class OfAccumulator(Thresholds):
    """Of ``accumulator``."""

    warn_above: Floats


@dataclass(frozen=True, eq=False)
class OfFrozen(Thresholds):
    """Of ``frozen``."""

    share: Singles
    moved_share: Singles
    stopped_share: Singles

    REAL = np.float32


@dataclass(frozen=True, eq=False)
class OfFp16Underflow(Thresholds):
    """Of ``fp16_underflow``."""

    growth: Singles
    share: Singles
    observations: Ints

    REAL = np.float32


Kind = TypeVar("Kind", bound=Thresholds)


def spread(kind: type[Kind], sections: Sequence[Section], default: Section) -> Kind:
    """Return the numbers of a rule over the layers that have these sections; ``default`` where there is no layer."""
    differ = len({id(section) for section in sections}) > 1
    shown = sections if differ else [*sections, default][:1]

    def over(name: str) -> NDArray[Any]:
        values = [getattr(section, name) for section in shown]
        dtype = {bool: np.bool_, int: np.int64}.get(type(values[0]), kind.REAL)
        return np.array(values if differ else values[0], dtype)

    return kind(**{each.name: over(each.name) for each in fields(kind)})
