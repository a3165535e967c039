"""Partial resets of the state: a new launch or layer set, an accepted baseline, changed rules. Pure.

A changed rule loses its counts and its firing layers. Measurements stay: gradient activity, and baselines unless the
change is in how they are learnt. So the changed rule fires again, with new counts, for what is still true.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from gradcanary_server.rules import signals
from gradcanary_server.rules.config import Rules, Section
from gradcanary_server.rules.detectors import metric
from gradcanary_server.rules.layer_config import LayerRules
from gradcanary_server.rules.signals import NOTHING, RULES, RUN_RULES
from gradcanary_server.rules.state import Progress, RuleState
from gradcanary_server.rules.transitions import find_firing, resolutions
from gradcanary_server.rules.types import NO_FALL, Ints, Launch, Transition

NO_FINGERPRINT = -1
"""``facts`` that makes static findings evaluated again."""


def reset_changed_rules(
    state: RuleState, names: Mapping[int, str], before: Rules, after: Rules
) -> tuple[RuleState, tuple[Transition, ...]]:
    """Return the state without the counts of changed rules, and the resolutions of layers that fired.

    ``names`` has the name of each layer by its number.
    """
    changed = [rule for rule in {**RULES, **RUN_RULES} if _numbers(before, rule) != _numbers(after, rule)]
    has_other_bounds = (before.metric.enabled, before.metrics) != (after.metric.enabled, after.metrics)
    if not changed and not (has_other_bounds and state.metrics):
        return state, ()
    reset = state.copy()
    names = {layer: name for layer, name in names.items() if layer < len(state.present)}
    reset.baselines.forget(_layers_with_other(names, before, after, "collapse", "baseline_observations"))
    reset.precision.has_moved[_layers_with_other(names, before, after, "frozen", "moved_share")] = False
    for rule in changed:
        for signal in RULES.get(rule, ()):
            reset.scores.reset_signal(signal.row)
    _reset_run(reset, changed)
    step = max(state.progress.last_step, 0)
    resolved = [*resolutions(find_firing(state), find_firing(reset), step, "rule_changed")]
    if has_other_bounds:
        resolved += metric.reset_counts(reset.metrics, step)
    return reset, tuple(resolved)


def _numbers(rules: Rules, rule: str) -> list[tuple[str, Section]]:
    """Return the numbers of a rule by expression, in the order in which a layer selects its own."""
    default = _without_notify(rules.section(rule, None))
    entries = [(entry.match, _without_notify(rules.section(rule, entry))) for entry in rules.layers]
    return [*(entries if any(section != default for _, section in entries) else ()), ("", default)]


def _layers_with_other(names: Mapping[int, str], before: Rules, after: Rules, rule: str, number: str) -> Ints:
    """Return the layers for which a number of a rule differs."""

    def value(rules: Rules, name: str) -> object:
        return getattr(rules.section(rule, rules.entry_of(name)), number)

    return np.array([layer for layer, name in names.items() if value(before, name) != value(after, name)], np.int64)


def has_changed(one: Section, other: Section) -> bool:
    """Return True if the numbers of a rule differ."""
    return _without_notify(one) != _without_notify(other)


def _without_notify(section: Section) -> Section:
    """Return a rule without ``notify``, which does not affect what fires."""
    return replace(section, notify=True)


def _reset_run(state: RuleState, rules: list[str]) -> None:
    progress = replace(state.progress, facts=NO_FINGERPRINT)
    for rule in RUN_RULES.keys() & rules:
        state.of_run.reset_signal(RUN_RULES[rule].row)
    if "scale_drop" in rules:
        state.of_run.reset_signal(signals.SCALE_WORSE)
        progress = replace(progress, scale_severity=NOTHING)
    if not state.scores.firing[signals.EXPLOSION].any():
        progress = replace(progress, explosion_severity=NOTHING)
    state.progress = progress


UNKNOWN_SHAPE = 0
"""The checksum of a layer that was never seen."""


def apply_layer_set(state: RuleState, launch: Launch, config: LayerRules) -> tuple[Transition, ...]:
    """Fit the state to this launch and its layers; return the resolutions of layers that are gone.

    1. A layer that is not in a new launch resolves and keeps its baseline, in case it returns.
    2. A layer with another shape is another layer: it resolves, and its state is forgotten.
    3. The others keep baselines and firing signals in a new launch: missing data never resolves. Pending counts, grace,
       open blocks, losses, learning rates and gradient activity restart.
    """
    columns = config.columns
    if _is_unchanged(state, launch, config):
        return ()
    state.make_room(config.end, config.longest_block)
    is_new = launch.number != state.progress.launch
    reshaped = (state.shapes[columns] != UNKNOWN_SHAPE) & (state.shapes[columns] != config.shapes)
    leaves = state.present.copy() if is_new else np.zeros_like(state.present)
    leaves[columns] = reshaped
    firing = find_firing(state)
    state.scores.forget(leaves)
    removed = tuple(resolutions(firing, find_firing(state), launch.first_step, "layer_gone"))
    state.below_threshold[leaves] = False
    replaced = columns[reshaped]
    for measured in state.measured().values():
        measured.forget(replaced)
    state.alive[replaced] = state.accepted[replaced] = False
    if is_new:
        _start_launch(state, launch)
    state.present[columns] = True
    state.shapes[columns] = config.shapes
    _refill(state, config)
    return removed


def _is_unchanged(state: RuleState, launch: Launch, config: LayerRules) -> bool:
    """Return True if the state is of this launch with the same layers and rules."""
    at = config.at
    return bool(
        launch.number == state.progress.launch
        and config.end <= len(state.present)
        and config.longest_block <= len(state.baselines.block)
        and state.present[at].all()
        and (state.shapes[at] == config.shapes).all()
        and (state.resolve_after[at] == config.resolve_after).all()
    )


def _refill(state: RuleState, config: LayerRules) -> None:
    """Set the score of firing layers without a sign of recovery to ``resolve_after`` of the present rules."""
    state.scores.unshare()
    columns, score = config.columns, state.scores.score[:, config.columns]
    is_full = state.scores.firing[:, columns] & (score == state.resolve_after[columns])
    state.scores.score[:, columns] = np.where(is_full, config.resolve_after, score)
    state.resolve_after[columns] = config.resolve_after


def _start_launch(state: RuleState, launch: Launch) -> None:
    state.present[:] = False
    state.baselines.drop_blocks()
    for measured in (state.activity, state.precision, state.weights, state.updates):
        measured.forget(slice(None))
    state.scores.reset_pending()
    state.of_run.reset_pending()
    state.losses = np.zeros(0)
    state.metrics = {key: series.resume() for key, series in state.metrics.items()}
    before = state.progress
    state.progress = Progress(
        launch.number,
        loss_level=before.loss_level,
        loss_first=before.loss_first,
        common_fall=before.common_fall,
        last_small_step=min(before.last_small_step, launch.first_step),
        scale_severity=before.scale_severity,
        explosion_severity=before.explosion_severity,
        # Facts about the loop are of the last launch: without them the finding is over.
        facts=NO_FINGERPRINT if state.scores.firing[[signals.NEVER_CLEARED, signals.NO_SCALER]].any() else 0,
    )


ACCEPTABLE = ("collapse", "scale_drop")
"""Rules that compare gradients with a learnt baseline."""


def rebaseline(state: RuleState, rule: str) -> tuple[RuleState, tuple[int | None, ...]]:
    """Return a state without the firing layers of a rule, which learn a new baseline; and their numbers.

    None is the whole run. A layer that fires by a threshold stays: a threshold is not learnt. An accepted layer is not
    compared with its siblings any more, or it would fire again at once.
    """
    rebaselined = state.copy()
    if rule == "scale_drop":
        return rebaselined, _rebaseline_run(rebaselined)
    firing = state.scores.firing
    evidence = [signals.FALL, signals.SIBLINGS, signals.LATE, signals.STRAIGHT, signals.FOLLOWS]
    layers = np.flatnonzero(firing[evidence].any(axis=0) & ~firing[signals.THRESHOLD])
    for signal in evidence:
        rebaselined.scores.reset_signal(signal, layers)
    rebaselined.baselines.forget(layers)
    rebaselined.accepted[layers] = True
    return rebaselined, tuple(layers.tolist())


def _rebaseline_run(state: RuleState) -> tuple[int | None, ...]:
    if not state.of_run.firing[signals.SCALE_DROP, 0]:
        return ()
    state.of_run.reset_signal(signals.SCALE_DROP)
    state.of_run.reset_signal(signals.SCALE_WORSE)
    state.baselines.forget(np.arange(len(state.present)))
    state.progress = replace(state.progress, scale_severity=NOTHING, loss_level=None, common_fall=NO_FALL)
    return (None,)
