"""Transitions between two sets of firing layers, with their evidence. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from gradcanary.display.rule_values import value_of
from gradcanary_server.rules.detectors import explosion, scale_drop
from gradcanary_server.rules.signals import (
    COLLAPSE,
    CRITICAL,
    EXPLOSION,
    MISSED,
    NONFINITE,
    NONFINITE_LOSS,
    NOTHING,
    RULES,
    RUN_RULES,
    SCALE_DROP,
    SPORADIC,
    WARNING,
)
from gradcanary_server.rules.state import RuleState
from gradcanary_server.rules.types import SEVERITIES, Evidence, Floats, Ints, Jump, Resolution, Transition, Votes
from gradcanary_server.rules.warmup import LR_JUMP_WINDOW, LR_RISE_RATIO

_SIGNALS_OF = {rule: [signal.row for signal in signals] for rule, signals in RULES.items()}


@dataclass(frozen=True)
class FiringSet:
    """Severities as indices into SEVERITIES: int8[N] of the layers per rule that fires, and of the run."""

    layers: dict[str, Votes]
    run: dict[str, int]


@dataclass(frozen=True)
class StepEvidence:
    """Measurements of a step: ``absmax`` and ``siblings`` (the level of each layer's) belong to the layers at
    ``columns``, NaN = unknown; ``common_fall`` is the decades that all layers fell, ``own_fall``
    those of layers with a loss of their own, if they fell together.
    """

    step: int
    every: int = 1
    columns: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    absmax: Floats = field(default_factory=lambda: np.zeros(0))
    siblings: Floats = field(default_factory=lambda: np.zeros(0))
    common_fall: float | None = None
    own_fall: float | None = None
    values: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)

    def of_layer(self, rule: str, layer: int) -> tuple[float | None, float | None]:
        """Return the value that a rule judges and the value of the siblings, for a layer by its number."""
        index = int(np.flatnonzero(self.columns == layer)[0])
        stat = value_of(rule).stat
        if stat == "absmax":
            return _or_none(self.absmax[index]), _or_none(self.siblings[index])
        return (_or_none(float(self.values[stat][index])) if stat in self.values else None), None


def find_firing(state: RuleState) -> FiringSet:
    """Return the layers that fire now; the most severe evidence of a layer counts."""
    fires = np.asarray(state.scores.firing.any(axis=1))
    rules = tuple(RULES) if fires.any() else ()
    return FiringSet(
        layers={rule: _severities(rule, state) for rule in rules if fires[_SIGNALS_OF[rule]].any()},
        run={rule: _run_severity(rule, state) for rule in RUN_RULES},
    )


def diff_firing(before: FiringSet, after: FiringSet, state: RuleState, evidence: StepEvidence) -> Iterator[Transition]:
    """Yield the transitions of a step, the whole run first; ``state`` is the one after it.

    A severity that falls while the layer still fires is not a transition: an incident keeps its highest severity.
    """
    for rule, severity in after.run.items():
        severity_before = before.run[rule]
        if severity > severity_before:
            yield _run_fired(rule, severity, state, evidence)
        elif severity == NOTHING != severity_before:
            yield _resolved(rule, None, severity_before, evidence.step, "recovered")
    nothing = np.full(len(state.present), NOTHING, np.int8)
    for rule in RULES:
        severities, severities_before = (firing.layers.get(rule, nothing) for firing in (after, before))
        for layer in np.flatnonzero(severities != severities_before).tolist():
            severity, severity_before = int(severities[layer]), int(severities_before[layer])
            if severity > severity_before:
                yield _fired(rule, layer, severity, state, evidence)
            elif severity == NOTHING:
                value, _ = evidence.of_layer(rule, layer)
                yield _resolved(rule, layer, severity_before, evidence.step, "recovered", value)


def still_firing(state: RuleState, evidence: StepEvidence, full: float, *, is_comparable: bool) -> Iterator[Transition]:
    """Yield once more what an earlier launch left firing, and of which this one has shown no sign of recovery.

    Only what is judged at each step, and only layers that were measured at this one, or had no gradient. ``full`` is
    the score of the run without such a sign.
    """
    columns, rows = evidence.columns, [*(COLLAPSE if is_comparable else ()), NONFINITE, EXPLOSION]
    scores, of_run, progress = state.scores.copy(), state.of_run.copy(), state.progress
    scores.unshare()
    of_run.unshare()
    for signals, layers in (
        (rows, columns[~np.isnan(evidence.absmax)]),
        (MISSED, columns[state.activity.idle[columns] > 0]),
    ):
        cells = np.ix_(np.array(signals), layers)
        scores.firing[cells] &= scores.score[cells] < state.resolve_after[layers]
    if progress.last_loss_step >= 0:
        of_run.firing[NONFINITE_LOSS] &= of_run.score[NONFINITE_LOSS] < full
    if is_comparable and of_run.score[SCALE_DROP, 0] >= full:
        progress = replace(progress, scale_severity=NOTHING)
    known = find_firing(replace(state, scores=scores, of_run=of_run, progress=progress))
    return diff_firing(known, find_firing(state), state, evidence)


def resolutions(before: FiringSet, after: FiringSet, step: int, resolution: Resolution) -> Iterator[Transition]:
    """Yield the resolutions of what fires no longer after a partial reset, the whole run first."""
    for rule, severity in before.run.items():
        if severity != NOTHING and after.run[rule] == NOTHING:
            yield _resolved(rule, None, severity, step, resolution)
    for rule, severities in before.layers.items():
        severities_after = after.layers.get(rule, np.full(len(severities), NOTHING, np.int8))
        for layer in np.flatnonzero((severities != NOTHING) & (severities_after == NOTHING)).tolist():
            yield _resolved(rule, layer, int(severities[layer]), step, resolution)


def _run_severity(rule: str, state: RuleState) -> int:
    signal = RUN_RULES[rule]
    if rule == "scale_drop":
        return state.progress.scale_severity
    return signal.severity if state.of_run.firing[signal.row, 0] else NOTHING


def _severities(rule: str, state: RuleState) -> Votes:
    firing = state.scores.firing
    severities = np.full(firing.shape[1], NOTHING, np.int8)
    for signal in RULES[rule]:
        severities[firing[signal.row]] = signal.severity
    if rule == "explosion":
        severities[severities != NOTHING] = state.progress.explosion_severity
    return severities


def _run_fired(rule: str, severity: int, state: RuleState, evidence: StepEvidence) -> Transition:
    is_own = severity == WARNING and evidence.own_fall is not None
    value = (evidence.own_fall if is_own else evidence.common_fall) if rule == "scale_drop" else None
    since = int(state.of_run.since[RUN_RULES[rule].row, 0])
    jumps = _jumps(state, since, evidence)
    return Transition(
        step=evidence.step,
        rule=rule,
        layer=None,
        kind="fired",
        severity=SEVERITIES[severity],
        since_step=since,
        value=value,
        evidence=_run_evidence(rule, severity, state, evidence),
        jumps=jumps,
        scale_fall=state.progress.scaler.fall(evidence.step),
    )


def _run_evidence(rule: str, severity: int, state: RuleState, evidence: StepEvidence) -> Evidence | None:
    """Return what is known of the loss: that there is none for a fall, or its course before it was not finite.

    Of gradients that are all zero it is that the loss does not explain them, though it may have fallen.
    """
    common_fall = evidence.common_fall
    if rule == "loss_scale":
        return None
    if rule == "nonfinite":
        return explosion.course_before_nonfinite(state.losses)
    if severity == WARNING and evidence.own_fall is not None:
        return "own_loss"
    if severity == CRITICAL and common_fall == math.inf:
        return "all_zeros"
    is_unknown = severity == WARNING and not scale_drop.knows_loss(state.losses, state.progress)
    return "no_loss" if is_unknown else None


def _fired(rule: str, layer: int, severity: int, state: RuleState, evidence: StepEvidence) -> Transition:
    signal = [signal for signal in RULES[rule] if state.scores.firing[signal.row, layer]][-1]
    value, siblings = evidence.of_layer(rule, layer)
    if rule == "in_vain":  # most of its layers were measured at earlier steps
        value = dict(state.progress.unmoved.shares).get(layer, value)
    if rule == "no_update":  # as were these
        value, siblings = _or_none(state.updates.ratio[layer]), state.updates.usual_ratio(state.present)
    baseline = None if value_of(rule).stat != "absmax" else state.baselines.absmax(np.array([layer]))[0]
    if signal.row == SPORADIC:
        value, baseline = float(state.activity.idle[layer]), float(state.activity.longest_idle[layer] + 1)
    since = int(state.scores.since[signal.row, layer])
    return Transition(
        step=evidence.step,
        rule=rule,
        layer=layer,
        kind="fired",
        severity=SEVERITIES[severity],
        since_step=since,
        value=value,
        baseline=baseline,
        siblings=siblings,
        evidence=signal.evidence,
        jumps=_jumps(state, since, evidence),
        scale_fall=state.progress.scaler.fall(evidence.step),
    )


def _jumps(state: RuleState, since: int, evidence: StepEvidence) -> tuple[Jump, ...]:
    """Return the jumps of learning rates at a step or shortly before it, and earlier rises that are still in force."""
    found = []
    for jump in state.progress.jumps:
        rate = state.progress.lr[jump.group] if jump.group < len(state.progress.lr) else 0.0
        if 0 <= since - jump.step <= max(LR_JUMP_WINDOW, 2 * evidence.every):
            found.append(jump)
        elif jump.step < since and jump.highest is not None and rate >= LR_RISE_RATIO * jump.highest:
            found.append(replace(jump, now=rate))
    return tuple(found)


def _resolved(
    rule: str, layer: int | None, severity: int, step: int, resolution: Resolution, value: float | None = None
) -> Transition:
    return Transition(step, rule, layer, "resolved", SEVERITIES[severity], step, value, resolution=resolution)


def _or_none(number: float) -> float | None:
    return None if math.isnan(number) else float(number)
