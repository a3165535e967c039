"""Low-precision weights that hardly move, and a loss that stands still with them: a training in vain."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradcanary_server.rules.config import InVain, Rules
from gradcanary_server.rules.detectors.in_vain import FLAT, is_flat, level_of
from support.traces import Trace, healthy, run

STEPS, LAYERS = 400, 16


def shares(at, layers=range(LAYERS), turn=8, steps=STEPS):
    """Return the shares of eight layers in turns, each 50 steps: ``at`` gives the share by step."""
    values = np.full((steps, LAYERS), np.nan)
    for number, step in enumerate(range(100, steps, 50)):
        some = [layers[(number * turn + each) % len(layers)] for each in range(min(turn, len(layers)))]
        values[step, some] = at(step)
    return {"frozen_fraction": values}


def flat(level=5.4, noise=0.1, steps=STEPS, seed=0):
    return level + noise * np.random.default_rng(seed).normal(size=steps)


def in_vain(at=lambda _: 0.98, loss=None, lr=None, rules=None, layers=range(LAYERS), **changes):
    trace = Trace(
        healthy(STEPS),
        loss=flat() if loss is None else loss,
        lr=None if lr is None else lr[:, None],
        values=shares(at, layers),
        **changes,
    )
    return [change for change in run(trace, rules=rules)[1] if change.rule == "in_vain"]


def test_most_weights_stand_still_and_the_loss_with_them():
    found = in_vain()
    assert {change.layer for change in found} == set(range(LAYERS))
    assert {(change.severity, change.evidence, change.since_step) for change in found} == {("critical", "rounded", 50)}
    assert min(change.step for change in found) == 150
    assert [change.value for change in found] == pytest.approx([0.98] * LAYERS)
    assert {(change.baseline, change.siblings) for change in found} == {(None, None)}, "those are of gradients"


def test_clipping_is_told_with_it():
    found = in_vain(clipped=np.ones(STEPS))
    assert {change.evidence for change in found} == {"clipped"}


def test_few_layers_take_a_second_round():
    found = in_vain(layers=[3, 5])
    assert {(change.layer, change.step) for change in found} == {(3, 150), (5, 150)}


@pytest.mark.parametrize(
    ("what", "changes"),
    [
        ("weights move", {"at": lambda _: 0.94}),
        ("the loss falls", {"loss": flat() - 0.005 * np.arange(STEPS)}),
        ("the loss rises", {"loss": flat() + 0.005 * np.arange(STEPS)}),
        ("the loss is too noisy to tell", {"loss": flat(noise=2.0)}),
        ("the loss is zero", {"loss": flat(level=0.0)}),
        ("the loss is not finite", {"loss": np.full(STEPS, np.nan)}),
        ("the rate rises", {"lr": np.arange(1, STEPS + 1) * 1e-7}),
        ("the rate is over", {"lr": np.where(np.arange(STEPS) < 60, 1e-3, 9e-5)}),
        ("the rate is not known", {"lr": np.full(STEPS, np.nan)}),
        ("the rule is off", {"rules": Rules(in_vain=InVain(enabled=False))}),
        ("it takes longer", {"rules": Rules(in_vain=InVain(steps=2000))}),
    ],
)
def test_quiet_where(what, changes):
    assert in_vain(**changes) == [], what


def test_a_loss_that_is_not_known_says_nothing():
    assert in_vain(loss=np.empty(0)) == []


def test_the_comparison_begins_when_weights_stop():
    """The loss fell as long as they moved; from step 200 on both stand still."""
    loss = flat() + 0.01 * np.maximum(200 - np.arange(STEPS), 0)
    found = in_vain(at=lambda step: 0.5 if step <= 200 else 0.99, loss=loss)
    assert found
    assert min(change.since_step for change in found) >= 150
    assert min(change.step for change in found) >= 300


def test_five_measurements_of_weights_that_move_again_resolve():
    values = shares(lambda step: 0.98 if step <= 200 else 0.3, layers=[3, 5], steps=800)
    _, changes = run(Trace(healthy(800), loss=flat(steps=800), values=values))
    resolved = [change for change in changes if change.rule == "in_vain" and change.kind == "resolved"]
    assert {(change.layer, change.step) for change in resolved} == {(3, 450), (5, 450)}


@given(cuts=st.lists(st.integers(1, STEPS - 1), max_size=6))
def test_any_cut_has_the_same_result(cuts):
    trace = Trace(healthy(STEPS), loss=flat(), values=shares(lambda _: 0.98))
    assert run(trace, cuts=tuple(cuts))[1] == run(trace)[1]


losses = st.lists(st.floats(-1e6, 1e6), min_size=25, max_size=50).map(np.array)


@given(before=losses, after=losses)
def test_a_flat_loss_changed_by_less_than_said(before, after):
    if is_flat(level_of(before), level_of(after)):
        assert abs(np.median(after) - np.median(before)) < FLAT * abs(np.median(before))


@given(before=losses, factor=st.floats(1e-3, 1e3), seed=st.integers(0, 100))
def test_flatness_is_of_the_shape(before, factor, seed):
    """Neither the unit of the loss nor the order of its values counts."""
    after = np.random.default_rng(seed).permutation(before)
    assert is_flat(level_of(before), level_of(after)) == is_flat(level_of(before * factor), level_of(after * factor))


@given(level=st.floats(0.1, 10), fall=st.floats(2 * FLAT, 0.9), seed=st.integers(0, 1000))
def test_a_loss_that_falls_is_not_flat(level, fall, seed):
    random = np.random.default_rng(seed)
    before = level * (1 + 0.05 * random.normal(size=50))
    after = level * (1 - fall) * (1 + 0.05 * random.normal(size=50))
    assert not is_flat(level_of(before), level_of(after))
