"""What the command whatif makes of a run, a schedule and the settings, before it prints."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gradcanary_server.errors import ScheduleError
from gradcanary_server.ops import schedules, whatif_command
from gradcanary_server.ops.whatif import History, Steps
from gradcanary_server.ops.whatif_command import Question

HISTORY = History(
    layers=(),
    optimizers=(),
    first_step=0,
    steps=np.arange(100),
    spans=np.full(100, 50),
    rates=np.where(np.arange(100) < 50, 1e-3, 5e-4)[:, None],
    level_steps=np.empty(0, np.int64),
    levels=np.empty((0, 0)),
    series={},
)
QUESTION = Question("run", "lr / 5", None, None, None, 1e-4)


def setting(name: str, value: object, step: int = 0, groups: tuple[int, ...] = (0,)) -> dict[str, Any]:
    return {"step": step, "checked": step - 1 if step else None, "groups": [*groups], "name": name, "value": value}


def test_only_decoupled_weight_decay_shrinks_weights() -> None:
    kind = setting("optimizer", "AdamW", groups=(0, 1))
    decays = [setting("weight_decay", 0.1), setting("weight_decay", 0.0, groups=(1,)), setting("weight_decay", 9.0, 70)]
    assert whatif_command.find_decays([kind, *decays]) == ((0, 0.1), (70, 9.0))
    assert whatif_command.find_decays([{**kind, "value": "Adam"}, *decays]) == ()
    flag = setting("decoupled_weight_decay", True)
    assert whatif_command.find_decays([{**kind, "value": "Adam"}, flag, *decays]) == ((0, 0.1), (70, 9.0))


@pytest.mark.parametrize(
    ("first", "last", "begin", "start", "before", "after"),
    [
        (None, None, 100, 100, 5e-4, 1e-4),
        (50, 60, 50, 50, 1e-3, 2e-4),
        (150, 200, 150, 100, 5e-4, 1e-4),  # until there the last rate stays
    ],
)
def test_a_schedule_follows_the_rates_before_it(
    first: int | None, last: int | None, begin: int, start: int, before: float, after: float
) -> None:
    question = replace(QUESTION, first=first, last=last)
    steps, rates, found = whatif_command.follow(HISTORY, question, schedules.load("lr / 5"))
    assert (found, steps[0], steps[-1]) == (begin, start, begin + 10_000 if last is None else last)
    assert rates[steps < begin, 0] == pytest.approx(before)
    assert rates[steps >= begin, 0] == pytest.approx(after)


def test_a_long_schedule_is_computed_at_some_of_its_steps() -> None:
    steps, _, begin = whatif_command.follow(HISTORY, replace(QUESTION, last=10**9), schedules.load("lr"))
    assert len(steps) <= whatif_command.GRID + 1
    assert begin in steps
    assert steps[-1] == 10**9


@pytest.mark.parametrize(("first", "last"), [(0, None), (200, 200), (None, 100)])
def test_steps_that_cannot_be_are_refused(first: int | None, last: int | None) -> None:
    with pytest.raises(ScheduleError, match=r"--from 0: the first sample|does not come after step"):
        whatif_command.follow(HISTORY, replace(QUESTION, first=first, last=last), schedules.load("lr"))


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        (Steps(12_900, 14_200, 15_800), "14,200 (12,900 to 15,800)"),
        (Steps(12_900, 14_200, None), "14,200 (12,900 to never)"),
        (Steps(600, 600, 600), "600"),
        (Steps(600, None, None), "perhaps from 600"),
        (Steps(None, None, None), "-"),
    ],
)
def test_a_range_is_words(steps: Steps, text: str) -> None:
    assert whatif_command._range(steps) == text
