"""What other rules take back of what was said of a run: counts, and what fires. Pure.

What was measured stays known: baselines, unless it has changed how they are learnt, and how often a layer has a
gradient. So a rule that became another one finds again, with new counts, what is still true.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gradcanary_server.changes import Standing, standing
from gradcanary_server.fold_state import FoldState
from gradcanary_server.observations import Change
from gradcanary_server.rules import LayerRule, Rules, Section
from gradcanary_server.tracks import EXPLOSION, NONFINITE_LOSS, NOTHING, RULES, SCALE_DROP, SCALE_WORSE, SEVERITIES

Mask = NDArray[np.bool_]

UNHEARD = -1
"""No digest of what agents said: what is known without counting is looked at anew."""


def withdraw(
    state: FoldState, names: Mapping[int, str], before: Rules, after: Rules
) -> tuple[FoldState, tuple[Change, ...]]:
    """Return the state without what rules said that are others now, and the resolutions of what fired.

    A rule is another one for those layers for which it has another number.
    ``names`` has the name of each layer by its number.
    """
    layers = _Layers.of(len(state.present), names, before, after)
    reach = {rule: layers.differing(rule) for rule in RULES}
    of_run = [rule for rule in ("scale_drop", "nonfinite") if differ(getattr(before, rule), getattr(after, rule))]
    if not of_run and not any(mask.any() for mask in reach.values()):
        return state, ()
    moved = state.copy()
    moved.baselines.forget(np.flatnonzero(layers.differing("collapse", "baseline_observations")))
    moved.precision.moved &= ~layers.differing("frozen", "moved_share")
    for rule, mask in reach.items():
        moved.scores.take_back([each.track for each in RULES[rule]], mask)
    _take_back_of_run(moved, of_run)
    step = max(state.progress.last_step, 0)
    return moved, tuple(_resolutions(standing(state), standing(moved), step))


@dataclass(frozen=True)
class _Layers:
    """The entries of ``layers`` that held for each of N layers and hold now: ``kind`` int64[N] counts in ``pairs``."""

    before: Rules
    after: Rules
    pairs: list[tuple[LayerRule | None, LayerRule | None]]
    kind: NDArray[np.int64]

    @classmethod
    def of(cls, number: int, names: Mapping[int, str], before: Rules, after: Rules) -> _Layers:
        pairs: list[tuple[LayerRule | None, LayerRule | None]] = []
        places: dict[tuple[int, int], int] = {}
        kind = np.zeros(number, np.int64)
        for layer in range(number):
            name = names.get(layer, "")
            pair = (before.entry_of(name), after.entry_of(name))
            place = places.setdefault((id(pair[0]), id(pair[1])), len(places))
            if place == len(pairs):
                pairs.append(pair)
            kind[layer] = place
        return cls(before, after, pairs, kind)

    def differing(self, rule: str, number: str | None = None) -> Mask:
        """Tell for which layers a rule is another one, or one number of it is."""
        sections = [(self.before.section(rule, then), self.after.section(rule, now)) for then, now in self.pairs]
        found = [
            differ(then, now) if number is None else getattr(then, number) != getattr(now, number)
            for then, now in sections
        ]
        return np.array(found, np.bool_)[self.kind]


def differ(one: Section, other: Section) -> bool:
    """Tell whether a rule is another one: whether it sends messages is no number of it."""
    return replace(one, notify=True) != replace(other, notify=True)


def _take_back_of_run(state: FoldState, rules: list[str]) -> None:
    progress = replace(state.progress, facts=UNHEARD)
    if "scale_drop" in rules:
        state.of_run.drop(SCALE_DROP)
        state.of_run.drop(SCALE_WORSE)
        progress = replace(progress, scale_severity=NOTHING)
    if "nonfinite" in rules:
        state.of_run.drop(NONFINITE_LOSS)
    if not state.scores.firing[EXPLOSION].any():
        progress = replace(progress, explosion_severity=NOTHING)
    state.progress = progress


def _resolutions(before: Standing, after: Standing, step: int) -> Iterator[Change]:
    """Yield what does not stand any more, the whole run first."""
    for rule, then in before.run.items():
        if then != NOTHING and after.run[rule] == NOTHING:
            yield _resolution(rule, None, then, step)
    for rule, then_each in before.layers.items():
        now_each = after.layers.get(rule, np.full(len(then_each), NOTHING, np.int8))
        for layer in np.flatnonzero((then_each != NOTHING) & (now_each == NOTHING)).tolist():
            yield _resolution(rule, layer, int(then_each[layer]), step)


def _resolution(rule: str, layer: int | None, severity: int, step: int) -> Change:
    return Change(step, rule, layer, "resolved", SEVERITIES[severity], step, resolution="rule_changed")
