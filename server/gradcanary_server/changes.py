"""What began or ended between two looks at the scores, as changes with the numbers behind them. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gradcanary_server.aging import REMEMBERED
from gradcanary_server.fold_state import FoldState
from gradcanary_server.moment import Floats
from gradcanary_server.observations import Change, Jump
from gradcanary_server.tracks import (
    CRITICAL,
    NONFINITE_LOSS,
    NOTHING,
    RULES,
    SCALE_DROP,
    SEVERITIES,
)

_STATS = {
    "accumulation_loss": "accumulation_error",
    "accumulator": "accumulation_error",
    "frozen": "frozen_fraction",
    "fp16_underflow": "zero_fraction",
}
"""What a rule is about, where that is not absmax."""


_TRACKS_OF = {rule: [each.track for each in meanings] for rule, meanings in RULES.items()}


@dataclass(frozen=True)
class Standing:
    """The severities of what fires, as indices into SEVERITIES: per rule of which any layer fires int8[N], and of the
    whole run."""

    layers: dict[str, NDArray[np.int8]]
    run: dict[str, int]


@dataclass(frozen=True)
class Sight:
    """What was seen at a step: ``absmax`` and ``siblings`` (the upper quartile of each layer's) belong to the layers at
    ``columns``, NaN = unknown; ``common`` is the decades that all layers fell.
    """

    step: int
    every: int = 1
    columns: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    absmax: Floats = field(default_factory=lambda: np.zeros(0))
    siblings: Floats = field(default_factory=lambda: np.zeros(0))
    common: float | None = None
    values: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)

    def of(self, rule: str, layer: int) -> tuple[float | None, float | None]:
        """Return the number that a rule is about, and the siblings, of a layer by its number."""
        place = int(np.flatnonzero(self.columns == layer)[0])
        stat = _STATS.get(rule)
        if stat is None:
            return _known(self.absmax[place]), _known(self.siblings[place])
        return (_known(float(self.values[stat][place])) if stat in self.values else None), None


def standing(state: FoldState) -> Standing:
    """Return what fires now; of a layer's evidence the most severe counts."""
    fires = np.asarray(state.scores.firing.any(axis=1))
    rules = tuple(RULES) if fires.any() else ()
    return Standing(
        layers={rule: _severities(rule, state) for rule in rules if fires[_TRACKS_OF[rule]].any()}
        if fires.any()
        else {},
        run={
            "scale_drop": state.progress.scale_severity,
            "nonfinite": CRITICAL if state.of_run.firing[NONFINITE_LOSS, 0] else NOTHING,
        },
    )


def between(before: Standing, after: Standing, state: FoldState, sight: Sight) -> Iterator[Change]:
    """Return what fired, rose in severity or resolved at a step, the whole run first; ``state`` is the one after.

    A severity that falls while something still fires is no news: an incident keeps the highest it had.
    """
    for rule, now in after.run.items():
        then = before.run[rule]
        if now > then:
            yield _run_fired(rule, now, state, sight)
        elif now == NOTHING != then:
            yield Change(sight.step, rule, None, "resolved", SEVERITIES[then], sight.step, resolution="recovered")
    nothing = np.full(len(state.present), NOTHING, np.int8)
    for rule in RULES:
        severities, earlier = (each.layers.get(rule, nothing) for each in (after, before))
        for layer in np.flatnonzero(severities != earlier).tolist():
            then, now = int(earlier[layer]), int(severities[layer])
            if now > then:
                yield _fired(rule, layer, now, state, sight)
            elif now == NOTHING:
                yield _resolved(rule, layer, then, sight)


def leaving(state: FoldState, leaves: NDArray[np.bool_], step: int) -> tuple[Change, ...]:
    """Return the resolutions of layers that go (``leaves`` bool[N]) while they fire."""
    found = []
    for rule, severities in standing(state).layers.items():
        for layer in np.flatnonzero(leaves & (severities != NOTHING)).tolist():
            severity = SEVERITIES[severities[layer]]
            found.append(Change(step, rule, layer, "resolved", severity, step, resolution="layer_gone"))
    return tuple(found)


def _severities(rule: str, state: FoldState) -> NDArray[np.int8]:
    """Return what a rule says of each layer; of its evidence the most severe counts."""
    firing = state.scores.firing
    found = np.full(firing.shape[1], NOTHING, np.int8)
    for each in RULES[rule]:
        found[firing[each.track]] = each.severity
    if rule == "explosion":
        found[found != NOTHING] = state.progress.explosion_severity
    return found


def _run_fired(rule: str, severity: int, state: FoldState, sight: Sight) -> Change:
    track, value = (SCALE_DROP, sight.common) if rule == "scale_drop" else (NONFINITE_LOSS, None)
    since = int(state.of_run.since[track, 0])
    found = _jumps(state, since, sight)
    return Change(sight.step, rule, None, "fired", SEVERITIES[severity], since, value, jumps=found)


def _fired(rule: str, layer: int, severity: int, state: FoldState, sight: Sight) -> Change:
    speaks = [each for each in RULES[rule] if state.scores.firing[each.track, layer]][-1]
    value, siblings = sight.of(rule, layer)
    since = int(state.scores.since[speaks.track, layer])
    return Change(
        step=sight.step,
        rule=rule,
        layer=layer,
        kind="fired",
        severity=SEVERITIES[severity],
        since_step=since,
        value=value,
        baseline=None if rule in _STATS else state.baselines.absmax(np.array([layer]))[0],
        siblings=siblings,
        evidence=speaks.evidence,
        jumps=_jumps(state, since, sight),
    )


def _jumps(state: FoldState, since: int, sight: Sight) -> tuple[Jump, ...]:
    """Return the learning rates that jumped shortly before a step, or at it."""
    return tuple(jump for jump in state.progress.jumps if 0 <= since - jump.step <= max(REMEMBERED, 2 * sight.every))


def _resolved(rule: str, layer: int, severity: int, sight: Sight) -> Change:
    value, _ = sight.of(rule, layer)
    return Change(
        step=sight.step,
        rule=rule,
        layer=layer,
        kind="resolved",
        severity=SEVERITIES[severity],
        since_step=sight.step,
        value=value,
        resolution="recovered",
    )


def _known(number: float) -> float | None:
    return None if math.isnan(number) else float(number)
