"""What the loss did since a layer collapsed, from its numbers."""

from typing import Any

import numpy as np
import pytest
from api_answers import column, curve, incident
from numpy.typing import NDArray

from gradcanary_dashboard import loss_words

STEPS = np.arange(0, 1000, 2.0)


def answer(loss: NDArray[np.float64], nonfinite_from: int | None = None, **tags: str) -> dict[str, Any]:
    bad = np.zeros(len(STEPS))
    if nonfinite_from is not None:
        bad[nonfinite_from <= STEPS] = 1
    metric = {**curve(loss, loss, loss, nonfinite=bad), "name": "loss", "tags": tags}
    return {"bucket_steps": 2, "steps": column(STEPS, "float64"), "metrics": [metric]}


def falling(seed: int = 0) -> NDArray[np.float64]:
    return 0.11 + 0.3 * np.exp(-STEPS / 160) + np.random.default_rng(seed).normal(0, 0.004, len(STEPS))


@pytest.mark.parametrize("seed", range(8))
def test_a_loss_that_goes_on_does_not_show_it(seed: int) -> None:
    said = loss_words.words(answer(falling(seed)), 600)
    assert said is not None
    assert said.startswith(("the loss does not show it: 0.11", "the loss does not show it: 0.12"))
    assert said.endswith(" now")


def test_a_rise_and_a_bump_are_told_apart() -> None:
    rises = falling() + 0.1 * (STEPS >= 600)
    assert str(loss_words.words(answer(rises), 600)).startswith("the loss rose: 0.11")
    bump = falling() + 0.05 * np.exp(-((STEPS - 620) ** 2) / 400) * (STEPS >= 600)
    assert "the loss bumped and came back: 0.16" in str(loss_words.words(answer(bump), 600))


def test_what_cannot_be_told_is_not_said() -> None:
    assert loss_words.words(None, 600) is None
    assert loss_words.words(answer(falling()), None) is None
    assert loss_words.words(answer(falling(), split="val"), 600) is None
    assert loss_words.words(answer(falling()), 4) is None
    assert loss_words.words(answer(falling()), 998) is None
    assert loss_words.words(answer(falling(), nonfinite_from=700), 600) == "the loss is not finite since"


def test_the_worst_incident_says_since_when() -> None:
    fell = incident(31, opened_step=50, layers=[{"since_step": 44}, {"since_step": 31}])
    noted = incident(32, rule="accumulator", severity="information", layers=[{"since_step": 0}])
    assert loss_words.since([fell, noted]) == 31
    assert loss_words.since([fell, incident(33, rule="silent", layers=[])]) is None
    assert loss_words.since([incident(31, state="resolved", resolution="recovered")]) is None
    assert loss_words.since([incident(31, state="resolved", resolution="run_finished")]) == 50
    assert loss_words.since([]) is None


def test_the_first_loss_is_told_beside_the_last() -> None:
    assert loss_words.first(answer(np.full(len(STEPS), 0.25))) == "0.25 mean of the first 2 steps"
    assert loss_words.first(answer(np.full(len(STEPS), np.nan))) == ""
