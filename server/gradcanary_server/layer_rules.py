"""The rules as arrays over the layers of a launch, made once per launch; pure."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Generic, NamedTuple, TypeVar
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from gradcanary_server.observations import LayerFacts
from gradcanary_server.rules import Collapse, Rules
from gradcanary_server.thresholds import (
    Kind,
    OfAccumulationLoss,
    OfAccumulator,
    OfExplosion,
    OfFp16Underflow,
    OfFrozen,
    OfUnused,
    OfVanished,
    Thresholds,
    spread,
)

_DIGITS = re.compile(r"\d+")

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Value = TypeVar("Value")


class Family(NamedTuple):
    """Siblings: ``members`` int64[k] are positions in the launch, ``least`` is how many of them must be seen."""

    members: NDArray[np.int64]
    least: int


@dataclass(frozen=True)
class LayerRules:
    """Each array belongs to the launch's layers, in their order.

    ``columns`` int64[L] are their layer numbers, ``shapes`` uint32[L] a checksum of their shapes; ``enter_level`` and
    ``exit_level`` are log10; ``by_fall``, ``by_siblings``, ``by_threshold`` tell which evidence counts where, and
    ``norm_below`` is 0 where none was given; ``families`` are the siblings; ``groups`` is the number of the launch's
    parameter groups, ``group`` int64[L] that of each layer, -1 = none; ``is_half`` tells which are float16. The numbers
    of the other rules are arrays only where layers differ (:mod:`gradcanary_server.thresholds`).
    """

    columns: NDArray[np.int64]
    shapes: NDArray[np.uint32]
    enter: Floats
    exit: Floats
    by_fall: Mask
    by_siblings: Mask
    by_threshold: Mask
    enabled: Mask
    fall: Floats
    over_common: Floats
    norm_below: Floats
    observations: NDArray[np.int64]
    siblings: Floats
    fire_after: NDArray[np.float32]
    resolve_after: NDArray[np.float32]
    families: tuple[Family, ...]
    groups: int
    group: NDArray[np.int64]
    is_half: Mask
    nonfinite: Thresholds
    explosion: OfExplosion
    vanished: OfVanished
    unused: OfUnused
    accumulation_loss: OfAccumulationLoss
    accumulator: OfAccumulator
    frozen: OfFrozen
    fp16_underflow: OfFp16Underflow

    @cached_property
    def enter_level(self) -> Floats:
        level: Floats = np.log10(self.enter)
        return level

    @cached_property
    def has_threshold(self) -> bool:
        """Whether a layer is held against a number that the rules give, at its word."""
        return bool(self.by_threshold.any() or self.norm_below.any())


def compile_rules(layers: tuple[LayerFacts, ...], rules: Rules) -> LayerRules:
    """Return what holds for each layer of a launch."""
    return _compiled(_Same(layers), _Same(rules))


class _Same(Generic[Value]):
    """A value that is equal to itself alone: to hash and compare 500 layers took longer than to fold five steps."""

    def __init__(self, value: Value) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value


@lru_cache(maxsize=256)
def _compiled(same_layers: _Same[tuple[LayerFacts, ...]], same_rules: _Same[Rules]) -> LayerRules:
    layers, rules = same_layers.value, same_rules.value
    entries = [rules.entry_of(layer.name) for layer in layers]
    mine = [rules.collapse if entry is None else entry.collapse or rules.collapse for entry in entries]

    def floats(attribute: str) -> Floats:
        return np.array([getattr(rule, attribute) for rule in mine], np.float64)

    def uses(evidence: str) -> Mask:
        return np.array([rule.enabled and evidence in rule.evidence for rule in mine], np.bool_)

    def of(kind: type[Kind], rule: str) -> Kind:
        return spread(kind, [rules.section(rule, entry) for entry in entries], rules.section(rule, None))

    return LayerRules(
        columns=np.array([layer.number for layer in layers], np.int64),
        shapes=np.array([crc32(repr(layer.shape).encode()) for layer in layers], np.uint32),
        # A gradient of float32(1e-4) is not under 1e-4: compare in the precision that was measured.
        enter=floats("enter").astype(np.float32).astype(np.float64),
        exit=floats("exit").astype(np.float32).astype(np.float64),
        by_fall=uses("fall"),
        by_siblings=uses("siblings"),
        by_threshold=uses("threshold"),
        enabled=np.array([rule.enabled for rule in mine], np.bool_),
        fall=floats("fall_decades"),
        over_common=floats("over_common_decades"),
        norm_below=np.array([rule.norm_below or 0 for rule in mine], np.float32).astype(np.float64),
        observations=np.array([rule.baseline_observations for rule in mine], np.int64),
        siblings=floats("siblings_decades"),
        fire_after=floats("fire_after_steps").astype(np.float32),
        resolve_after=floats("resolve_after_steps").astype(np.float32),
        families=_families(layers, mine),
        groups=1 + max((layer.group for layer in layers if layer.group is not None), default=-1),
        group=np.array([-1 if layer.group is None else layer.group for layer in layers], np.int64),
        is_half=np.array([layer.param_dtype == "float16" for layer in layers], np.bool_),
        nonfinite=of(Thresholds, "nonfinite"),
        explosion=of(OfExplosion, "explosion"),
        vanished=of(OfVanished, "vanished"),
        unused=of(OfUnused, "unused"),
        accumulation_loss=of(OfAccumulationLoss, "accumulation_loss"),
        accumulator=of(OfAccumulator, "accumulator"),
        frozen=of(OfFrozen, "frozen"),
        fp16_underflow=of(OfFp16Underflow, "fp16_underflow"),
    )


def _families(layers: tuple[LayerFacts, ...], mine: list[Collapse]) -> tuple[Family, ...]:
    """Return the layers with the same name but for numbers, the same module class and shape."""
    found: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for position, layer in enumerate(layers):
        found[_DIGITS.sub("#", layer.name), layer.module_class, layer.shape].append(position)
    families = (
        Family(np.array(positions, np.int64), min(mine[position].siblings_min for position in positions))
        for positions in found.values()
    )
    return tuple(family for family in families if len(family.members) >= family.least)
