"""The rules as a fold over steps: state and samples in, state and changes out. Pure, no clock.

Any cutting of a stream gives the same state and the same changes: a step is folded by itself, and a loss that comes
after its step was folded is not folded. Of a launch that a later one replaced nothing is folded any more. Scores that
fire stay over a new launch, because missing data never resolves; open blocks of baselines begin anew.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from gradcanary_server import baselines, collapse, scale_drop
from gradcanary_server.fold_state import (
    COLLAPSE,
    FALL,
    LATE,
    NONFINITE,
    NONFINITE_LOSS,
    SCALE_DROP,
    SIBLINGS,
    THRESHOLD,
    FoldState,
    Progress,
    Verdict,
)
from gradcanary_server.layer_rules import LayerRules, compile_rules
from gradcanary_server.moment import BY_SCALER, Moment, moments
from gradcanary_server.observations import Change, Evidence, Launch, Samples, Severity
from gradcanary_server.rules import Rules
from gradcanary_server.scores import Cast, count

__all__ = ["FoldState", "Verdict", "fold"]

SEVERITIES: tuple[Severity, ...] = get_args(Severity)

EVIDENCE: dict[int, tuple[Evidence, Severity]] = {
    LATE: ("late", "information"),
    SIBLINGS: ("siblings", "warning"),
    THRESHOLD: ("threshold", "critical"),
    FALL: ("fall", "critical"),
}
"""What each track of collapse shows and how bad that is, in rising order; of equals the last one speaks."""


def fold(state: FoldState, launch: Launch, samples: Samples, rules: Rules) -> tuple[FoldState, tuple[Change, ...]]:
    """Return the state after these samples of a launch, and what began or ended in them, in the order of steps."""
    if launch.number < state.progress.launch:
        return state, ()
    walk = _Walk(state.copy(), launch, rules)
    changes = [change for event in _events(samples, state.progress, launch) for change in walk.take(event)]
    return walk.state, (*walk.gone, *changes)


def _events(samples: Samples, progress: Progress, launch: Launch) -> Iterator[Moment | Loss]:
    """Return steps and losses by step, a step's loss before the step."""
    is_new = launch.number > progress.launch
    folded = -1 if is_new else max(progress.last_step, progress.last_loss_step)
    skipped = dict(zip(samples.steps.tolist(), samples.skipped.tolist(), strict=True))
    losses = [
        Loss(step, loss, skipped.get(step) == BY_SCALER)
        for step, loss in zip(samples.loss_steps.tolist(), samples.loss.tolist(), strict=True)
        if step > folded
    ]
    for moment in moments(samples):
        while losses and losses[0].step <= moment.step:
            yield losses.pop(0)
        yield moment
    yield from losses


@dataclass(frozen=True)
class Loss:
    """A loss of a step, and whether a GradScaler skipped that step."""

    step: int
    value: float
    by_scaler: bool


class _Walk:
    """The state while it moves through the events of one batch."""

    def __init__(self, state: FoldState, launch: Launch, rules: Rules) -> None:
        self.state = state
        self.gone: list[Change] = []
        self._launch = launch
        self._rules = rules
        self._view: LayerRules = compile_rules(launch, rules)
        self._width = len(launch.layers)
        columns = self._view.columns
        state.make_room(int(columns.max(initial=-1)) + 1, int(self._view.observations.max(initial=0)))
        if launch.number > state.progress.launch:
            self._begin_launch()
        state.present[columns] = True
        state.resolve_after[columns] = self._view.resolve_after

    def take(self, event: Moment | Loss) -> list[Change]:
        """Fold one event and return what it changed."""
        layers, run = self._severities(), self.state.of_run.firing[:, 0].copy()
        scale = self.state.progress.scale_severity
        if isinstance(event, Loss):
            self._hear_loss(event)
            return self._run_changes(event.step, run, scale, None)
        shared, quartiles = self._observe(event)
        return [*self._run_changes(event.step, run, scale, shared), *self._layer_changes(event, layers, quartiles)]

    def _begin_launch(self) -> None:
        state, columns = self.state, self._view.columns
        known = columns[state.shapes[columns] != 0]
        reshaped = known[state.shapes[known] != self._view.shapes[np.isin(columns, known)]]
        absent = state.present.copy()
        absent[columns] = False
        absent[reshaped] = True
        self._leave(absent)
        state.baselines.level[reshaped] = np.nan
        state.alive[reshaped] = False
        state.shapes[columns] = self._view.shapes
        state.present[:] = False
        state.baselines.drop_blocks()
        state.losses = np.zeros(0)
        progress = state.progress
        state.progress = Progress(
            launch=self._launch.number, loss_level=progress.loss_level, scale_severity=progress.scale_severity
        )

    def _leave(self, absent: NDArray[np.bool_]) -> None:
        """Let layers that the new launch does not have, or has in another shape, leave their incidents."""
        state, first = self.state, self._launch.first_step
        for rule, tracks in (("collapse", COLLAPSE), ("nonfinite", slice(NONFINITE, NONFINITE + 1))):
            for layer in np.flatnonzero(absent & state.scores.firing[tracks].any(axis=0)).tolist():
                self.gone.append(Change(first, rule, layer, "resolved", "information", first, resolution="layer_gone"))
        state.scores.forget(absent)
        state.low[absent] = False

    def _observe(self, moment: Moment) -> tuple[float | None, NDArray[np.float64]]:
        """Fold a step; return the common fall and the quartiles of siblings."""
        state, columns = self.state, self._view.columns
        self._note_progress(moment)
        self._count_nonfinite(moment)
        if moment.skipped:
            return None, np.full(self._width, np.nan)
        state.low[columns] = moment.seen & (moment.absmax < self._view.enter)
        shared = self._watch_falls(moment) if moment.can_fall else None
        quartiles = self._count_collapse(moment, shared)
        state.low[columns] &= ~state.scores.firing[COLLAPSE][:, columns].any(axis=0)
        return shared, quartiles

    def _note_progress(self, moment: Moment) -> None:
        progress, grace = self.state.progress, self._rules.grace
        age = moment.step - self._launch.first_step
        rates = tuple(float(rate) for rate in moment.lr)
        rising = any(now > then for now, then in zip(rates, progress.lr, strict=False))
        is_over = age >= grace.max_steps or (age >= grace.steps and not rising)
        by_scaler = moment.skipped == BY_SCALER
        begins = by_scaler and progress.skipped == 0
        self.state.progress = replace(
            progress,
            last_step=moment.step,
            lr=rates,
            grace_over=progress.grace_over or is_over,
            skipped=progress.skipped + min(moment.every, 4) if by_scaler else 0,
            skipped_since=moment.step if begins else (progress.skipped_since if by_scaler else -1),
        )

    def _count_nonfinite(self, moment: Moment) -> None:
        rule, progress = self._rules.nonfinite, self.state.progress
        counts = moment.skipped != BY_SCALER or progress.skipped >= rule.skipped_in_row
        bad = moment.nonfinite & counts & rule.enabled
        good = moment.seen & (moment.skipped == 0)
        step = progress.skipped_since if moment.skipped == BY_SCALER else moment.step
        self._count(NONFINITE, moment, bad.astype(np.int8) - good, fire_after=1.0, since=step)

    def _watch_falls(self, moment: Moment) -> float | None:
        """Move the baselines and count scale_drop; return the common fall, None while it is not known."""
        state, columns, view = self.state, self._view.columns, self._view
        if not state.progress.grace_over:
            return None
        state.alive[columns] |= moment.seen & ~moment.zero
        seen = np.flatnonzero(moment.seen)
        rose = baselines.observe(
            state.baselines, columns[seen], moment.level[seen], view.observations[seen], moment.every
        )
        baseline = state.baselines.level[columns].astype(np.float64)
        if 2 * int(rose.sum()) >= int((~np.isnan(baseline)).sum()) > 0:
            state.progress = replace(state.progress, loss_level=scale_drop.level(state.losses))
        fall = collapse.falls(moment, baseline)
        shared = collapse.common(fall, moment, state.alive[columns], baseline, view)
        if shared is not None and self._rules.scale_drop.enabled:
            self._count_scale_drop(moment, shared)
        return shared

    def _count_scale_drop(self, moment: Moment, shared: float) -> None:
        state, rule = self.state, self._rules.collapse
        vote = scale_drop.vote(shared, self._rules.scale_drop.common_decades)
        self._count_run(SCALE_DROP, moment.step, moment.every, vote, float(rule.fire_after_steps))
        highest = -1
        if state.of_run.firing[SCALE_DROP, 0]:
            found = scale_drop.severity(shared, state.losses, state.progress.loss_level)
            # Between the two limits nothing is decided, so the severity stays too.
            rank = SEVERITIES.index(found) if vote > 0 else -1
            highest = max(state.progress.scale_severity, rank)
        state.progress = replace(state.progress, scale_severity=highest)

    def _count_collapse(self, moment: Moment, shared: float | None) -> NDArray[np.float64]:
        """Count the evidence of each kind; return the quartiles of siblings."""
        state, view, launch = self.state, self._view, self._launch
        explained = state.progress.scale_severity == SEVERITIES.index("information")
        quartiles = collapse.sibling_quartiles(moment, view)
        self._count(THRESHOLD, moment, collapse.by_threshold(moment, view, launch))
        if moment.can_fall and not explained:
            baseline = state.baselines.level[view.columns].astype(np.float64)
            grown_up = shared if state.progress.grace_over else None
            self._count(FALL, moment, collapse.by_fall(moment, view, collapse.falls(moment, baseline), grown_up))
            self._count(SIBLINGS, moment, collapse.by_siblings(moment, view, quartiles))
            joined = launch.late and moment.step - launch.first_step < max(self._rules.grace.steps, 10 * moment.every)
            self._count(LATE, moment, collapse.by_lateness(moment, view, baseline, joined))
        return quartiles

    def _count(
        self,
        track: int,
        moment: Moment,
        votes: NDArray[np.int8],
        fire_after: float | None = None,
        since: int | None = None,
    ) -> None:
        view = self._view
        counts = view.fire_after if fire_after is None else np.full(self._width, fire_after, np.float32)
        step = moment.step if since is None else since
        count(self.state.scores, track, Cast(step, moment.every, view.columns, votes, counts, view.resolve_after))

    def _count_run(self, track: int, step: int, every: int, vote: int, fire_after: float) -> None:
        resolve_after = np.float32(self._rules.collapse.resolve_after_steps)
        cast = Cast(
            step,
            every,
            np.zeros(1, np.int64),
            np.array([vote], np.int8),
            np.array([fire_after], np.float32),
            np.array([resolve_after], np.float32),
        )
        count(self.state.of_run, track, cast)

    def _hear_loss(self, loss: Loss) -> None:
        state, rule = self.state, self._rules.nonfinite
        state.progress = replace(state.progress, last_loss_step=loss.step)
        state.losses = scale_drop.remember(state.losses, loss.value)
        # The step itself comes after its loss, so the row it belongs to is one longer than known.
        in_row = state.progress.skipped + 1
        if rule.enabled and (not loss.by_scaler or in_row >= rule.skipped_in_row):
            self._count_run(NONFINITE_LOSS, loss.step, 1, -1 if math.isfinite(loss.value) else 1, 1.0)

    def _severities(self) -> dict[str, NDArray[np.int8]]:
        """Return per rule int8[N], the highest severity that fires for a layer, -1 = none."""
        firing = self.state.scores.firing
        highest = np.full(firing.shape[1], -1, np.int8)
        for track, (_, severity) in EVIDENCE.items():
            highest = np.where(firing[track], np.maximum(highest, SEVERITIES.index(severity)), highest).astype(np.int8)
        critical = SEVERITIES.index("critical")
        return {"collapse": highest, "nonfinite": np.where(firing[NONFINITE], critical, -1).astype(np.int8)}

    def _layer_changes(
        self, moment: Moment, before: dict[str, NDArray[np.int8]], quartiles: NDArray[np.float64]
    ) -> list[Change]:
        changes: list[Change] = []
        position = {int(layer): place for place, layer in enumerate(self._view.columns)}
        for rule, after in self._severities().items():
            for layer in np.flatnonzero(after != before[rule]).tolist():
                place = position[layer]
                if after[layer] > before[rule][layer]:
                    changes.append(self._fired(moment, rule, layer, place, float(quartiles[place])))
                elif after[layer] < 0:
                    changes.append(self._resolved(moment, rule, layer, place, int(before[rule][layer])))
        return changes

    def _fired(self, moment: Moment, rule: str, layer: int, place: int, quartile: float) -> Change:
        scores, level = self.state.scores, float(self.state.baselines.level[layer])
        value, evidence, severity, track = float(moment.absmax[place]), None, SEVERITIES[-1], NONFINITE
        if rule == "collapse":
            track = [each for each in EVIDENCE if scores.firing[each, layer]][-1]
            evidence, severity = EVIDENCE[track]
        return Change(
            step=moment.step,
            rule=rule,
            layer=layer,
            kind="fired",
            severity=severity,
            since_step=int(scores.since[track, layer]),
            value=None if math.isnan(value) else value,
            baseline=None if math.isnan(level) else 10.0**level,
            siblings=None if math.isnan(quartile) else quartile,
            evidence=evidence,
        )

    def _resolved(self, moment: Moment, rule: str, layer: int, place: int, severity: int) -> Change:
        value = float(moment.absmax[place])
        return Change(
            step=moment.step,
            rule=rule,
            layer=layer,
            kind="resolved",
            severity=SEVERITIES[severity],
            since_step=moment.step,
            value=None if math.isnan(value) else value,
            resolution="recovered",
        )

    def _run_changes(
        self, step: int, before: NDArray[np.bool_], scale_before: int, shared: float | None
    ) -> list[Change]:
        changes: list[Change] = []
        severities = (self.state.progress.scale_severity, SEVERITIES.index("critical"))
        for track, rule in ((SCALE_DROP, "scale_drop"), (NONFINITE_LOSS, "nonfinite")):
            firing = bool(self.state.of_run.firing[track, 0])
            rose = track == SCALE_DROP and firing and severities[track] > scale_before
            if firing and (rose or not before[track]):
                since = int(self.state.of_run.since[track, 0])
                value = shared if track == SCALE_DROP else None
                changes.append(Change(step, rule, None, "fired", SEVERITIES[severities[track]], since, value))
            elif before[track] and not firing:
                severity = SEVERITIES[scale_before if track == SCALE_DROP else -1]
                changes.append(Change(step, rule, None, "resolved", severity, step, resolution="recovered"))
        return changes
