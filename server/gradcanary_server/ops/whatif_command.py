"""``gradcanary whatif``: a schedule tried on a run of a collector, and forecasts held against what happened."""

import math
import ssl
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any, NamedTuple

import httpx
import numpy as np

from gradcanary.wire import Setting
from gradcanary.wording import agree, count, number, percent
from gradcanary_server.errors import ScheduleError, TraceError
from gradcanary_server.incidents.setting_causes import Configuration, is_decoupled
from gradcanary_server.ops import rules_command, schedules, whatif
from gradcanary_server.ops.whatif import Answer, History, Outlook, Plan, Steps, Verdict
from gradcanary_server.rules.types import Floats, Ints

GRID = 20_000
"""Steps at which a schedule is computed, at most."""

LEAST_STEPS = 10_000
"""Steps that a schedule is followed for, and at least as many as the run has."""

MAX_ROWS = 20
"""Parameters in a table."""

MAX_RATES = 4
"""Learning rates in the first line."""

VERDICTS = ("hit", "off", "possible", "missed", "false", "quiet")

ASSUMPTIONS = (
    (
        "Weights: a step of the optimizer reaches as far, in learning rates, as when the weights were last measured, "
        "and the weights keep their size. With second moments in bfloat16 steps become smaller as gradients fall, and "
        "weights stop earlier."
    ),
    (
        "Gradients: a fall goes on only where it is as fast as weight decay (learning rate x decay in each step), as "
        "that of a LoRA half whose other half decays. No other fall is continued: most of them end."
    ),
    "In brackets: from the earliest to the latest step. 'perhaps from': only the early end of the range is reached.",
)

Json = dict[str, Any]


class Table(NamedTuple):
    """A part of a report with columns."""

    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


Report = Iterator[str | Table]


@dataclass(frozen=True)
class Reply:
    """The answer for programs and the ``report`` for people; ``is_quiet``: nothing would happen, or, of a backtest, all
    happened as foretold.
    """

    content: Json
    report: Report
    is_quiet: bool


@dataclass(frozen=True)
class Question:
    """The arguments of the command; ``schedule`` None is a backtest, from ``first`` on or where the rate changed."""

    run: str
    schedule: str | None
    first: int | None
    last: int | None
    group: int | None
    threshold: float


def ask(question: Question, url: str, token: str | None, trusted: ssl.SSLContext | None = None) -> Reply:
    """Return the answer to a question.

    Raises ScheduleError, and TraceError where the collector does not answer or the run has too little.
    """
    schedule = None if question.schedule is None else schedules.load(question.schedule, question.group)
    with rules_command.open_collector(url, token, trusted) as client:
        history = read_history(client, question.run)
    if np.isnan(history.rates[-1:]).all():
        raise TraceError(f"No learning rate of {question.run} is on record: it cannot be held against another one.")
    return _test(history, question) if schedule is None else _foresee(history, question, schedule)


def read_history(client: httpx.Client, run: str) -> History:
    with rules_command.open_recording(client, run) as source:
        history = whatif.read_history(source.chunks)
    if history is None:
        raise TraceError(f"There are no samples of {run}.")
    about = client.get(rules_command.run_path(run))
    rules_command.check_status(about)
    return replace(history, decays=find_decays(about.json()["launches"][-1]["settings"]))


def find_decays(settings: Sequence[Mapping[str, Any]]) -> tuple[tuple[int, float], ...]:
    """Return the decoupled weight decays over zero of the settings of a launch, each with its first step."""
    parsed = tuple(Setting(**{**setting, "groups": tuple(setting["groups"])}) for setting in settings)
    configuration = Configuration(parsed)
    return tuple(
        (each.step, float(each.value))
        for each in parsed
        if each.name == "weight_decay" and isinstance(each.value, int | float) and each.value > 0
        if any(is_decoupled(configuration, group, each.step) for group in each.groups)
    )


def _foresee(history: History, question: Question, schedule: schedules.Schedule) -> Reply:
    steps, rates, begin = follow(history, question, schedule)
    before = history.rates_at(np.array([begin - 1]))[0]
    answer = whatif.foresee(history, Plan.following(history, steps, rates), question.threshold)
    found = [each for each in answer.outlooks if each.steps.likely is not None]
    head = {
        "run": question.run,
        "schedule": question.schedule,
        "from": begin,
        "to": int(steps[-1]),
        "resolution": int(np.diff(steps).max(initial=1)),
        "threshold": question.threshold,
        "rates": {"before": _plain(before), "first": _plain(rates[steps >= begin][0]), "last": _plain(rates[-1])},
    }
    body = {"outlooks": list(map(_outlook_json, answer.outlooks)), "unknown": answer.unknown}
    return Reply({**head, **body, "assumptions": ASSUMPTIONS}, _report(head, answer), not found)


def follow(history: History, question: Question, schedule: schedules.Schedule) -> tuple[Ints, Floats, int]:
    """Return the steps to come, their rates float64[n, groups], and the step at which the schedule begins.

    It may begin within the run, which then counts until there, or later than its end, with the last rates until there.
    """
    begin = history.last_step + 1 if question.first is None else question.first
    if begin <= int(history.steps[0]):
        raise ScheduleError(
            f"--from {begin:,}: the first sample of {question.run} is of step {int(history.steps[0]):,}."
        )
    least = max(LEAST_STEPS, history.last_step - history.first_step)
    last = begin + least if question.last is None else question.last
    if last <= begin:
        raise ScheduleError(f"--to {last:,} does not come after step {begin:,}, at which the schedule begins.")
    start = min(begin, history.last_step + 1)
    steps = np.unique(np.append(np.linspace(start, last, min(GRID, last - start + 1)).astype(np.int64), begin))
    before = history.rates_at(np.array([begin - 1]))[0]
    rates = np.where((steps >= begin)[:, None], schedule.rates(np.maximum(steps, begin), begin, before), before)
    return steps, rates, begin


def _test(history: History, question: Question) -> Reply:
    step = whatif.find_change(history) if question.first is None else question.first
    if step is None:
        raise TraceError(f"The learning rate of {question.run} did not change: name a step with --backtest STEP.")
    try:
        answer, verdicts = whatif.backtest(history, step, question.threshold)
    except ValueError as error:
        raise TraceError(f"{question.run} cannot be tested from step {step:,} on: {error}.") from error
    score = Counter(verdict.word for verdict in verdicts)
    away = [abs(each.steps_away) for each in verdicts if each.steps_away is not None]
    head = {
        "run": question.run,
        "step": step,
        "threshold": question.threshold,
        "score": {word: score[word] for word in VERDICTS},
        "median_steps_away": median(away) if away else None,
    }
    rows = [{**_outlook_json(each.outlook), "happened": each.happened, "verdict": each.word} for each in verdicts]
    content = {**head, "verdicts": rows, "unknown": answer.unknown, "assumptions": ASSUMPTIONS}
    return Reply(content, _test_report(head, verdicts), not score["missed"] + score["false"] + score["off"])


def _plain(rates: Floats) -> list[float | None]:
    """Return learning rates with the digits that float32 has."""
    return [None if math.isnan(rate) else float(f"{rate:.7g}") for rate in rates.tolist()]


def _outlook_json(outlook: Outlook) -> Json:
    now = None if math.isnan(outlook.now) else outlook.now
    others = {"kind": outlook.kind, "level": outlook.level, "now": now, "is_past": outlook.is_past}
    return {"layer": outlook.layer.name, **others, **asdict(outlook.steps), "rate": outlook.rate}


def _report(head: Json, answer: Answer) -> Report:
    rates = "; ".join(_rate_words(head["rates"]))
    yield f"{head['run']}: {head['schedule']} from step {head['from']:,} to {head['to']:,}; learning rate {rates}"
    if head["resolution"] > 1:
        yield f"Steps are computed {head['resolution']:,} apart."
    weights = [each for each in answer.outlooks if each.kind == "weights"]
    gradients = [each for each in answer.outlooks if each.kind == "gradients"]
    yield ""
    yield from _weight_lines(weights)
    yield ""
    yield from _gradient_lines(gradients, head["threshold"])
    yield ""
    yield from _unknown_lines(answer)
    yield from ASSUMPTIONS


def _rate_words(rates: Mapping[str, Sequence[float | None]]) -> Iterator[str]:
    """Yield the rates of the parameter groups, those of groups alike once."""
    groups: dict[tuple[float | None, ...], list[int]] = {}
    for group, of_group in enumerate(zip(*rates.values(), strict=True)):
        groups.setdefault(of_group, []).append(group)
    for (before, first, last), numbers in list(groups.items())[:MAX_RATES]:
        some = f"of group {numbers[0]} " if len(numbers) == 1 else f"of {len(numbers)} groups from {numbers[0]} on "
        yield f"{some if len(groups) > 1 else ''}{number(before)} before, {number(first)} first, {number(last)} last"
    if len(groups) > MAX_RATES:
        yield f"and {len(groups) - MAX_RATES} more: --json has all"


def _weight_lines(weights: Sequence[Outlook]) -> Report:
    by_layer: dict[str, list[Outlook]] = {}
    for each in weights:
        by_layer.setdefault(each.layer.name, []).append(each)
    if not by_layer:
        yield "Low-precision weights: none were measured, so nothing is foretold of them"
        return
    rows = {name: found for name, found in by_layer.items() if any(map(_is_forecast, found))}
    still = sum(any(each.is_past for each in found) for name, found in by_layer.items() if name not in rows)
    already = f" ({still:,} more stand still already)" if still else ""
    measured = count(len(by_layer), "measured parameter")
    yield f"Low-precision weights that would stop moving: {len(rows):,} of {measured}{already}"
    order = sorted(rows, key=lambda name: min(map(_order, rows[name])))
    table = [
        (name, percent(rows[name][0].now), *(_when(each) for each in rows[name]), f"{rows[name][0].rate:.2g}")
        for name in order[:MAX_ROWS]
    ]
    columns = (f"OVER {percent(level)} FROM STEP" for level in whatif.LEVELS)
    yield from _table(("PARAMETER", "UNMOVED NOW", *columns, "BELOW RATE"), table, len(order))


def _gradient_lines(gradients: Sequence[Outlook], threshold: float) -> Report:
    listed = sorted(filter(_is_forecast, gradients), key=_order)
    under = sum(each.is_past for each in gradients)
    already = f" ({under:,} {agree(under, ('is', 'are'))} already)" if under else ""
    yield f"Gradients that would come under {number(threshold)}: {count(len(listed), 'parameter')}{already}"
    table = [(each.layer.name, number(each.now), _when(each)) for each in listed[:MAX_ROWS]]
    yield from _table(("PARAMETER", "NOW", "FROM STEP"), table, len(listed))


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]], of: int) -> Report:
    if rows:
        yield Table(head, rows)
    if of > len(rows):
        yield f"and {of - len(rows):,} more: --json has all"


def _is_forecast(outlook: Outlook) -> bool:
    return not outlook.is_past and outlook.steps.earliest is not None


def _order(outlook: Outlook) -> tuple[float, float]:
    bounds = (outlook.steps.likely, outlook.steps.earliest)
    likely, earliest = (math.inf if step is None else float(step) for step in bounds)
    return likely, earliest


def _when(outlook: Outlook) -> str:
    return "now" if outlook.is_past else _range(outlook.steps)


def _range(steps: Steps) -> str:
    """Return ``14,200 (12,900 to 15,800)``; a dash for a step that is not reached."""
    if steps.likely is None:
        return "-" if steps.earliest is None else f"perhaps from {steps.earliest:,}"
    earliest = steps.likely if steps.earliest is None else steps.earliest
    latest = "never" if steps.latest is None else f"{steps.latest:,}"
    return f"{steps.likely:,}" if earliest == steps.latest else f"{steps.likely:,} ({earliest:,} to {latest})"


def _unknown_lines(answer: Answer) -> Iterator[str]:
    for kind, reasons in answer.unknown.items():
        parts = [f"{reason} ({count(len(names), 'parameter')})" for reason, names in reasons.items()]
        if parts:
            yield f"No forecast of {kind}: {'; '.join(parts)}."


def _test_report(head: Json, verdicts: Sequence[Verdict]) -> Report:
    yield f"{head['run']}: the forecast before step {head['step']:,}, with the rates that came, and what happened"
    yield ", ".join(f"{head['score'][word]:,} {word}" for word in VERDICTS)
    if head["median_steps_away"] is not None:
        yield f"Likely steps are {head['median_steps_away']:,g} steps away from those that came (median)."
    listed = sorted((each for each in verdicts if each.word != "quiet"), key=lambda each: _order(each.outlook))
    table = [
        (each.outlook.layer.name, _what(each.outlook), _range(each.outlook.steps), _step(each.happened), each.word)
        for each in listed[:MAX_ROWS]
    ]
    yield ""
    yield from _table(("PARAMETER", "WHAT", "FORETOLD", "HAPPENED", "VERDICT"), table, len(listed))
    yield ""
    yield "hit: within the range; off: outside; possible: foretold as 'perhaps'; quiet: not foretold, did not happen."
    yield from ASSUMPTIONS


def _step(step: int | None) -> str:
    return "-" if step is None else f"{step:,}"


def _what(outlook: Outlook) -> str:
    if outlook.kind == "weights":
        return f"over {percent(outlook.level)} unmoved"
    return f"gradient under {number(outlook.level)}"
