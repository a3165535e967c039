"""The compared runs in numbers, and their differences in one sentence. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradcanary import wording
from gradcanary_dashboard.analysis import loss as loss_levels
from gradcanary_dashboard.analysis.compared_runs import Compared
from gradcanary_dashboard.analysis.curve import Curve
from gradcanary_dashboard.analysis.events import Events
from gradcanary_dashboard.analysis.launches import Steps
from gradcanary_dashboard.analysis.layers import has_incident
from gradcanary_dashboard.text import numbers
from gradcanary_dashboard.text import numbers as number_text

APART = "They have no steps in common over which the rest could be compared."

MINUS = "\N{MINUS SIGN}"

SAME = 0.005
"""A relative difference below this is "same": step times vary by that much from run to run."""


@dataclass(frozen=True)
class Numbers:
    """A run in numbers; None = not measured.

    ``step_time_s`` (median of single steps, the last of them), ``peak_memory_bytes`` (largest), ``loss_there`` (median
    of the last points) and ``loss_least`` are of the steps that all runs have; ``loss_last`` is of all steps of the
    run.
    """

    letter: str
    layers: int
    firing: int
    rules: tuple[str, ...]
    accumulators: Mapping[str, int]
    micro_steps: tuple[int, ...]
    step_time_s: float | None
    peak_memory_bytes: float | None
    loss_last: float | None
    loss_there: float | None
    loss_least: float | None

    @property
    def dtypes(self) -> str:
        """The dtypes of the accumulators: ``bf16``, ``bf16 and fp32``."""
        ranked = sorted(self.accumulators, key=lambda dtype: -self.accumulators[dtype])
        return " and ".join(number_text.SHORT.get(dtype, dtype) for dtype in ranked)


def read(run: Compared, common: Steps | None) -> Numbers:
    """Return a run in numbers."""
    losses, most = (_within(run.metrics, run.origin, name, common) for name in ("loss", "peak_memory_bytes"))
    times = _within(run.times, run.origin, "step_time_s", common)
    last = next((each["last"] for each in run.run["metrics"] if each["name"] == "loss" and not each["tags"]), None)
    return Numbers(
        letter=run.letter,
        layers=run.run["layers"],
        firing=sum(map(has_incident, run.layers)),
        rules=tuple(rule for rule, count in sorted(run.run["firing"].items()) if count),
        accumulators=run.run["accumulators"],
        micro_steps=tuple(sorted({each["micro_steps"] for each in run.layers if each["micro_steps"] is not None})),
        step_time_s=None if times is None else float(np.nanmedian(times.mean)),
        peak_memory_bytes=None if most is None else float(np.nanmax(most.high)),
        loss_last=last,
        loss_there=_end(losses),
        loss_least=_least_of(losses),
    )


def sentence(numbers: Sequence[Numbers], common: Steps | None) -> str:
    """Return the differences: of two runs, the second against the first; of more, the run with the least of each.

    A number that was not measured is "unknown", not "same".
    """
    if len(numbers) == 2:
        return _of_two(numbers[0], numbers[1], common)
    return _of_many(numbers, common)


def change(now: float | None, before: float | None) -> str:
    """Return a relative change: ``+3.1 %``, ``same``; empty if a value is unknown or 0."""
    part = _part(now, before)
    if part is None:
        return ""
    return "same" if abs(part) < SAME else f"{'+' if part > 0 else MINUS}{number_text.percent(abs(part))}"


def loss(number: float | None) -> str:
    """Return a loss in words; it may be infinite or NaN."""
    return number_text.scientific(number) if number is None or math.isfinite(number) else "not finite"


def _of_two(first: Numbers, other: Numbers, common: Steps | None) -> str:
    known = [_accumulators(first, other), _firing(first, other)]
    if common is None:
        return f"{'; '.join(known)}. {APART}"
    times, memories = (other.step_time_s, first.step_time_s), (other.peak_memory_bytes, first.peak_memory_bytes)
    costs = [_time(_part(*times)), _memory(_part(*memories))]
    told = [*known, ", ".join(filter(None, costs)), _loss(first, other)]
    lacking = {"step time": times, "peak memory": memories, "loss": (other.loss_there, first.loss_there)}
    unknown = [_unknown(name, first, other, *values) for name, values in lacking.items()]
    return " ".join(filter(None, [f"{'; '.join(filter(None, told))}.", *unknown]))


def _accumulators(first: Numbers, other: Numbers) -> str:
    if not first.dtypes or not other.dtypes:
        lacking = [each.letter for each in (first, other) if not each.dtypes]
        return f"The dtype of the accumulators of {' and '.join(lacking)} is not known"
    if first.dtypes == other.dtypes:
        return f"Both have {first.dtypes} accumulators"
    return f"{other.letter} has {other.dtypes} accumulators instead of {first.dtypes}"


def _firing(first: Numbers, other: Numbers) -> str:
    """Return ``0 of 300 layers collapsed instead of 18``; the verb is that of the rule if there is only one."""
    rules = {*first.rules, *other.rules}
    have = wording.agree(other.firing, ("has", "have"))
    verb = "collapsed" if rules == {"collapse"} else f"{have} not recovered from a fault"
    if not rules:
        return "no parameter of either has a fault"
    of = f"{number_text.integer(other.firing)} of {number_text.plural(other.layers, 'parameter')}"
    if other.firing == first.firing and other.layers == first.layers:
        return f"{of} {verb} in both"
    before = number_text.integer(first.firing)
    before += "" if first.layers == other.layers else f" of {number_text.integer(first.layers)}"
    return f"{of} {verb} instead of {before}"


def _time(part: float | None) -> str:
    if part is None or abs(part) < SAME:
        return "" if part is None else "steps take as long"
    return f"steps take {number_text.percent(abs(part))} {'longer' if part > 0 else 'less time'}"


def _memory(part: float | None) -> str:
    if part is None or abs(part) < SAME:
        return "" if part is None else "peak memory is the same"
    return f"peak memory is {number_text.percent(abs(part))} {'more' if part > 0 else 'less'}"


def _loss(first: Numbers, other: Numbers) -> str:
    if first.loss_there is None or other.loss_there is None:
        return ""
    ends, before = loss(other.loss_there), loss(first.loss_there)
    against = "in both" if ends == before else f"instead of {before}"
    return f"over the same steps the loss ends at {ends} {against}"


def _unknown(name: str, first: Numbers, other: Numbers, now: float | None, before: float | None) -> str:
    lacking = [each.letter for each, value in ((first, before), (other, now)) if value is None]
    return f"The {name} of {' and '.join(lacking)} is not known." if lacking else ""


def _of_many(numbers: Sequence[Numbers], common: Steps | None) -> str:
    parts = [_fewest(numbers)]
    if common is None:
        return f"{parts[0]}. {APART}"
    times = [(each.step_time_s, each.letter) for each in numbers]
    memories = [(each.peak_memory_bytes, each.letter) for each in numbers]
    losses = [(each.loss_there, each.letter) for each in numbers]
    parts += [
        _least("shortest steps", times, number_text.seconds),
        _least("least memory", memories, number_text.size),
        _least("lowest loss at the end of the same steps", losses, loss),
    ]
    return f"{'; '.join(parts)}."


def _fewest(numbers: Sequence[Numbers]) -> str:
    counts = [each.firing for each in numbers]
    if not any(counts):
        return f"No parameter of {len(numbers)} runs has a fault"
    fewest = [each.letter for each in numbers if each.firing == min(counts)]
    most = [each.letter for each in numbers if each.firing == max(counts)]
    if min(counts) == max(counts):
        return f"{number_text.plural(counts[0], 'parameter')} not recovered from a fault in each of {len(numbers)} runs"
    return (
        f"Fewest parameters not recovered from a fault: {' and '.join(fewest)}, {min(counts)}; "
        f"most: {' and '.join(most)}, {max(counts)}"
    )


def _least(words: str, told: Sequence[tuple[float | None, str]], worded: Callable[[float], str]) -> str:
    known = [(value, letter) for value, letter in told if value is not None and math.isfinite(value)]
    lacking = [letter for value, letter in told if value is None]
    if not known:
        return f"{words}: not known of any"
    value, letter = min(known)
    unknown = f" (not known of {' and '.join(lacking)})" if lacking else ""
    return f"{words}: {letter}, {worded(value)}{unknown}"


def _part(now: float | None, before: float | None) -> float | None:
    if now is None or before is None or not before > 0 or not math.isfinite(now / before):
        return None
    return now / before - 1


def _end(losses: Curve | None) -> float | None:
    """Return the median of the last points, of few the last one; NaN if the last one is not finite."""
    if losses is None:
        return None
    if losses.nonfinite[-1]:
        return math.nan
    found = loss_levels.end(losses.mean[np.isfinite(losses.mean)])
    return float(losses.mean[-1]) if found is None else found


def _least_of(losses: Curve | None) -> float | None:
    known = np.zeros(0) if losses is None else losses.low[np.isfinite(losses.low)]
    return float(known.min()) if known.size else None


def _within(answer: Mapping[str, Any], origin: int, name: str, common: Steps | None) -> Curve | None:
    """Return the buckets of a metric whose middle is a common step; None if they have no value."""
    found = next((each for each in answer.get("metrics", ()) if each["name"] == name and not each["tags"]), None)
    if found is None or common is None:
        return None
    curve = Curve.read(answer, found, Events()).known()
    middle = curve.middle - origin
    there = (middle >= common[0]) & (middle <= common[1])
    return curve.select(there) if there.any() else None


def dtype(told: Mapping[str, str | None] | None) -> str:
    """Return the dtype of a layer's accumulator: effective, else stored, else declared."""
    name = None if told is None else told["effective"] or told["stored"] or told["declared"]
    return numbers.SHORT.get(name, name) if name else numbers.NOTHING
