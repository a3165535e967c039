"""Each rule's worst days, folded, recorded and told on a virtual clock: how many messages people get."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradcanary_server.rules.config import Pace
from gradcanary_server.rules.signals import RULES
from gradcanary_server.rules.types import Transition
from support.server.faults import BEFORE, FAULTS, OF_RUN
from support.traces import Trace, healthy, launch, lora
from support.virtual_people import People, live

DAY = 86_400.0
PACE = Pace()
LAYERS, SPARED = 330, 30
"""Thirty layers are well: what all have in common is no fault of a layer."""

RULE = {fault: fault.split(",")[0] for fault in FAULTS}


def lived(fault, bad, *, every=1, step_s=1.0, batch=64):
    """Return who heard what of a fault; ``bad`` bool[rows, layers] follows 260 healthy rows."""
    people = People(layers=bad.shape[1])
    trace = FAULTS[fault](np.vstack([np.zeros((BEFORE, bad.shape[1]), np.bool_), bad]), every)
    live(trace, launch(lora(bad.shape[1] // 2)), people, step_s=step_s, batch=batch)
    return people


def check(people, layers):
    """What holds of the messages of any day: docs/explanation/incidents.md."""
    for number, case in people.cases.items():
        mine, what = [each for each in people.messages if each.incident == number], case.incident
        for before, after in pairwise(mine):
            assert after.at - before.at >= PACE.interval_s * 2 ** min(after.reopened, 5) * (1 - 1e-9)
        kinds = [each.kind for each in mine]
        assert kinds.count("opened") <= 1
        assert not kinds or kinds[0] == "opened"
        rises = len({each.severity for each in mine})
        assert kinds.count("grew") <= math.log2(layers) + rises
        if mine and what.state == "resolved":
            assert (mine[-1].kind, mine[-1].ever) == ("resolved", what.ever_firing)
        elif mine:
            assert mine[-1].state == "open"
        else:
            assert what.state == "resolved" or what.severity == "information"


@pytest.mark.parametrize("fault", FAULTS)
def test_three_hundred_layers_at_once_are_one_message_and_one_when_it_is_over(fault):
    bad = np.zeros((440, LAYERS), np.bool_)
    bad[:60, SPARED:] = True
    people = lived(fault, bad)
    people.wait(DAY)
    check(people, LAYERS)
    assert [(each.kind, each.state) for each in people.messages] == [("opened", "open"), ("resolved", "resolved")]
    assert {each.ever for each in people.of(RULE[fault])} == {0 if fault in OF_RUN else LAYERS - SPARED}


def test_three_hundred_layers_that_never_had_a_gradient_are_one_message():
    absmax, people = healthy(600, LAYERS), People(layers=LAYERS)
    absmax[:, SPARED:] = -1
    live(Trace(absmax), launch(lora(LAYERS // 2)), people, step_s=1, batch=64)
    people.wait(3 * DAY)
    assert [(each.kind, each.ever) for each in people.of("unused")] == [("opened", LAYERS - SPARED)]


@pytest.mark.parametrize("fault", [each for each in FAULTS if each not in OF_RUN])
def test_layers_that_fail_one_after_the_other_are_a_few_messages(fault):
    """64 of 80 layers, one each ten minutes, for half a day."""
    layers, steps_between = 80, 8
    rows = np.arange(64 * steps_between + 40)[:, None]
    turn = np.where(np.arange(layers) < 16, len(rows), steps_between * (np.arange(layers) - 16))
    people = lived(fault, rows >= turn, every=10, step_s=7.5, batch=8)
    people.wait(PACE.interval_s)
    check(people, layers)
    mine = people.of(RULE[fault])
    assert len(people.messages) == len(mine) <= 1 + math.log2(64)
    assert mine[-1].ever >= 32


@pytest.mark.parametrize("fault", FAULTS)
def test_six_days_of_flapping_are_few_messages(fault):
    """Two hours bad, two hours good, seen each twenty minutes."""
    bad = np.zeros((6 * 6, 12, 48), np.bool_)
    bad[:, :6, :40] = True
    people = lived(fault, bad.reshape(-1, 48), every=100, step_s=12, batch=6)
    people.wait(2 * DAY)
    check(people, 48)
    assert 2 <= len(people.messages) <= 24


@settings(max_examples=25)
@given(st.data(), st.sampled_from(sorted(RULES)))
def test_three_hundred_layers_that_trickle_in_are_one_opened_and_at_most_eight_more(data, rule):
    people, severities = People(), sorted({each.severity for each in RULES[rule]})
    severity = data.draw(st.sampled_from(severities))
    names = ("information", "warning", "critical")
    arrive = np.sort(np.random.default_rng(data.draw(st.integers(0, 99))).uniform(0, DAY / 2, 300))
    for layer, (moment, before) in enumerate(zip(arrive, [0.0, *arrive], strict=False)):
        people.wait(moment - before)
        people.change(Transition(layer, rule, layer, "fired", names[severity], layer))
    people.wait(PACE.interval_s)
    check(people, 300)
    kinds = [each.kind for each in people.messages]
    assert kinds in ([], ["opened", *["grew"] * (len(kinds) - 1)])
    assert len(kinds) <= 1 + math.log2(300)
    assert (kinds == []) == (severity == 0)
