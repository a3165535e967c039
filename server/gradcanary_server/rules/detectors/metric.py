"""Bounds of metrics that a training logs, for each set of tags by itself. Pure.

A mean over categories hides the collapse of one of them, so no series is compared with another. Values count in their
order of arrival: one for a step that is not after the last one of its series in the launch is stored, and not judged.
Otherwise the result would depend on how the stream was cut.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TypeAlias

from gradcanary_server.rules.config import MetricRule, Rules
from gradcanary_server.rules.types import (
    Evidence,
    Launch,
    MetricPoints,
    Resolution,
    SeriesFacts,
    Severity,
    Transition,
    series_member,
)

RULE = "metric"

SeriesKey: TypeAlias = "tuple[str, str]"
"""Name, and tags as canonical JSON."""

WINDOW = 5
"""Values whose median can become the level of a series: two noisy ones do not move it."""

MAX_SERIES = 1_000
"""Series of a run with bounds: each takes up to 2 kB of the rule state. Further ones have none."""

RISES: tuple[Evidence | None, ...] = ("over_bound", "rose")
"""Evidence for which a high value is bad."""


@dataclass(frozen=True)
class SeriesState:
    """A series with bounds: its last finite values that were not bad, and the largest and smallest median of them.

    ``step`` is that of the last value, -1 = none in this launch, and ``last`` the value, None if it was not finite.
    ``last_before``, ``highest_before`` and ``lowest_before`` are as of before that step.
    ``score`` counts bad values since the step ``since``. A series that fired when its launch ended is ``resumed``: it
    fires again, or resolves after as many ``good`` values.
    """

    window: tuple[float, ...]
    number: int
    step: int = -1
    last: float | None = None
    highest: float | None = None
    lowest: float | None = None
    score: float = 0.0
    since: int = -1
    good: float = 0.0
    fires: bool = False
    resumed: bool = False
    severity: Severity = "warning"
    last_before: float | None = None
    highest_before: float | None = None
    lowest_before: float | None = None

    def resume(self) -> SeriesState:
        """Return the series at the begin of a launch, whose steps may go back: its level stays."""
        return SeriesState(
            (),
            self.number,
            highest=self.highest,
            lowest=self.lowest,
            resumed=self.fires or self.resumed,
            severity=self.severity,
        )

    def advance(self, step: int, value: float) -> SeriesState:
        """Return the series with its next value, which is not judged yet."""
        return replace(
            self,
            step=step,
            last=value if math.isfinite(value) else None,
            last_before=self.last,
            highest_before=self.highest,
            lowest_before=self.lowest,
        )

    def before(self, step: int) -> SeriesState:
        """Return the series as of before a step."""
        if self.step < step:
            return self
        return replace(self, last=self.last_before, highest=self.highest_before, lowest=self.lowest_before)

    def level(self, evidence: Evidence | None) -> float | None:
        """Return the level that a value is held against, which the good values of the series reached."""
        return self.lowest if evidence in RISES else self.highest

    def add(self, value: float) -> SeriesState:
        """Return the series after a value that is not bad."""
        window = (*self.window, value)[-WINDOW:]
        if len(window) < WINDOW:
            return replace(self, window=window)
        middle = median(window)
        highest = middle if self.highest is None else max(self.highest, middle)
        lowest = middle if self.lowest is None else min(self.lowest, middle)
        return replace(self, window=window, highest=highest, lowest=lowest)


def evaluate_metrics(
    metrics: dict[SeriesKey, SeriesState], launch: Launch, points: Sequence[MetricPoints], rules: Rules
) -> Iterator[Transition]:
    """Add the values of a batch to the series with bounds, by step; yield their transitions."""
    entries = (*rules.metrics, *map(MetricRule.of_bound, launch.metrics)) if rules.metric.enabled else ()
    if not entries and not metrics:
        return
    yield from _without_bounds(metrics, launch, entries)
    by_step: dict[int, dict[SeriesKey, tuple[float, MetricRule]]] = defaultdict(dict)
    for key, step, value, entry in sorted(_new_values(metrics, points, entries), key=lambda each: (each[1], each[0])):
        by_step[step][key] = value, entry
    for step, values in by_step.items():
        yield from _evaluate_step(metrics, step, values)


def reset_counts(metrics: dict[SeriesKey, SeriesState], step: int) -> Iterator[Transition]:
    """Let no series fire; yield the resolutions of those that did. Levels stay."""
    for key, series in metrics.items():
        metrics[key] = replace(series, score=0.0, since=-1, good=0.0, fires=False, resumed=False)
        if series.fires or series.resumed:
            yield _resolved(series, step, "rule_changed")


def _without_bounds(
    metrics: dict[SeriesKey, SeriesState], launch: Launch, entries: Sequence[MetricRule]
) -> Iterator[Transition]:
    """Resolve series that another launch of the run declared bounds of, and this one does not."""
    for key, series in metrics.items():
        if series.resumed and _entry_of(key, entries) is None:
            metrics[key] = replace(series, resumed=False)
            yield _resolved(series, launch.first_step, "rule_changed")


def _entry_of(key: SeriesKey, entries: Sequence[MetricRule]) -> MetricRule | None:
    """Return the first entry that matches a series; None without one, or if that one is disabled."""
    name, tags = key[0], json.loads(key[1])
    entry = next((entry for entry in entries if entry.is_about(name, tags)), None)
    return entry if entry is not None and entry.enabled else None


def _new_values(
    metrics: dict[SeriesKey, SeriesState], points: Iterable[MetricPoints], entries: Sequence[MetricRule]
) -> Iterator[tuple[SeriesKey, int, float, MetricRule]]:
    """Yield the values that come after the last one of their series."""
    last: dict[SeriesKey, int] = {}
    for column in points:
        key = column.name, column.tags
        entry = _entry_of(key, entries)
        if entry is None:
            continue
        at = last.get(key, metrics[key].step if key in metrics else -1)
        for step, value in zip(column.steps.tolist(), column.values.tolist(), strict=True):
            if step > at:
                at = step
                yield key, step, value, entry
        last[key] = at


def _evaluate_step(
    metrics: dict[SeriesKey, SeriesState], step: int, values: dict[SeriesKey, tuple[float, MetricRule]]
) -> Iterator[Transition]:
    """Evaluate the values of a step."""
    judged: list[tuple[SeriesKey, Evidence | None]] = []
    for key, (value, entry) in values.items():
        if key not in metrics and len(metrics) >= MAX_SERIES:
            continue
        series = (metrics.get(key) or SeriesState((), len(metrics))).advance(step, value)
        evidence = _judge(series, value, entry)
        metrics[key] = series if evidence else series.add(value)
        judged.append((key, evidence))
    for key, evidence in judged:
        yield from _count(metrics, key, evidence, values[key][1])


def _judge(series: SeriesState, value: float, entry: MetricRule) -> Evidence | None:
    """Return why a value is bad, None if it is not."""
    if not math.isfinite(value):
        return "not_finite"
    for evidence, is_beyond in _BOUNDS.items():
        bound = _bound(series, evidence, entry)
        if bound is not None and is_beyond(value, bound):
            return evidence
    return None


_BOUNDS: dict[Evidence, Callable[[float, float], bool]] = {
    "under_bound": lambda value, bound: value < bound,
    "over_bound": lambda value, bound: value > bound,
    "fell": lambda value, bound: value <= bound,
    "rose": lambda value, bound: value >= bound,
}
"""By evidence, in the order in which they are looked for: True if a value is beyond a bound."""


def _bound(series: SeriesState, evidence: Evidence, entry: MetricRule) -> float | None:
    """Return the bound of a value of a series; None without one. No share of a level of zero is one."""
    if evidence in ("under_bound", "over_bound"):
        return entry.below if evidence == "under_bound" else entry.above
    share = {"fell": entry.falls_by, "rose": entry.rises_by}.get(evidence)
    level = series.level(evidence)
    if not share or not level:
        return None
    return level + (-share if evidence == "fell" else share) * abs(level)


def _count(
    metrics: dict[SeriesKey, SeriesState], key: SeriesKey, evidence: Evidence | None, entry: MetricRule
) -> Iterator[Transition]:
    """Move the count of a series by one value, as signals of layers are."""
    series, needed = metrics[key], entry.observations
    if evidence is None:
        good = series.good + 1
        is_over = (series.fires or series.resumed) and good >= needed
        score = 0.0 if is_over else series.score if series.fires else max(series.score - 0.5, 0.0)
        metrics[key] = replace(
            series,
            score=score,
            since=series.since if score else -1,
            good=0.0 if is_over or not (series.fires or series.resumed) else good,
            fires=series.fires and not is_over,
            resumed=series.resumed and not is_over,
        )
        if is_over:
            yield _resolved(series, series.step, "recovered")
        return
    since = series.since if series.score else series.step
    score = min(series.score + 1, needed)
    fires = score >= needed
    metrics[key] = after = replace(
        series,
        score=score,
        since=since,
        good=max(series.good - 1, 0.0),
        fires=series.fires or fires,
        resumed=series.resumed and not fires,
        severity=entry.severity,
    )
    if fires and not series.fires:
        yield _fired(metrics, key, after, evidence, entry)


def _fired(
    metrics: dict[SeriesKey, SeriesState], key: SeriesKey, series: SeriesState, evidence: Evidence, entry: MetricRule
) -> Transition:
    """Return the transition. The means are of what was known before this step, and of this value: a batch may end
    between the values of a step."""
    tags = json.loads(key[1]).keys()
    others = [
        each.before(series.step)
        for (name, tags_of), each in metrics.items()
        if name == key[0] and tags_of != key[1] and json.loads(tags_of).keys() == tags
    ]
    alike = [series, *others]
    return Transition(
        step=series.step,
        rule=RULE,
        layer=series_member(series.number),
        kind="fired",
        severity=entry.severity,
        since_step=series.since,
        value=series.last,
        baseline=series.level(evidence),
        evidence=evidence,
        series=SeriesFacts(
            name=key[0],
            tags=key[1],
            bound=None if evidence == "not_finite" else _bound(series, evidence, entry),
            total=len(metrics),
            alike=len(alike),
            mean_level=_mean([each.level(evidence) for each in alike]),
            mean=_mean([each.last for each in alike]),
        ),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    mean = sum(known) / len(known) if known and len(known) == len(values) else math.nan
    return mean if math.isfinite(mean) else None


def _resolved(series: SeriesState, step: int, resolution: Resolution) -> Transition:
    member = series_member(series.number)
    return Transition(step, RULE, member, "resolved", series.severity, step, series.last, resolution=resolution)
