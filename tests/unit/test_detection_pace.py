"""A step of a job takes long enough that the time in which messages are gathered hides no false alarm."""

import time
from dataclasses import replace

import pytest

from detection.cases import CASES
from detection.watched import PAUSE_S, PAUSE_STEPS, STEP_S, pace


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return what was slept; the clock goes on by it."""
    sleeps: list[float] = []
    monkeypatch.setattr(time, "sleep", sleeps.append)
    monkeypatch.setattr(time, "monotonic", lambda: sum(sleeps))
    return sleeps


def test_each_step_takes_a_tenth_of_a_second(slept: list[float]) -> None:
    wait = pace(replace(CASES[0], every=1))
    for step in range(50):
        wait(step)
    assert sum(slept) == pytest.approx(50 * STEP_S)


def test_a_step_that_took_longer_is_not_made_up_for(monkeypatch: pytest.MonkeyPatch, slept: list[float]) -> None:
    wait = pace(replace(CASES[0], every=1))
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    wait(0)
    assert slept == [0.0]
    wait(1)
    assert slept[1] == pytest.approx(STEP_S)


def test_where_the_agent_measures_steps_the_job_waits_now_and_then(slept: list[float]) -> None:
    wait = pace(replace(CASES[0], every="auto"))
    for step in range(3 * PAUSE_STEPS):
        wait(step)
    assert slept == [PAUSE_S] * 3
