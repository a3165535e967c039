"""The page of several ways of one training for a terminal: a table, then a sentence for each finding."""

from __future__ import annotations

from collections.abc import Callable

from gradcanary import terminal
from gradcanary.sanity.comparison import Pairs, compare_losses, leave_range
from gradcanary.sanity.judge import duration, size_of
from gradcanary.sanity.report import Report
from gradcanary.sanity.ways_report import WaysReport
from gradcanary.wording import NOTHING, number, percent

LEGEND = """\
Ways ran one after another. step time: the median, and between what half of the steps lie; gradients were \
measured in each tenth step only, so most times contain none of that. loss: the means of the first and the last \
tenth of the steps (5 at least). noise: the difference from which on losses part."""

STRESS_LEGEND = "Ways ran one after another. loss: the means of the first and the last tenth of the steps (5 at least)."


def page(report: WaysReport, width: int | None) -> str:
    """Return the page, wrapped to a width; None does not wrap."""
    reference = None if report.reference is None else report.reports[report.reference]
    columns = _stress_columns(reference) if report.experiment.kind == "stress" else _columns(report, reference)
    names = [way.name for way in report.experiment.ways]
    rows = [
        [name, *(cell(each) for cell in columns.values())] for name, each in zip(names, report.reports, strict=True)
    ]
    table = terminal.table([report.experiment.placeholder, *columns], rows)
    findings = [f"{'ok' if each.is_ok else 'not ok':<6}  {each.way}: {each.text}" for each in report.findings]
    legend = LEGEND if report.experiment.kind != "stress" else STRESS_LEGEND
    verdict = "All ways are healthy." if report.is_healthy else "Not healthy, or not alike: see what is not ok."
    parts = [terminal.wrapped(table, width, "    "), terminal.wrapped("\n".join(findings), width, " " * 8)]
    return "\n\n".join([*parts, terminal.wrapped(legend, width), verdict])


Columns = dict[str, Callable[[Report], str]]


def _columns(report: WaysReport, reference: Report | None) -> Columns:
    losses = () if reference is None else reference.losses
    columns: Columns = {
        "steps": lambda each: f"{each.steps:,}",
        "step time": _time,
        "memory": lambda each: NOTHING if each.peak_memory_bytes is None else size_of(each.peak_memory_bytes),
        "loss": lambda each: _loss(losses, each),
        "difference": lambda each: NOTHING if each is reference else _difference(losses, each),
    }
    if report.experiment.kind == "accumulate":
        columns["sums lost"] = lambda each: NOTHING if each.sums_lost is None else percent(each.sums_lost)
    return {**columns, "found": _found}


def _stress_columns(reference: Report | None) -> Columns:
    return {
        "steps": lambda each: f"{each.steps:,}",
        "loss": lambda each: _loss(each.losses, each),
        "largest gradient": lambda each: number(max((value for _, value in each.absmax), default=None)),
        "leaves the range": lambda each: NOTHING if reference is None else _exit_step(each, reference),
        "found": _found,
    }


def _exit_step(report: Report, reference: Report) -> str:
    found = leave_range(report, reference) if report.steps else None
    if found is None:
        return f"not in {report.steps:,} steps" if report.steps else NOTHING
    return f"step {found.step:,}: {found.kind}"


def _time(report: Report) -> str:
    if report.step_time_s is None:
        return NOTHING
    if report.step_time_quartiles_s is None:
        return duration(report.step_time_s)
    lower, upper = (duration(each) for each in report.step_time_quartiles_s)
    return f"{duration(report.step_time_s)} ({lower} to {upper})"


def _loss(reference: Pairs, report: Report) -> str:
    found = compare_losses(reference, report.losses)
    return NOTHING if found is None else f"{number(found.first)} to {number(found.last)}"


def _difference(reference: Pairs, report: Report) -> str:
    found = compare_losses(reference, report.losses)
    if found is None:
        return NOTHING
    return f"{'+' if found.difference > 0 else ''}{number(found.difference)} (noise {number(found.noise)})"


def _found(report: Report) -> str:
    if not report.steps:
        return "made no step"
    return ", ".join(check.code for check in report.checks if check.verdict == "not ok") or "healthy"
