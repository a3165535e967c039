"""The judgement of a short run: the incidents of the collector's rules, and what the measurements say beside them.

A rule waits for evidence, because it interrupts people. Here a person reads the page of the whole run, so facts that
send no message count as well. A check that the run's length or its data do not allow says so. Pure: no I/O, no clock.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from gradcanary import wire
from gradcanary.sanity.measurements import Json, Measurements, Outcome, Pairs, finite
from gradcanary.sanity.report import Check, Ending, Report, Verdict
from gradcanary.wording import count, number, percent

OBSERVATIONS = 50
"""Steps after which the rules judge: their grace, and what ``unused`` waits for."""

CANCELLED = "cancelled"
"""The cause of few gradients that are exactly zero: in a difference of two outputs, the last bias has none."""

RUN_ENDED = re.compile(r" The run ended(?: at step [\d,]+)? without a recovery\.")
"""Said of each incident, because the collector's run has ended: here it always has."""

FIRST_STEPS = 5
"""Steps whose time is not typical: caches, kernels and memory are prepared."""

SHOWN_NAMES = 3

RULES = {
    "run": ("crash", "silent", "stalled"),
    "gradients": ("unused", "vanished"),
    "optimizer": ("not_optimized", "never_cleared"),
    "updates": ("no_update", "frozen", "in_vain", "second_moments"),
    "finite": ("nonfinite",),
    "size": ("collapse", "scale_drop", "explosion"),
    "sums": ("accumulation_loss", "accumulator"),
    "float16": ("fp16_underflow", "loss_scale", "clip_before_unscale"),
    "metrics": ("metric",),
}
"""The rules whose incidents belong to a check."""

DEPENDS = "Look whether the loss depends on parameters that the optimizer holds."

NO_GRADIENT = (
    "Print the names of the parameters that have a gradient after backward(), and compare them with those of the "
    "optimizer. Make it when the model is complete, of all parameters that should train."
)

NO_STEP = (
    "The loop that trains calls optimizer.step() of a torch optimizer. One that updates its parameters itself calls "
    "gradcanary.watch(model) once and gradcanary.step() after each update."
)


def judge(outcome: Outcome, found: Measurements) -> Report:
    """Return the report of a run."""
    steps = found.steps
    ending = ending_of(outcome.status, steps, outcome.asked_steps)
    checks = [_judge_run(outcome, found, ending)]
    if steps:
        judges = (_loss, _gradients, _optimizer, _updates, _finite, _size, _sums, _float16, _metrics)
        checks += [check for each in judges if (check := each(found)) is not None]
        checks += _judge_cost(outcome, found)
    fired = [
        each["opened_step"] for each in found.incidents if _is_bad(each, found) and each["opened_step"] is not None
    ]
    return Report(
        run=outcome.run,
        command=outcome.command,
        asked_steps=outcome.asked_steps,
        steps=steps,
        ending=ending,
        exit_status=outcome.status,
        output_tail=outcome.tail,
        checks=tuple(checks),
        losses=tuple(found.metrics.get("loss", ())),
        absmax=_over_layers(found, "absmax", max),
        zeros=_over_layers(found, "zero_fraction", statistics.fmean),
        step_time_s=_step_time_s(found),
        step_time_quartiles_s=_step_time_quartiles_s(found),
        agent_share=_last(found, "agent_share"),
        peak_memory_bytes=_last(found, "peak_memory_bytes") or outcome.peak_bytes,
        first_nonfinite_step=min((step for step, _ in _nonfinite(found)), default=None),
        first_incident_step=min(fired, default=None),
        sums_lost=max((value for _, value in _over_layers(found, "accumulation_error", max)), default=None),
    )


def ending_of(status: int, steps: int, asked: int) -> Ending:
    """Return how a training ended: one that made all its steps was stopped, with any status."""
    if steps >= asked:
        return "stopped"
    return "finished" if status == 0 else "failed"


def _is_bad(incident: Json, found: Measurements) -> bool:
    """Return True if an incident is a fault here: also one without a message, and a parameter that is never used.

    One that is like another with a gradient may be an expert that no token chose, or a part of a later stage, and
    gradients of some parameters cancel. Weights of low precision may stand still while others make the loss fall.
    """
    if incident["rule"] == "frozen" and incident["severity"] == "warning":
        return _loss(found).verdict != "ok"
    if incident["severity"] != "information" or incident["rule"] != "unused":
        return bool(incident["severity"] != "information")
    if incident["likely_cause"]["code"] == CANCELLED:
        return False
    had = {kind for name, kind in _kinds(found).items() if _had_gradient(found, name)}
    unused = [layer["name"] for layer in incident["layers"] if layer["layer"] is not None]
    return any(_kinds(found).get(name) not in had for name in unused)


def _kinds(found: Measurements) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the name without its numbers, and the shape, of each parameter."""
    return {each["name"]: (re.sub(r"\d+", "#", each["name"]), tuple(each["shape"])) for each in found.layers}


def _had_gradient(found: Measurements, name: str) -> bool:
    stats = (found.stats.get(stat, {}).get(name, ()) for stat in ("absmax", "nonfinite"))
    return any(value != 0 for pairs in stats for _, value in pairs)


def _check(code: str, found: Measurements, otherwise: Callable[[], tuple[Verdict, str]]) -> Check:
    """Return what the worst incident of a check says, else what ``otherwise`` does."""
    of_check = [each for each in found.incidents if each["rule"] in RULES[code]]
    bad = [each for each in of_check if _is_bad(each, found)]
    if bad:
        return Check(code, "not ok", " ".join(map(_what, bad)), _do_first(bad[0]))
    verdict, text = otherwise()
    stood = [each for each in of_check if each["rule"] == "frozen"]
    notes = [_what(each) for each in of_check if each["rule"] != "unused"]
    if stood:
        return Check(code, "not judged", ". ".join((text, *notes)), _do_first(stood[0]))
    return Check(code, verdict, ". ".join((text, *notes)))


def _what(incident: Json) -> str:
    return RUN_ENDED.sub("", incident["explanation"]["what"])


def _do_first(incident: Json) -> str:
    return str(incident["explanation"]["do_first"])


def _judge_run(outcome: Outcome, found: Measurements, ending: Ending) -> Check:
    steps = count(found.steps, "optimizer step")
    crash = [each for each in found.incidents if each["rule"] == "crash"]
    if ending == "failed":
        text = f"the command ended with status {outcome.status} after {steps}"
        text += "".join(f". {_what(each)}" for each in crash)
        return Check("run", "not ok", text, _do_first(crash[0]) if crash else "Read the end of its output, below.")
    if not found.steps:
        no_step = next((each["text"] for each in found.facts if each["code"] == "no_step"), NO_STEP)
        return Check("run", "not ok", "the command ended, and made no optimizer step", no_step)
    if crash:
        return Check("run", "not ok", _what(crash[0]), _do_first(crash[0]))
    if outcome.is_terminated:
        return Check("run", "ok", f"{steps}; it went on after the Ctrl-C of the last one, and was terminated")
    if ending == "stopped":
        return Check("run", "ok", f"{steps}, then ended as by Ctrl-C")
    return Check("run", "ok", f"{steps}: the command ended before the {outcome.asked_steps:,} that were asked for")


# -- the parts ---------------------------------------------------------------------------------------------------------


def _loss(found: Measurements) -> Check:
    values = [value for _, value in found.metrics.get("loss", ())]
    if not values:
        return Check("loss", "not seen", "no loss went through backward() or log()")
    wrong = [step for step, value in found.metrics["loss"] if not math.isfinite(value)]
    if wrong:
        return Check("loss", "not ok", f"not finite in {count(len(wrong), 'step')}, first in step {wrong[0]:,}")
    span = max(1, min(10, len(values) // 4))
    first, last = statistics.median(values[:span]), statistics.median(values[-span:])
    text = f"from {number(first)} to {number(last)} (medians of {count(span, 'step')})"
    if len(values) < 2 * FIRST_STEPS:
        return Check("loss", "not judged", f"{text}: too few steps")
    if min(values) == max(values) != 0 and len(values) >= OBSERVATIONS and _has_rate(found):
        text = f"exactly {number(first)} in each of {count(len(values), 'step')}: nothing that is trained changes it"
        known = [each for each in found.incidents if each["rule"] in RULES["optimizer"] + RULES["updates"]]
        return Check("loss", "not ok", text, _do_first(known[0]) if known else DEPENDS)
    spread = statistics.pstdev(values[-span * 2 :]) if len(values) >= 4 * span else 0.0
    if abs(last - first) <= spread:
        return Check("loss", "not judged", f"{text}: no more than it varies from step to step")
    if last > first:
        return Check("loss", "not judged", f"{text}: it rose, which only some losses may")
    return Check("loss", "ok", text)


def _optimized(found: Measurements) -> list[str]:
    """Return the parameters without those of no optimizer: they have gradients that are not measured."""
    incidents = (each for each in found.incidents if each["rule"] == "not_optimized")
    unheld = {layer["name"] for each in incidents for layer in each["layers"]}
    return [layer["name"] for layer in found.layers if layer["name"] not in unheld]


def _gradients(found: Measurements) -> Check:
    names = _optimized(found)
    never = [name for name in names if not _had_gradient(found, name)]

    def otherwise() -> tuple[Verdict, str]:
        if not never:
            return "ok", f"all {count(len(names), 'parameter')} of the optimizers had one"
        text = f"{_named(never, names)} had none in {count(found.steps, 'step')}"
        if len(never) == len(names):
            return "not ok", text
        return "not judged", f"{text}: they may cancel, come later, or be like others that had one"

    checked = _check("gradients", found, otherwise)
    return replace(checked, do_first=NO_GRADIENT) if len(never) == len(names) and not checked.do_first else checked


def _optimizer(found: Measurements) -> Check:
    def otherwise() -> tuple[Verdict, str]:
        total = count(len(found.layers), "trainable parameter", ("is in an optimizer", "are in an optimizer"))
        if not any(_had_gradient(found, layer["name"]) for layer in found.layers):
            return "not judged", f"{count(len(found.layers), 'parameter')} of the optimizers, and none had a gradient"
        frozen = [each["text"] for each in found.facts if each["code"] == wire.FROZEN_PARAMETERS]
        if found.steps <= 12:
            return "not judged", f"{total}; others are looked for after 10 steps"
        return "ok", " ".join((f"{total}, their gradients are cleared.", *frozen))

    return _check("optimizer", found, otherwise)


def _updates(found: Measurements) -> Check:
    """Beside the rules: a parameter whose weights were compared twice or more, and were the same each time."""
    ratios = {
        name: [value for _, value in pairs] for name, pairs in found.stats.get("update_ratio", {}).items() if pairs
    }
    names = _optimized(found)
    still = [name for name, values in ratios.items() if not any(values)]

    def otherwise() -> tuple[Verdict, str]:
        if not ratios:
            return "not seen", "no weights were compared"
        moved = statistics.median(value for values in ratios.values() for value in values)
        text = f"{len(ratios) - len(still):,} of {len(names):,} parameters moved, by {number(moved)} of their size "
        text += "in a step (median)"
        if still:
            return "not judged", f"{text}; {_named(still, names)} did not where looked at"
        missing = len(names) - len(ratios)
        return "ok", text + (f"; {count(missing, 'parameter')} not compared in so few steps" if missing else "")

    return _check("updates", found, otherwise)


def _finite(found: Measurements) -> Check:
    wrong = _nonfinite(found)

    def otherwise() -> tuple[Verdict, str]:
        if not wrong:
            return "ok", f"all gradients of {count(found.steps, 'step')}"
        steps = sorted({step for step, _ in wrong})
        text = f"not in {count(len(steps), 'step')}, the last one {steps[-1]:,}: skipped, as a GradScaler does"
        return "ok", text

    return _check("finite", found, otherwise)


def _size(found: Measurements) -> Check:
    def otherwise() -> tuple[Verdict, str]:
        values = [value for pairs in found.stats.get("absmax", {}).values() for _, value in finite(pairs) if value > 0]
        if not values:
            return "not seen", "no gradient that is not zero"
        text = f"the largest elements of parameters are {number(min(values))} to {number(max(values))}"
        if found.steps < OBSERVATIONS:
            return "not judged", f"{text}; falls and explosions are judged after {OBSERVATIONS} steps"
        return "ok", f"{text}; none fell from its level or exploded"

    return _check("size", found, otherwise)


def _sums(found: Measurements) -> Check:
    def otherwise() -> tuple[Verdict, str]:
        micro_steps = max((layer["micro_steps"] or 0 for layer in found.layers), default=0)
        dtypes = ", ".join(sorted(found.run.get("accumulators", {})))
        if not dtypes:
            return "not seen", "no gradient was summed"
        if micro_steps <= 1:
            return "ok", f"1 micro-step in a step: nothing is summed (gradients in {dtypes})"
        return "ok", f"{micro_steps:,} micro-steps in a step, summed in {dtypes}"

    return _check("sums", found, otherwise)


def _float16(found: Measurements) -> Check:
    def otherwise() -> tuple[Verdict, str]:
        scale = finite(found.metrics.get("scaler_scale", []))
        codes = {each["code"] for each in found.facts}
        if scale:
            return "ok", f"the GradScaler's scale is {number(scale[-1][1])}, and no gradient is cut off"
        if codes & {wire.FLOAT16_WITHOUT_SCALER, wire.FLOAT16_GRADIENTS}:
            return "not judged", "gradients are in float16, and no GradScaler was found"
        return "not seen", "no gradient in float16"

    return _check("float16", found, otherwise)


def _metrics(found: Measurements) -> Check | None:
    is_fired = any(each["rule"] == "metric" for each in found.incidents)
    return _check("metrics", found, lambda: ("ok", "")) if is_fired else None


def _judge_cost(outcome: Outcome, found: Measurements) -> Iterable[Check]:
    seconds, share = _step_time_s(found), _last(found, "agent_share")
    if seconds is None:
        yield Check("time", "not seen", "no two steps in a row")
    else:
        text = f"{duration(seconds)} for a step (median after the first {FIRST_STEPS})"
        text += "" if share is None else f"; gradcanary took {percent(share)} of the time, as it sampled each step"
        yield Check("time", "ok", text)
    peak = _last(found, "peak_memory_bytes")
    text = f"at most {size_of(peak)} in the training" if peak else f"{size_of(outcome.peak_bytes)} in the process"
    yield Check("memory", "ok", text)


# -- helpers -----------------------------------------------------------------------------------------------------------


def _has_rate(found: Measurements) -> bool:
    return any(value > 0 for name, pairs in found.metrics.items() if name.startswith("lr") for _, value in pairs)


def _nonfinite(found: Measurements) -> Pairs:
    return [pair for pairs in found.stats.get("nonfinite", {}).values() for pair in pairs if pair[1] > 0]


def _over_layers(
    found: Measurements, stat: str, reduce: Callable[[Iterable[float]], float]
) -> tuple[tuple[int, float], ...]:
    """Return one value per step, of the finite values of all parameters."""
    values: dict[int, list[float]] = {}
    for pairs in found.stats.get(stat, {}).values():
        for step, value in finite(pairs):
            values.setdefault(step, []).append(value)
    return tuple((step, reduce(values[step])) for step in sorted(values))


def _last(found: Measurements, name: str) -> float | None:
    pairs = finite(found.metrics.get(name, []))
    return pairs[-1][1] if pairs else None


def _step_times_s(found: Measurements) -> list[float]:
    times = [value for _, value in finite(found.metrics.get("step_time_s", []))]
    return times[FIRST_STEPS:] or times


def _step_time_s(found: Measurements) -> float | None:
    times = _step_times_s(found)
    return statistics.median(times) if times else None


def _step_time_quartiles_s(found: Measurements) -> tuple[float, float] | None:
    times = _step_times_s(found)
    if len(times) < 2:
        return None
    lower, _, upper = statistics.quantiles(times, n=4, method="inclusive")
    return lower, upper


def _named(names: Sequence[str], of: Sequence[str]) -> str:
    """Return a count, with the first names: ``2 of 12 parameters (a.weight, a.bias)``."""
    shown = ", ".join(names[:SHOWN_NAMES]) + (", ..." if len(names) > SHOWN_NAMES else "")
    return f"{len(names):,} of {count(len(of), 'parameter')} ({shown})"


def duration(seconds: float) -> str:
    """Return a time with its unit: ``12.1 ms``, ``1.5 s``."""
    return f"{number(seconds * 1000)} ms" if seconds < 1 else f"{number(seconds)} s"


def size_of(value: float) -> str:
    """Return bytes as ``312 MiB`` or ``1.25 GiB``."""
    return f"{value / 2**20:,.0f} MiB" if value < 2**30 else f"{value / 2**30:,.2f} GiB"
