"""Rules compiled to arrays over the layers of a launch, with a cache. Pure."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias, TypeVar
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from gradcanary_server.caches import Cache, split_cache_budget
from gradcanary_server.rules.config import LAYER_RULES, Collapse, LayerRule, Rules
from gradcanary_server.rules.types import Floats, Ints, Launch, LayerFacts, Mask

_DIGITS = re.compile(r"\d+")
_BLOCK = re.compile(r"(.*?\.)??(\d{1,9})(?:\.|$)")

LORA_HALF = re.compile(r"(?:^|\.)lora_(?:embedding_)?([AB])(?=\.|$)")

Value = TypeVar("Value")


class LayerThresholds:
    """Numbers of one rule by their names in :mod:`gradcanary_server.rules.config`: [L] where layers differ, else [].

    An array [] costs a step what a plain number does.
    """

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> NDArray[Any]: ...

    def __init__(self, **numbers: NDArray[Any]) -> None:
        self.__dict__.update(numbers)

    @cached_property
    def is_on(self) -> bool:
        """True if the rule is enabled for any layer."""
        return bool(self.enabled.any())


Likeness: TypeAlias = tuple[int, str, "str | None", int]
"""What layers share that may take turns: heads of two tasks are alike, also where their shapes differ."""


class Family(NamedTuple):
    """Siblings: ``members`` int64[k] are positions in the launch, ``least`` of them must be measured."""

    members: Ints
    least: int


@dataclass(frozen=True)
class LayerRules:
    """Each array belongs to the launch's layers, in their order.

    ``columns`` int64[L] are layer numbers, ``shapes`` uint32[L] checksums of shapes; ``enter_level`` is log10;
    ``block`` and ``place`` int64[L] are the block of each layer, -1 = none, and its number; ``by_fall``,
    ``by_siblings``, ``by_threshold`` are the layers for which that evidence counts; ``norm_below`` is 0
    where none is configured; ``groups`` is the number of parameter groups of the launch, ``group`` int64[L] the group
    of each layer, -1 = none; ``is_half`` are float16 parameters, ``is_low`` these and bfloat16; ``numel`` are elements;
    ``kind`` int64[L] is the same for layers with the same module class, shape and last part of the name, each half of
    LoRA pairs for itself; ``is_adapter`` are both halves. ``facts`` are the layers.
    """

    columns: Ints
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
    observations: Ints
    siblings: Floats
    fire_after: NDArray[np.float32]
    resolve_after: NDArray[np.float32]
    families: tuple[Family, ...]
    block: Ints
    place: Ints
    groups: int
    group: Ints
    is_half: Mask
    kind: Ints
    is_adapter: Mask
    is_low: Mask
    numel: Floats
    nonfinite: LayerThresholds
    explosion: LayerThresholds
    vanished: LayerThresholds
    unused: LayerThresholds
    accumulation_loss: LayerThresholds
    accumulator: LayerThresholds
    frozen: LayerThresholds
    in_vain: LayerThresholds
    no_update: LayerThresholds
    second_moments: LayerThresholds
    fp16_underflow: LayerThresholds
    not_optimized: LayerThresholds
    never_cleared: LayerThresholds
    facts: tuple[LayerFacts, ...]

    @cached_property
    def at(self) -> Ints | slice:
        """The columns, as a slice where they follow each other: a view of an array takes a tenth of a copy's time."""
        columns = self.columns
        is_range = len(columns) > 0 and bool((np.diff(columns) == 1).all())
        return slice(int(columns[0]), int(columns[-1]) + 1) if is_range else columns

    @cached_property
    def end(self) -> int:
        """The number after those of all layers."""
        return int(self.columns.max(initial=-1)) + 1

    @cached_property
    def longest_block(self) -> int:
        return int(self.observations.max(initial=0))

    @cached_property
    def enter_level(self) -> Floats:
        level: Floats = np.log10(self.enter)
        return level

    def beside(self, chosen: Mask) -> Mask:
        """Return the layers in the blocks of the chosen ones or next to them; all are where a name has no block."""
        is_beside: Mask = self.block < 0
        if (is_beside & chosen).any():
            return np.ones_like(chosen)
        for block, place in set(zip(self.block[chosen].tolist(), self.place[chosen].tolist(), strict=True)):
            is_beside = is_beside | ((self.block == block) & (np.abs(self.place - place) <= 1))
        return is_beside

    @cached_property
    def has_threshold(self) -> bool:
        """True if a layer is compared with a configured threshold."""
        return bool(self.by_threshold.any() or self.norm_below.any())

    def like(self, position: int) -> Ints:
        """Return the positions of the layers like one, without it: those that another block, domain or task has."""
        alike = (self._alike.get(likeness, ()) for likeness in _likenesses_of(self.facts[position]))
        return np.array(sorted({*chain.from_iterable(alike)} - {position}), np.int64)

    @cached_property
    def _alike(self) -> Mapping[Likeness, Sequence[int]]:
        alike: dict[Likeness, list[int]] = defaultdict(list)
        for position, layer in enumerate(self.facts):
            for likeness in _likenesses_of(layer):
                alike[likeness].append(position)
        return {likeness: positions for likeness, positions in alike.items() if len(positions) > 1}


def compile_rules(launch: Launch, rules: Rules) -> LayerRules:
    """Return the rules for the layers of a launch, from the cache if these objects were compiled before."""
    key = _Same(launch.layers), _Same(rules), launch.collapse_below
    return COMPILED.get(key) or COMPILED.keep(key, _compile(launch.layers, rules, launch.collapse_below))


class _Same(Generic[Value]):
    """A value that equals only itself: hashing and comparing 500 layers takes longer than evaluating five steps."""

    def __init__(self, value: Value) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value


def _size(value: object) -> int:
    """Return the bytes of all arrays in compiled rules."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, LayerRules | LayerThresholds):
        value = tuple(vars(value).values())
    return sum(map(_size, value)) if isinstance(value, tuple) else 0


COMPILED: Cache[tuple[_Same[tuple[LayerFacts, ...]], _Same[Rules], float | None], LayerRules] = Cache(
    split_cache_budget().rules, _size
)
"""Of the whole process, because the evaluation is pure and has no collector."""


def _compile(layers: tuple[LayerFacts, ...], rules: Rules, collapse_below: float | None) -> LayerRules:
    collapse = rules.collapse.of_run(collapse_below)
    entries = [rules.entry_of(layer.name) for layer in layers]
    sections = [collapse if entry is None else entry.collapse or collapse for entry in entries]

    halves = [match[1] if (match := LORA_HALF.search(layer.name)) else "" for layer in layers]

    def floats(attribute: str) -> Floats:
        return np.array([getattr(rule, attribute) for rule in sections], np.float64)

    def uses(evidence: str) -> Mask:
        return np.array([rule.enabled and evidence in rule.evidence for rule in sections], np.bool_)

    blocks = [block_of(layer.name) for layer in layers]
    rows = {row: number for number, row in enumerate(dict.fromkeys(name.row for name in blocks if name))}
    return LayerRules(
        columns=np.array([layer.number for layer in layers], np.int64),
        shapes=np.array([crc32(repr(layer.shape).encode()) for layer in layers], np.uint32),
        # A gradient of float32(1e-4) is not under 1e-4: compare in the precision that was measured.
        enter=floats("enter").astype(np.float32).astype(np.float64),
        exit=floats("exit").astype(np.float32).astype(np.float64),
        by_fall=uses("fall"),
        by_siblings=uses("siblings"),
        by_threshold=uses("threshold"),
        enabled=np.array([rule.enabled for rule in sections], np.bool_),
        fall=floats("fall_decades"),
        over_common=floats("over_common_decades"),
        norm_below=np.array([rule.norm_below or 0 for rule in sections], np.float32).astype(np.float64),
        observations=np.array([rule.baseline_observations for rule in sections], np.int64),
        siblings=floats("siblings_decades"),
        fire_after=floats("fire_after_steps").astype(np.float32),
        resolve_after=floats("resolve_after_steps").astype(np.float32),
        families=_families(layers, sections),
        block=np.array([rows[name.row] if name else -1 for name in blocks], np.int64),
        place=np.array([name.place if name else -1 for name in blocks], np.int64),
        groups=1 + max((layer.group for layer in layers if layer.group is not None), default=-1),
        group=np.array([-1 if layer.group is None else layer.group for layer in layers], np.int64),
        is_half=np.array([layer.param_dtype == "float16" for layer in layers], np.bool_),
        facts=layers,
        kind=_kinds(layers, halves),
        is_adapter=np.array([half != "" for half in halves], np.bool_) & ({"A", "B"} <= set(halves)),
        is_low=np.array([layer.param_dtype in ("bfloat16", "float16") for layer in layers], np.bool_),
        numel=np.array([math.prod(layer.shape) for layer in layers], np.float64),
        **{rule: _thresholds(rule, entries, rules) for rule in LAYER_RULES if rule != "collapse"},
    )


def _kinds(layers: tuple[LayerFacts, ...], halves: Sequence[str]) -> Ints:
    kinds = [
        (layer.module_class, layer.shape, layer.name.rpartition(".")[2], half)
        for layer, half in zip(layers, halves, strict=True)
    ]
    numbers = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
    return np.array([numbers[kind] for kind in kinds], np.int64)


def _thresholds(rule: str, entries: list[LayerRule | None], rules: Rules) -> LayerThresholds:
    """Return the thresholds of a rule for layers with these entries."""
    default = rules.section(rule, None)
    sections = [rules.section(rule, entry) for entry in entries] or [default]
    differ = len({id(section) for section in sections}) > 1
    real = np.float32 if default.is_float32 else np.float64

    def array(name: str) -> NDArray[Any]:
        values = [getattr(section, name) for section in sections] if differ else getattr(sections[0], name)
        first = values[0] if differ else values
        return np.array(values, {bool: np.bool_, int: np.int64}.get(type(first), real))

    return LayerThresholds(
        **{number.name: array(number.name) for number in fields(default) if number.name not in default.run_wide}
    )


class BlockName(NamedTuple):
    """The first number in a name between dots, and all that stands before it: ``blocks.7.attn.q`` is in blocks, 7."""

    row: str
    place: int

    def is_beside(self, other: BlockName) -> bool:
        return self.row == other.row and abs(self.place - other.place) <= 1


def block_of(name: str) -> BlockName | None:
    match = _BLOCK.match(name)
    return None if match is None else BlockName(match[1] or "", int(match[2]))


def _families(layers: tuple[LayerFacts, ...], sections: list[Collapse]) -> tuple[Family, ...]:
    """Return layers whose names differ in numbers only, with the same module class and shape."""
    siblings: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for position, layer in enumerate(layers):
        siblings[_DIGITS.sub("#", layer.name), layer.module_class, layer.shape].append(position)
    families = (
        Family(np.array(positions, np.int64), min(sections[position].siblings_min for position in positions))
        for positions in siblings.values()
    )
    return tuple(family for family in families if len(family.members) >= family.least)


def _likenesses_of(layer: LayerFacts) -> Iterator[Likeness]:
    """Yield what layers like this one share: the name but for its numbers, or but for one part of it.

    So ``heads.0.weight`` is like ``heads.1.weight``, and ``domains.news.head.weight`` like ``domains.law.head.weight``.
    Heads of two tasks may differ in size, so the number of dimensions counts and not the shape. The last part is the
    parameter's own name, except in a dict of parameters.
    """
    of_class, dimensions, parts = layer.module_class, len(layer.shape), layer.name.split(".")
    yield -1, _DIGITS.sub("#", layer.name), of_class, dimensions
    for place in range(len(parts) - (of_class != "ParameterDict")):
        yield place, ".".join([*parts[:place], *parts[place + 1 :]]), of_class, dimensions
