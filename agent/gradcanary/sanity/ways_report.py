"""The judgement of several ways of one training, each beside the first one that made a step. Pure: no I/O, no clock."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gradcanary.sanity.comparison import (
    EXACT_STEPS,
    RangeExit,
    compare_exactly,
    compare_losses,
    compare_times,
    leave_range,
)
from gradcanary.sanity.judge import duration
from gradcanary.sanity.report import Report
from gradcanary.sanity.ways import Experiment, Way
from gradcanary.wording import count, number, percent

K_TOLERANCE = 0.25
"""The part by which a ratio of losses may miss that of the micro-steps: batches differ."""

PARTED = {
    "compare": "The precision changes this training.",
    "accumulate": "At one effective batch they agree, unless the loss, the data or batch normalization depends on it.",
    "checkpointing": "Checkpointing must not change the loss.",
}


@dataclass(frozen=True)
class Finding:
    """A sentence on one way; ``is_ok`` is False if a person should look at it first."""

    way: str
    is_ok: bool
    text: str


@dataclass(frozen=True)
class WaysReport:
    """The reports of all ways, in their order, and the findings; ``reference`` is the first way that made a step."""

    experiment: Experiment
    reports: tuple[Report, ...]
    findings: tuple[Finding, ...]
    reference: int | None

    @property
    def is_healthy(self) -> bool:
        """True if each way is healthy, and no loss parts where it must not."""
        return all(report.is_healthy for report in self.reports) and all(each.is_ok for each in self.findings)

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON's types."""
        return {
            "is_healthy": self.is_healthy,
            "option": self.experiment.kind,
            "findings": [asdict(finding) for finding in self.findings],
            "ways": [
                {"name": way.name, "report": report.as_json()}
                for way, report in zip(self.experiment.ways, self.reports, strict=True)
            ],
        }


def judge_ways(experiment: Experiment, reports: Sequence[Report]) -> WaysReport:
    """Return the report of all ways."""
    reference = next((number for number, report in enumerate(reports) if report.steps), None)
    found: list[Finding] = []
    for position, (way, report) in enumerate(zip(experiment.ways, reports, strict=True)):
        found += _health(way, report)
        if reference is None or not report.steps:
            continue
        if experiment.kind == "stress":
            found.append(_stress(way, report, reports[reference]))
        elif position != reference:
            pair = _Pair(experiment.ways[reference], reports[reference], way, report)
            found += [*_time(pair), _loss(experiment, pair)]
        if experiment.kind == "accumulate" and report.sums_lost is not None:
            text = f"its sums in low precision lost {percent(report.sums_lost)} at most, where they were measured"
            found.append(Finding(way.name, is_ok=True, text=text))
    return WaysReport(experiment, tuple(reports), tuple(found), reference)


@dataclass(frozen=True)
class _Pair:
    """The first way, and another one."""

    first: Way
    reference: Report
    way: Way
    report: Report


def _health(way: Way, report: Report) -> Iterator[Finding]:
    if not report.steps:
        reason = next((line.strip() for line in reversed(report.output_tail) if line.strip()), "it wrote nothing")
        status = report.exit_status
        yield Finding(way.name, is_ok=False, text=f"made no step (status {status}). The end of its output: {reason}")
        return
    for check in report.checks:
        if check.verdict == "not ok":
            text = f"not healthy: {check.text.rstrip('.')}."
            yield Finding(way.name, is_ok=False, text=f"{text} Do first: {check.do_first}" if check.do_first else text)


def _time(pair: _Pair) -> Iterator[Finding]:
    order = compare_times(pair.reference, pair.report)
    if order == "unknown" or pair.reference.step_time_s is None or pair.report.step_time_s is None:
        return
    own, first = pair.report.step_time_s, pair.reference.step_time_s
    if order == "alike":
        text = f"its step time is not distinguishable from that of {pair.first.name}: half of the steps of both overlap"
    else:
        times = f"{duration(own)} for a step instead of {duration(first)}, {number(own / first)} times"
        text = f"{order} here than {pair.first.name}: {times}"
    yield Finding(pair.way.name, is_ok=True, text=text)


def _loss(experiment: Experiment, pair: _Pair) -> Finding:
    name, first = pair.way.name, pair.first.name
    if experiment.kind == "checkpointing":
        exact = compare_exactly(pair.reference.losses, pair.report.losses)
        if exact is not None and exact.is_exact:
            return Finding(name, is_ok=True, text=f"its losses are those of {first} to the last bit")
        if exact is not None and exact.parts_at is not None and not exact.begins_apart:
            return Finding(name, is_ok=False, text=_recomputed_otherwise(pair, exact.parts_at))
    found = compare_losses(pair.reference.losses, pair.report.losses)
    if found is None:
        return Finding(name, is_ok=True, text=f"its losses were not compared with those of {first}: too few were seen")
    if found.nonfinite_at is not None and found.nonfinite_at == found.parts_at:
        return Finding(
            name, is_ok=False, text=f"its loss is not finite at step {found.nonfinite_at:,}, and {first}'s is"
        )
    change = f"{_signed(found.difference)} in the last steps, where losses part from {number(found.noise)} on"
    if found.parts_at is None:
        return Finding(
            name, is_ok=True, text=f"its losses agree with those of {first}: {change}{_seed(experiment, pair)}"
        )
    text = f"its losses part from those of {first} at step {found.parts_at:,}: {change}"
    cause = _undivided(pair, found.ratio) or PARTED[experiment.kind]
    return Finding(name, is_ok=False, text=f"{text}. {cause}{_seed(experiment, pair)}")


def _recomputed_otherwise(pair: _Pair, step: int) -> str:
    before, after = dict(pair.reference.losses)[step], dict(pair.report.losses)[step]
    return (
        f"its losses part from those of {pair.first.name} at step {step:,} ({number(after)} instead of "
        f"{number(before)}), after the same first step. The forward pass that checkpointing repeats is another one: "
        "dropout with preserve_rng_state=False, or another source of random numbers or state"
    )


def _seed(experiment: Experiment, pair: _Pair) -> str:
    """Return a remark for a checkpointing whose first loss differs, before anything was recomputed."""
    if experiment.kind != "checkpointing":
        return ""
    exact = compare_exactly(pair.reference.losses, pair.report.losses)
    if exact is None or not exact.begins_apart:
        return "" if exact is None else f" (rounding: {number(exact.largest)} of them in the first {EXACT_STEPS} steps)"
    return (
        ". The first loss differs already: with a seed for weights, data and dropout, both begin alike, and each step "
        "can be compared"
    )


def _undivided(pair: _Pair, ratio: float | None) -> str:
    """Return the cause where the losses are to each other as the micro-steps, else nothing."""
    if pair.way.k is None or pair.first.k is None or ratio is None or pair.way.k == pair.first.k:
        return ""
    expected = pair.way.k / pair.first.k
    steps = f"{pair.way.k} micro-steps instead of {pair.first.k}"
    text = f"The sum of the losses of a step is {number(ratio)} times that of {pair.first.name} with {steps}"
    if abs(math.log(ratio / expected)) < K_TOLERANCE:
        return f"{text}: divide the loss by the micro-steps before backward()"
    if abs(math.log(ratio * expected)) < K_TOLERANCE:
        return f"{text}: the loss is divided twice, as by the script and by its framework"
    return ""


def _stress(way: Way, report: Report, reference: Report) -> Finding:
    found = leave_range(report, reference)
    if found is None:
        text = f"its gradients stay in the range: none leaves it in {count(report.steps, 'step')}"
        return Finding(way.name, is_ok=True, text=text)
    return Finding(way.name, is_ok=False, text=f"its gradients leave the range at step {found.step:,}: {_exit(found)}")


def _exit(found: RangeExit) -> str:
    if found.kind == "nonfinite":
        return "NaN or infinity"
    if found.kind == "zero":
        return "all are exactly zero"
    return f"the largest is {number(found.value)}, over 100 times that of before"


def _signed(value: float) -> str:
    return f"+{number(value)}" if value > 0 else number(value)
