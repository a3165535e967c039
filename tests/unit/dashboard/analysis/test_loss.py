"""What the loss did since a layer collapsed, from its numbers."""

import re
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gradcanary_dashboard.analysis import loss as loss_levels
from gradcanary_dashboard.text import numbers
from support.api_answers import column, curve, incident

STEPS = np.arange(0, 1000, 2.0)


def answer(
    loss: NDArray[np.float64], nonfinite_from: int | None = None, steps: NDArray[np.float64] = STEPS, **tags: str
) -> dict[str, Any]:
    bad = np.zeros(len(steps))
    if nonfinite_from is not None:
        bad[nonfinite_from <= steps] = 1
    metric = {**curve(loss, loss, loss, nonfinite=bad), "name": "loss", "tags": tags}
    return {"bucket_steps": 2, "steps": column(steps, "float64"), "metrics": [metric]}


def said(loss: NDArray[np.float64], since: int, **changes: Any) -> str | None:
    """What is said of a loss that is asked for up to a step and since."""
    is_before = since > STEPS
    before, after = (
        answer(loss[is_before], steps=STEPS[is_before], **changes),
        answer(loss[~is_before], steps=STEPS[~is_before], **changes),
    )
    return loss_levels.words(before, after)


def falling(seed: int = 0) -> NDArray[np.float64]:
    return 0.11 + 0.3 * np.exp(-STEPS / 160) + np.random.default_rng(seed).normal(0, 0.004, len(STEPS))


@pytest.mark.parametrize("seed", range(8))
def test_a_loss_that_goes_on_does_not_show_it(seed: int) -> None:
    told = said(falling(seed), 600)
    assert told is not None
    assert told.startswith(("the loss stayed flat: 0.11", "the loss fell: 0.1", "the loss: "))
    assert told.endswith(" now")


def test_a_rise_and_a_bump_are_told_apart() -> None:
    rises = falling() + 0.1 * (STEPS >= 600)
    assert str(said(rises, 600)).startswith("the loss rose: 0.11")
    bump = falling() + 0.05 * np.exp(-((STEPS - 620) ** 2) / 400) * (STEPS >= 600)
    assert "the loss spiked to 0.16" in str(said(bump, 600))


@pytest.mark.parametrize("ahead", [1, 12, 40, 100, 180])
@pytest.mark.parametrize("since", [248, 600, 728])
def test_loss_ahead_of_the_fall_is_no_baseline(since: int, ahead: int) -> None:
    jumped = since - ahead
    level = 0.12 + np.random.default_rng(ahead).normal(0, 0.002, len(STEPS))
    stays = level + 0.38 * (jumped <= STEPS)
    assert str(said(stays, since)).startswith(("the loss rose: 0.11", "the loss rose: 0.12"))
    comes_back = level + 0.05 * (jumped <= STEPS) * (since + 30 > STEPS)
    assert "spiked to 0.17" in str(said(comes_back, since))


@pytest.mark.parametrize("memory", [0.0, 0.9, 0.97])
def test_a_loss_that_wanders_by_itself_is_seldom_called_risen(memory: float) -> None:
    """As a running mean does, which is what many loops log."""
    calm = 0
    for seed in range(50):
        wandering = np.random.default_rng(seed).normal(0, 0.05, len(STEPS))
        for place in range(1, len(STEPS)):
            wandering[place] += memory * wandering[place - 1]
        calm += not re.match("the loss (rose|spiked)", str(said(2 + wandering, 600)))
    assert calm >= 40


@pytest.mark.parametrize("ahead", [30, 300, 1_200])
def test_a_long_run_is_asked_further_ahead(ahead: int) -> None:
    steps = 20.0 * np.arange(617)
    before = np.where(steps < 12_340 - ahead, 0.12, 0.5) + np.random.default_rng(ahead).normal(0, 1e-3, len(steps))
    since = answer(np.full(600, 0.5), steps=12_340 + 2.0 * np.arange(600))
    assert loss_levels.words(answer(before, steps=steps), since) == "the loss rose: 0.12 before, 0.5 now"


@pytest.mark.parametrize("seed", range(8))
def test_single_steps_vary_more_than_the_buckets_they_are_held_against(seed: int) -> None:
    """So soon after the fall of a long run."""
    level = np.full(600, 0.3)
    smooth = answer(level + np.random.default_rng(seed).normal(0, 1e-4, 600), steps=1024.0 * np.arange(600))
    noisy = answer(level + np.random.default_rng(seed + 9).normal(0, 0.01, 600), steps=614_400 + np.arange(600.0))
    assert str(loss_levels.words(smooth, noisy)).startswith("the loss stayed flat: 0.3 before, 0.")


def test_unknown_loss_is_not_described() -> None:
    assert loss_levels.words(None, answer(falling())) is None
    assert loss_levels.words(answer(falling()), None) is None
    assert said(falling(), 600, split="val") is None
    assert said(falling(), 4) is None
    assert said(falling(), 998) is None
    assert said(falling(), 600, nonfinite_from=700) == "the loss is not finite since"


def test_the_level_is_the_number_of_the_headline() -> None:
    since = answer(falling()[300:], steps=STEPS[300:])
    level = loss_levels.level(since)
    assert level is not None
    assert str(said(falling(), 600)).endswith(f", {numbers.scientific(level.value)} now")
    assert (level.value, level.steps) == (pytest.approx(np.median(falling()[-10:])), 20)
    assert loss_levels.level(answer(falling()[:7], steps=STEPS[:7])) is None
    assert loss_levels.level(answer(np.full(len(STEPS), np.nan))) is None


def test_a_loss_that_is_logged_now_and_then_is_told_of_the_steps_it_lies_in() -> None:
    logged = np.where(STEPS % 100 == 0, falling(), np.nan)
    level = loss_levels.level(answer(logged))
    assert level is not None
    assert level.steps == 702, "eight points, from step 200 to the end of the last bucket"


def test_the_worst_incident_says_since_when() -> None:
    fell = incident(31, opened_step=50, layers=[{"since_step": 44}, {"since_step": 31}])
    noted = incident(32, rule="accumulator", severity="information", layers=[{"since_step": 0}])
    assert loss_levels.since([fell, noted]) == 31
    assert loss_levels.since([fell, incident(33, rule="silent", layers=[])]) == 31, "what layers did goes first"
    assert loss_levels.since([incident(33, rule="silent", layers=[])]) is None
    assert loss_levels.since([incident(31, state="resolved", resolution="recovered")]) is None
    assert loss_levels.since([incident(31, state="resolved", resolution="run_finished")]) == 50
    ended = incident(31, state="resolved", resolution="run_finished")
    unused = incident(32, rule="unused", severity="warning", layers=[])
    assert loss_levels.since([ended, unused]) is None, "the headline is of what is open"
    assert loss_levels.since([]) is None


def test_the_first_loss_is_told_beside_the_last() -> None:
    assert loss_levels.first(answer(np.full(len(STEPS), 0.25))) == "0.25 mean of the first 2 steps"
    assert loss_levels.first(answer(np.full(len(STEPS), np.nan))) == ""
