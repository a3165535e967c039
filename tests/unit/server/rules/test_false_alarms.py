"""Healthy or otherwise explained: each of these once raised a false alarm."""

from dataclasses import replace

import numpy as np
import pytest

from gradcanary_server.rules.config import Collapse, LayerRule, Rules
from gradcanary_server.rules.evaluator import evaluate
from gradcanary_server.rules.types import LayerFacts
from support.traces import Trace, fired, healthy, launch, lora, run


def strangers(count: int) -> tuple[LayerFacts, ...]:
    return tuple(LayerFacts(n, f"{chr(97 + n)}.weight", (8, 128), "float32", "Linear", 0) for n in range(count))


@pytest.mark.parametrize("layers", [lora(), strangers(16)])
def test_unused_zeros_are_neither_a_fall_nor_far_under_siblings(layers):
    absmax = healthy(300)
    absmax[:, 5] = 0
    assert [change.rule for change in run(Trace(absmax), launch(layers))[1]] == ["unused"]


@pytest.mark.parametrize("skipped", [1, 2])
def test_the_loss_of_a_skipped_step_does_not_make_an_explained_drop_worse(skipped):
    absmax, loss, skips = healthy(400), np.full(400, 2.0), np.zeros(400)
    absmax[150:] *= 1e-3
    loss[150:] = 2e-3
    loss[250], skips[250] = np.inf, skipped
    _, changes = run(Trace(absmax, loss=loss, skipped=skips))
    assert [change.severity for change in changes if change.rule == "scale_drop"] == ["information"]


def test_severity_of_a_scale_drop_does_not_rise_by_a_few_noisy_steps():
    absmax, loss = healthy(500), np.full(500, 2.0)
    absmax[150:] *= 1e-2
    loss[150:] = 0.1  # 1.3 decades of 2
    absmax[300:310] *= 1e-2  # ten steps whose common fall is 4
    _, changes = run(Trace(absmax, loss=loss))
    assert [change.severity for change in changes] == ["information"]


def test_convergence_at_the_border_of_explained_is_information():
    random, rows = np.random.default_rng(1), 3_000
    way = np.minimum(1, np.linspace(0, 2, rows))
    absmax = healthy(rows) * (10 ** (-2.0 * way + random.normal(0, 0.1, rows)))[:, None]
    loss = 2 * 10 ** (-1.05 * way + random.normal(0, 0.05, rows))
    assert {change.severity for change in run(Trace(absmax, loss=loss))[1]} <= {"information"}


def test_layers_under_enter_at_their_best_do_not_collapse_together():
    absmax = healthy(300, size=5e-5)
    absmax[150:] *= 1e-3
    assert run(Trace(absmax))[1] == ()


def test_a_common_fall_names_no_layer_for_being_under_its_siblings():
    absmax = healthy(300, size=0.5)
    absmax[:, 0] /= 200
    absmax[150:] *= 1e-3
    _, changes = run(Trace(absmax))
    assert {change.rule for change in changes} == {"scale_drop"}


def test_the_last_of_a_long_row_are_not_apart():
    """Most layers are a decade down, a few of them two, and a few none: how far each falls as a job converges."""
    absmax = healthy(500)
    absmax[200:] *= 10 ** -np.r_[0.3, 0.4, np.linspace(0.9, 1.8, 14)]
    absmax[:, 12:] /= 10
    assert run(Trace(absmax))[1] == ()
    absmax[300:, 3] *= 1e-2
    assert set(fired(run(Trace(absmax))[1])) == {3}


def test_layers_that_often_are_exactly_zero_do_not_hide_one_that_fell():
    """Of most layers one step in three is zero: no fall, and nothing to measure another one's by."""
    absmax = healthy(600)
    absmax[:, 6:][np.random.default_rng(1).random((600, 10)) < 0.3] = 0
    absmax[300:, 7:] = 0
    absmax[300:, 3] *= 1e-3
    assert set(fired(run(Trace(absmax))[1])) == {3}


def test_fallen_layer_of_two_is_named():
    absmax = healthy(300, 2)
    absmax[150:, 0] *= 1e-3
    _, changes = run(Trace(absmax), launch(strangers(2)))
    assert {(change.rule, change.layer) for change in changes} == {("collapse", 0)}


def test_counts_that_did_not_fire_end_with_their_launch():
    absmax = healthy(165)
    absmax[150:, 3] *= 1e-3
    before, _ = run(Trace(absmax))
    assert before.verdict(3).rules == {"collapse": "suspect"}
    low = healthy(80)
    low[:, 3] *= 1e-3
    _, changes = run(Trace(low, first=100), launch(number=2, first_step=100), state=before)
    assert all(change.since_step >= 100 for change in changes)
    assert fired(changes)[3].step >= 119


def test_exactly_the_threshold_is_not_under_it():
    absmax = np.full((300, 16), np.float32(1e-4), np.float64)
    state, changes = run(Trace(absmax), launch(absmax_below=1e-4))
    assert changes == ()
    assert state.below_threshold_count() == 0


def test_skipped_windows_do_not_end_the_warm_up():
    lr = np.minimum(np.arange(120) + 1, 1_000)[:, None] * 1e-6
    skipped = np.zeros(120)
    skipped[70], lr[70] = 1, lr[69]
    assert not run(Trace(healthy(120), lr=lr, skipped=skipped))[0].progress.grace_over


def test_a_layer_that_is_switched_off_is_not_low():
    rules = Rules(layers=(LayerRule("lora_A", Collapse(enabled=False)),))
    assert run(Trace(healthy(30, size=1e-8)), rules=rules)[0].below_threshold_count() == 8


def test_losses_out_of_order_count_by_their_steps():
    samples = Trace(healthy(100), loss=np.linspace(1, 2, 100)).samples()
    mixed = np.random.default_rng(0).permutation(100)
    other = replace(samples, loss_steps=samples.loss_steps[mixed], loss=samples.loss[mixed])
    empty = run(Trace(healthy(0)))[0]
    one, two = (evaluate(empty, launch(), each, Rules())[0].pack() for each in (samples, other))
    assert one == two


@pytest.mark.parametrize(("each", "fires"), [(20, False), (5, False), (2, True)])
@pytest.mark.parametrize(("layer", "size", "dip"), [(3, 2.5e-4, 1e-2), (5, 8e-5, 0.25)])
def test_bad_steps_now_and_then_do_not_add_up_in_a_layer_that_is_never_over_exit(layer, size, dip, each, fires):
    """By its own fall, and by its siblings."""
    absmax = healthy(1_000)
    absmax[:, layer] = np.where(np.arange(1_000) % each, size, size * dip)
    _, changes = run(Trace(absmax))
    assert set(fired(changes)) == ({layer} if fires else set())
