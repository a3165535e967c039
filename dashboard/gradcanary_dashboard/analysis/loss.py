"""The change of the loss since an incident, in words. Pure.

Each claim is one of ``CLAIMS``, and none is made that the two levels and the highest value do not show.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradcanary.display.verdict import worst_standing
from gradcanary_dashboard.analysis.arrays import Floats, decode
from gradcanary_dashboard.text import numbers

RULES_WITH_LOSS = ("collapse", "vanished", "explosion", "frozen", "accumulation_loss")
"""Rules whose verdict mentions the loss; rules about the loss itself have their own words."""

PART = 0.05
FEWEST = 8
"""Compared are a twentieth of the points before and since, at least this many."""

LEAD, LEAD_STEPS = 0.1, 200
"""The loss may move before a fall: by this share of the steps before it, at least this many. Layers reach their
threshold some steps after the cause, which the loss may show at once."""

BACK = 0.05
"""A loss came back if its level is within this share of the level before."""

_LEVELS = "{was} before, {now} now"
CLAIMS = {
    "rose": f"the loss rose: {_LEVELS}",
    "rose_and_fell": f"the loss rose, up to {{highest}}: {_LEVELS}",
    "came_back": f"the loss spiked to {{highest}} and came back: {_LEVELS}",
    "spiked_and_fell": f"the loss spiked to {{highest}} and then fell: {_LEVELS}",
    "spiked": f"the loss spiked to {{highest}}: {_LEVELS}",
    "fell": f"the loss fell: {_LEVELS}",
    "flat": f"the loss stayed flat: {_LEVELS}",
    "as_before": f"the loss is where it was: {_LEVELS}",
    "unclear": f"the loss: {_LEVELS}",
}

NOISE = 4.0
WANDER = 8.0
FALL_NOISE = 2.0
RISE = 0.02
"""A rise counts if it is over the level before by this many deviations of single points, this many deviations between
neighbouring levels, and this share of the level. Levels vary less than single points: a fall needs fewer of them."""


def since(incidents: Iterable[Mapping[str, Any]]) -> int | None:
    """Return the first step of the verdict's incident, None if its verdict does not mention the loss."""
    worst = worst_standing(incidents)
    if worst is None or worst["rule"] not in RULES_WITH_LOSS:
        return None
    return min((member["since_step"] for member in worst.get("layers", ())), default=int(worst["opened_step"]))


@dataclass(frozen=True)
class Level:
    """The level of the loss: the median of its last points, and the number of their steps."""

    value: float
    steps: int


def end(values: Floats) -> float | None:
    """Return the median of the last values; None if there are too few."""
    return float(np.median(values[-_few(values) :])) if len(values) >= FEWEST else None


def level(answer: Mapping[str, Any] | None) -> Level | None:
    """Return the level of the loss at the end of an answer; None if it has too few points."""
    values = _known(answer)
    found = end(values)
    if answer is None or found is None:
        return None
    # Some buckets have no value: a metric may be logged each 100th step.
    steps = decode(answer["steps"])[_has_value(answer)][-_few(values) :]
    return Level(found, int(steps[-1] - steps[0]) + int(answer["bucket_steps"]))


def words(before: Mapping[str, Any] | None, since: Mapping[str, Any] | None) -> str | None:
    """Return the change of the loss since a step, given the loss before and since.

    For example ``the loss fell: 0.131 before, 0.125 now``. Levels are compared; a peak counts as well. The
    level before is the lowest of the steps ahead (``LEAD``), because the loss may have begun to rise there.
    """
    found = _untagged(since["metrics"]) if since else None
    if found is not None and (decode(found["nonfinite"]) > 0).any():
        return "the loss is not finite since"
    now, ahead = level(since), _ahead(before)
    if now is None or ahead is None:
        return None
    return _compared(ahead, _known(since), now.value, _highest(since))


def first(answer: Mapping[str, Any]) -> str:
    """Return the first loss of the run, to compare the last one with."""
    drawn = _untagged(answer["metrics"])
    known = decode(drawn["count"]) > 0 if drawn else np.zeros(0, bool)
    if drawn is None or not known.any():
        return ""
    place, width = int(known.argmax()), answer["bucket_steps"]
    value, step = float(decode(drawn["mean"])[place]), float(decode(answer["steps"])[place])
    where = f"at step {numbers.integer(step)}" if width == 1 else f"mean of the first {numbers.integer(width)} steps"
    return f"{numbers.scientific(value)} {where}"


@dataclass(frozen=True)
class Before:
    """The points of the lowest level before a fall, those between them and the fall with their highest value, and the
    deviation of levels."""

    level: Floats
    meanwhile: Floats
    highest: float
    wander: float


def _ahead(answer: Mapping[str, Any] | None) -> Before | None:
    """Return the state of the loss before the end of an answer; None if it has too few points."""
    values = _known(answer)
    if answer is None or len(values) < FEWEST:
        return None
    few = _few(values)
    steps = decode(answer["steps"])[_has_value(answer)]
    lead = max(LEAD_STEPS, LEAD * float(steps[-1]))
    begin = max(0, min(int(np.searchsorted(steps, steps[-1] - lead)), len(values)) - few)
    levels = np.median(np.lib.stride_tricks.sliding_window_view(values[begin:], few), axis=1)
    end = begin + int(levels.argmin()) + few
    return Before(values[end - few : end], values[end:], _highest(answer, end), _wander(values, few))


def _wander(values: Floats, few: int) -> float:
    """Return the usual rise from one level to the next; in a logged running mean neighbours are close together."""
    rises = np.diff(np.median(values[len(values) % few :].reshape(-1, few), axis=1))
    rises = rises[rises > 0]
    return 1.4826 * float(np.median(rises)) if len(rises) >= _OF_A_HABIT else 0.0


def _compared(before: Before, after: Floats, now: float, highest: float) -> str:
    was = float(np.median(before.level))
    # Of both: buckets of many steps vary less than single steps.
    noise = max(_noise(before.level), _noise(after))
    least, margin = RISE * abs(was), max(NOISE * noise, WANDER * before.wander, RISE * abs(was))
    peak = max(float(_smooth(part).max()) for part in (before.meanwhile, after) if len(part) >= _OF_A_PEAK)
    values = {"was": was, "now": now, "highest": max(before.highest, highest)}
    told = {name: numbers.scientific(value) for name, value in values.items()}
    is_level = abs(now - was) <= least or told["was"] == told["now"]
    if now > was + margin and not is_level:
        claim = "rose_and_fell" if values["highest"] > 2 * abs(now) else "rose"
    elif peak > was + margin:
        is_back = is_level or abs(now - was) <= BACK * abs(was)
        claim = "came_back" if is_back else "spiked_and_fell" if now < was else "spiked"
    elif is_level:
        claim = "flat" if float(_smooth(after).min()) >= was - margin else "as_before"
    else:
        has_fallen = was - now > max(FALL_NOISE * noise, FALL_NOISE * before.wander)
        claim = "fell" if has_fallen else "unclear"
    return CLAIMS[claim].format_map(told)


def _noise(values: Floats) -> float:
    """Return the deviation of single points, from the differences of neighbours."""
    return 1.4826 * float(np.median(np.abs(np.diff(values)))) / math.sqrt(2)


def _has_value(answer: Mapping[str, Any]) -> NDArray[np.bool_]:
    found = _untagged(answer["metrics"])
    return np.zeros(0, bool) if found is None else decode(found["count"]) > 0


def _known(answer: Mapping[str, Any] | None) -> Floats:
    found = _untagged(answer["metrics"]) if answer else None
    if found is None:
        return np.zeros(0)
    mean: Floats = decode(found["mean"]).astype(np.float64)[decode(found["count"]) > 0]
    return mean


def _highest(answer: Mapping[str, Any] | None, first: int = 0) -> float:
    """Return the highest value from a point on, -inf without any: a mean of many steps hides a peak."""
    found = _untagged(answer["metrics"]) if answer else None
    if found is None:
        return -math.inf
    return float(decode(found["max"])[decode(found["count"]) > 0][first:].max(initial=-math.inf))


def _few(values: Floats) -> int:
    return max(FEWEST, round(PART * len(values)))


_OF_A_PEAK = 3
_OF_A_HABIT = 3


def _smooth(values: Floats) -> Floats:
    """Return medians of three: one noisy point is not a bump."""
    return np.median(np.stack((values[:-2], values[1:-1], values[2:])), axis=0)


def _untagged(metrics: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    return next((metric for metric in metrics if metric["name"] == "loss" and not metric["tags"]), None)
