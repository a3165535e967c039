"""Each claim about the loss is held against its series, by a reader that parses the sentence and shares no code."""

import re
from typing import Any

import numpy as np
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gradcanary_dashboard.analysis import loss as loss_levels
from support.api_answers import column, curve

Floats = NDArray[np.float64]

N = r"(-?[\d,.]+(?:e-?\d+)?)"
SENTENCES = {
    "rose": rf"^the loss rose: {N} before, {N} now$",
    "rose_and_fell": rf"^the loss rose, up to {N}: {N} before, {N} now$",
    "came_back": rf"^the loss spiked to {N} and came back: {N} before, {N} now$",
    "spiked_and_fell": rf"^the loss spiked to {N} and then fell: {N} before, {N} now$",
    "spiked": rf"^the loss spiked to {N}: {N} before, {N} now$",
    "fell": rf"^the loss fell: {N} before, {N} now$",
    "flat": rf"^the loss stayed flat: {N} before, {N} now$",
    "as_before": rf"^the loss is where it was: {N} before, {N} now$",
    "unclear": rf"^the loss: {N} before, {N} now$",
}


def answer(mean: Floats, high: Floats, first: int) -> dict[str, Any]:
    steps = first + np.arange(len(mean), dtype=np.float64)
    metric = {**curve(mean, mean, high), "name": "loss", "tags": {}}
    return {"bucket_steps": 1, "steps": column(steps, "float64"), "metrics": [metric]}


@st.composite
def courses(draw: st.DrawFn) -> tuple[Floats, Floats, Floats, Floats]:
    """Return mean and highest value of a loss before an incident, and since."""
    noise = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    level, spread = draw(st.sampled_from([4e-5, 0.0588, 0.119, 2.31, 4e4])), draw(st.sampled_from([0.0, 0.003, 0.05]))
    before, since = draw(st.integers(40, 400)), draw(st.integers(12, 400))
    course = np.ones(before + since)
    course[:before] += draw(st.sampled_from([0.0, 0.0, 3.0])) * np.exp(-np.arange(before) / 15)
    course[before:] = draw(st.sampled_from([0.5, 0.96, 0.99, 1.0, 1.0, 1.03, 1.2, 50.0]))
    lead, width = draw(st.integers(0, 20)), draw(st.sampled_from([0, 1, 8, 30]))
    there = slice(max(0, before - lead), before - lead + width)
    course[there] = draw(st.sampled_from([0.3, 1.02, 1.3, 40.0, 6e4]))
    mean = level * course * (1 + spread * noise.standard_normal(len(course)))
    high = mean * (1 + draw(st.sampled_from([0.0, 0.2])) * noise.random(len(course)))
    return mean[:before], high[:before], mean[before:], high[before:]


def dipped() -> tuple[Floats, Floats, Floats, Floats]:
    """Return a loss that dips and is where it was: few courses at random do only that."""
    before, since = np.ones(200), np.ones(200)
    since[60:100] = 0.3
    return before, before, since, since


def numbers_of(found: re.Match[str]) -> list[float]:
    return [float(number.replace(",", "")) for number in found.groups()]


def check(told: str, before: Floats, high_before: Floats, since: Floats, high_since: Floats) -> str:
    """Hold a sentence against the series, and return the name of its claim."""
    [(claim, found)] = [(name, found) for name, each in SENTENCES.items() if (found := re.match(each, told))]
    *highest, was, now = numbers_of(found)
    digits = 0.011 if min(was, now) >= 1e-3 and max(was, now, *highest) < 1e6 else 0.11
    tail = slice(max(0, len(before) - 200 - len(before) // 10 - 8), None)
    assert abs(now - np.median(since[-max(8, round(0.05 * len(since))) :])) <= digits * now
    assert (1 - digits) * before[tail].min() <= was <= (1 + digits) * before[tail].max()
    for peak in highest:
        most = max(high_since.max(), high_before[tail].max())
        assert peak <= (1 + digits) * most, "a peak that nothing reached"
        assert peak >= (1 - digits) * high_since.max(), "a higher one was seen"
        assert peak > was
    both = np.concatenate([before[tail], since])
    noise = max(float(np.std(np.diff(both))), 0.02 * was)
    is_near = abs(now - was) <= (0.05 + 2 * digits) * was
    assert {
        "rose": now > was,
        "rose_and_fell": now > was and highest and highest[0] > now,
        "came_back": is_near,
        "spiked_and_fell": now < was,
        "spiked": now > was and not abs(now - was) <= 0.04 * was,
        "fell": now < was,
        "flat": is_near and np.abs(np.median(since) - was) <= 4 * noise + digits * was,
        "as_before": is_near,
        "unclear": True,
    }[claim], claim
    return claim


def test_every_claim_about_a_loss_is_true() -> None:
    used: set[str] = set()

    @settings(max_examples=240, deadline=None, suppress_health_check=list(HealthCheck))
    @given(courses())
    @example(dipped())
    def hold(course: tuple[Floats, Floats, Floats, Floats]) -> None:
        before, high_before, since, high_since = (each.astype(np.float32).astype(np.float64) for each in course)
        told = loss_levels.words(answer(before, high_before, 0), answer(since, high_since, len(before)))
        assert told is not None
        used.add(check(told, before, high_before, since, high_since))

    hold()
    assert used == set(SENTENCES) == set(loss_levels.CLAIMS), "a sentence that no course led to"


def test_a_loss_that_stays_75_times_higher_did_not_come_back() -> None:
    """As in the first trial: 0.0588, then 3,795, then 2.89."""
    noise = np.random.default_rng(0)
    before = 0.0588 * (1 + 0.02 * noise.standard_normal(200))
    since = 2.89 + 0.8 * noise.standard_normal(200)
    since[0:4] = (3795, 900, 60, 9)
    told = loss_levels.words(answer(before, before, 0), answer(since, since, 200))
    assert told is not None
    assert "came back" not in told
    assert "3,795" in told
