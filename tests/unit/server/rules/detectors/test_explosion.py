"""Gradients far over what they were: three observations, and how bad it is by the loss."""

import numpy as np
import pytest

from gradcanary_server.rules.config import Explosion, LayerRule, Rules
from gradcanary_server.rules.detectors.explosion import course_before_nonfinite
from support.traces import POST_CLIP, Trace, fired, healthy, launch, run


def exploding(times, start=200, end=None, layer=6, steps=400):
    absmax = healthy(steps)
    absmax[start:end, layer] *= times
    return absmax


def told(changes):
    return [(change.rule, change.layer, change.kind, change.step, change.severity) for change in changes]


def test_three_observations_far_over_the_baseline_warn_and_a_hundred_good_ones_resolve():
    _, changes = run(Trace(exploding(1e3, end=203)))
    assert told(changes) == [("explosion", 6, "fired", 202, "warning"), ("explosion", 6, "resolved", 302, "warning")]
    assert changes[0].since_step == 200
    assert changes[0].value > 100 * changes[0].baseline


@pytest.mark.parametrize(
    ("last", "course"), [((2.0, 50.0, 9e31), "loss_rose"), ((2.1, 1.9, 2.4), "loss_steady"), ((2.0, 8.0, 2.0), None)]
)
def test_course_of_the_loss_before_it_was_not_finite(last, course):
    """As of a recurrence that amplifies, of one log of zero, and of one large batch."""
    known = np.array([*[2.0] * 20, *last, np.nan])
    assert course_before_nonfinite(known) == course
    assert course_before_nonfinite(known[-12:]) is None, "too few"
    assert course_before_nonfinite(-known) is None
    rows = np.concatenate([np.full(100 - len(last), 2.0), last, np.full(50, np.nan)])
    fell = [change for change in run(Trace(healthy(150), loss=rows))[1] if change.rule == "nonfinite"]
    assert [change.evidence for change in fell] == [course]


@pytest.mark.parametrize(("times", "end"), [(1e3, 202), (20, None)])
def test_two_observations_and_twenty_times_are_quiet(times, end):
    assert run(Trace(exploding(times, end=end)))[1] == ()


@pytest.mark.parametrize("every", [10, 100])
def test_three_observations_at_any_interval(every):
    _, changes = run(Trace(exploding(1e3), every=every))
    assert [change.step for change in changes] == [202 * every]


def test_layers_have_limits_of_their_own():
    absmax = exploding(20)
    absmax[200:, 4] *= 1e3
    entries = (LayerRule("2.lora_A", explosion=Explosion(enabled=False)), LayerRule("3", explosion=Explosion(ratio=5)))
    _, changes = run(Trace(absmax), rules=Rules(layers=entries))
    assert set(fired(changes, "explosion")) == {6}
    assert set(fired(run(Trace(absmax))[1], "explosion")) == {4}


def test_a_tiny_layer_that_grows_to_the_size_of_the_others_does_not_explode():
    absmax = healthy(400)
    absmax[:200, 6] *= 1e-6
    assert fired(run(Trace(absmax))[1], "explosion") == {}


def test_explosion_in_grace_uses_the_absolute_limit():
    before, _ = run(Trace(healthy(200)))
    trace = Trace(exploding(1e3, start=0, end=30, steps=60), first=200)
    assert run(trace, launch(number=2, first_step=200), state=before)[1] == ()
    large = Trace(exploding(1e7, start=10, end=30, steps=60))
    assert told(run(large)[1])[0] == ("explosion", 6, "fired", 12, "warning")


@pytest.mark.parametrize("first", [0, 20_000])
def test_over_the_absolute_limit_from_the_first_step_on_is_no_explosion_before_it_rises(first):
    """Errors that are summed over pixels, features as they come; also in the grace of a next launch."""
    absmax = healthy(400, size=1.5e4)
    absmax[0] = 0  # tells nothing
    known, _ = run(Trace(healthy(150, size=1.5e4)))
    state, of = (known, launch(number=2, first_step=first)) if first else (None, launch())
    assert run(Trace(absmax, first=first), of, state=state)[1] == ()
    given = Rules(explosion=Explosion(absmax=5e3))
    assert {change.step - first for change in run(Trace(absmax, first=first), of, given, state)[1]} == {3}
    absmax[30:, 6] *= 30
    assert set(fired(run(Trace(absmax, first=first), of, state=state)[1], "explosion")) == {6}
    absmax[30:] *= 30
    assert len(fired(run(Trace(absmax, first=first), of, state=state)[1], "explosion")) == 16


def test_a_clip_as_watching_begins_does_not_make_what_follows_a_rise():
    absmax, phase = healthy(60, size=1.5e4), POST_CLIP
    absmax[:2] *= 1e-6
    before, _ = run(Trace(absmax[:2], phase=phase))
    assert run(Trace(absmax[2:], first=2), state=before)[1] == ()


def test_exploding_values_set_no_baseline():
    state, changes = run(Trace(exploding(1e3, steps=600)))
    assert [change.kind for change in changes] == ["fired"]
    assert state.verdict(6).baseline < 8e-3


def test_what_rises_beside_an_explosion_of_the_loss_sets_no_baseline():
    """One layer 1,000 times over its level, the others 30 times: a normal level of neither. What falls afterwards
    fell from the level of before."""
    absmax, losses = exploding(1e3, end=350, steps=600), np.full(600, 2.0)
    absmax[200:350, :6] *= 30
    absmax[350:, 2] *= 1e-4
    losses[200:350] = 50.0
    _, changes = run(Trace(absmax, loss=losses), cuts=(225, 340))
    assert {change.rule for change in changes} == {"explosion", "collapse"}, "the rest did not fall: it recovered"
    assert fired(changes)[2].baseline < 8e-3
    losses[200:350] = 2.0
    _, changes = run(Trace(absmax, loss=losses))
    assert fired(changes)[2].baseline > 0.1, "a loss that stays: a new level, with one layer that explodes"


def test_a_layer_that_was_not_finite_sets_no_baseline_until_it_is_well():
    absmax = healthy(600)
    absmax[200:300, 6] *= 30
    absmax[200:300:40, 6] = np.nan
    state, _ = run(Trace(absmax))
    assert state.verdict(6).baseline < 8e-3


@pytest.mark.parametrize(("loss", "severity"), [(15.0, "warning"), (25.0, "critical")])
def test_critical_where_the_loss_is_ten_times_its_level(loss, severity):
    losses = np.full(400, 2.0)
    losses[200:] = loss
    assert {change.severity for change in run(Trace(exploding(1e3), loss=losses))[1]} == {severity}


def test_critical_with_gradients_that_are_not_finite():
    absmax = exploding(1e3)
    absmax[210, 3] = np.nan
    found = [(change.step, change.severity) for change in run(Trace(absmax))[1] if change.rule == "explosion"]
    assert found == [(202, "warning"), (210, "critical")]


def test_clipping_under_an_explosion_raises_no_collapse_elsewhere():
    absmax = exploding(1e3)
    absmax[200:, :6] *= 1e-4
    clipped = np.ones(400)
    assert set(fired(run(Trace(absmax))[1])) == set(range(6))
    assert set(fired(run(Trace(absmax, clipped=clipped))[1])) == set()


def test_the_rule_can_be_moved_and_switched_off():
    assert run(Trace(exploding(1e3)), rules=Rules(explosion=Explosion(enabled=False)))[1] == ()
    assert set(fired(run(Trace(exploding(30)), rules=Rules(explosion=Explosion(ratio=10)))[1], "explosion")) == {6}


@pytest.mark.parametrize("every", [1, 10])
def test_a_slow_explosion_of_all_layers_is_told_though_baselines_rise_with_it(every):
    absmax = healthy(1200, size=0.1)
    absmax[200:] *= 1.025 ** np.arange(1000)[:, None]
    found = fired(run(Trace(absmax, every=every))[1], "explosion")
    assert len(found) == absmax.shape[1]
