"""What the loss did since something happened, in words and from its numbers; no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from gradcanary_dashboard import wording
from gradcanary_dashboard.axes import Floats
from gradcanary_dashboard.columns import decode
from gradcanary_dashboard.verdict import SEVERITIES, is_unrecovered

SPEAKS = ("collapse", "vanished", "explosion", "frozen", "accumulation_loss")
"""Rules beside which the loss is told; those of the loss itself say so in their own words."""

BEFORE = 0.05
FEWEST = 8
"""What is held against each other: a twentieth of the run, at least so many points, before and after."""

NOISE = 4.0
RISE = 0.02
"""A rise counts that is so many deviations of single points over the level before, and this part of it."""


def since(incidents: Iterable[Mapping[str, Any]]) -> int | None:
    """Return the step since which the incident of the verdict lasts, None where the loss has no part in it."""
    standing = [each for each in incidents if each["state"] == "open" or is_unrecovered(each)]
    if not standing:
        return None
    worst = max(standing, key=lambda each: (SEVERITIES.index(each["severity"]), each["id"]))
    if worst["rule"] not in SPEAKS:
        return None
    return min((member["since_step"] for member in worst.get("layers", ())), default=int(worst["opened_step"]))


def words(answer: Mapping[str, Any] | None, step: int | None) -> str | None:
    """Return what the loss did since a step: ``the loss does not show it: 0.131 before, 0.125 now``.

    It is compared with its median before; a peak counts as well as where it is now.
    """
    found = _untagged(answer["metrics"]) if answer else None
    if answer is None or found is None or step is None:
        return None
    steps, mean = decode(answer["steps"]), decode(found["mean"]).astype(np.float64)
    behind = steps + answer["bucket_steps"] > step
    if (decode(found["nonfinite"])[behind] > 0).any():
        return "the loss is not finite since"
    known = decode(found["count"]) > 0
    few = max(FEWEST, round(BEFORE * int(known.sum())))
    before, after = mean[known & ~behind][-few:], mean[known & behind]
    if len(before) < FEWEST or len(after) < FEWEST:
        return None
    return _compared(before, after, few)


def first(answer: Mapping[str, Any]) -> str:
    """Return the first loss of the run, to hold the last one against."""
    drawn = _untagged(answer["metrics"])
    known = decode(drawn["count"]) > 0 if drawn else np.zeros(0, bool)
    if drawn is None or not known.any():
        return ""
    place, width = int(known.argmax()), answer["bucket_steps"]
    value, step = float(decode(drawn["mean"])[place]), float(decode(answer["steps"])[place])
    where = f"at step {wording.integer(step)}" if width == 1 else f"mean of the first {wording.integer(width)} steps"
    return f"{wording.scientific(value)} {where}"


def _compared(before: Floats, after: Floats, few: int) -> str:
    level = float(np.median(before))
    noise = 1.4826 * float(np.median(np.abs(np.diff(before)))) / np.sqrt(2)
    over = level + max(NOISE * noise, RISE * abs(level))
    now, peak = float(np.median(after[-few:])), float(_smooth(after).max())
    told = f"{wording.scientific(level)} before, {wording.scientific(now)} now"
    if now > over:
        return f"the loss rose: {told}"
    if peak > over:
        return f"the loss bumped and came back: {wording.scientific(peak)} at most, {told}"
    return f"the loss does not show it: {told}"


def _smooth(values: Floats) -> Floats:
    """Return medians of three: one noisy point is no bump."""
    return np.median(np.stack((values[:-2], values[1:-1], values[2:])), axis=0)


def _untagged(metrics: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    return next((metric for metric in metrics if metric["name"] == "loss" and not metric["tags"]), None)
