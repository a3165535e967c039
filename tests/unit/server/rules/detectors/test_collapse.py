"""Collapse by fall: what fires, when, and what stays quiet."""

import numpy as np
import pytest

from gradcanary_server.rules.config import Collapse, LayerRule, Rules
from support.traces import Trace, fired, healthy, launch, lora, run

FAULT = 200
FALLEN = (6, 8, 10)


def falling(absmax: np.ndarray, factor: float, over: int, layers=FALLEN, at: int = FAULT) -> np.ndarray:
    """Let some layers fall by a factor, evenly in decades over so many rows."""
    absmax = absmax.copy()
    share = np.clip((np.arange(len(absmax)) - at) / over, 0, 1) if over > 1 else np.arange(len(absmax)) >= at
    absmax[:, layers] *= (factor ** -share.astype(float))[:, None]
    return absmax


def true_step(absmax: np.ndarray, layers=FALLEN, enter: float = 1e-4) -> int:
    """The first row from which the first of these layers stays under ``enter``."""
    return min(int(np.flatnonzero(absmax[:, layer] >= enter).max()) + 1 for layer in layers)


def test_sudden_fall_like_the_demo_names_exactly_the_layers():
    absmax = falling(healthy(400), 5e3, 20)
    _, changes = run(Trace(absmax))
    found = fired(changes)
    assert set(found) == set(FALLEN)
    assert min(change.step for change in found.values()) - true_step(absmax) <= 30
    assert {(change.evidence, change.severity) for change in found.values()} == {("fall", "critical")}
    assert all(3e-3 < change.baseline < 8e-3 and change.value < 1e-4 for change in found.values())


@pytest.mark.parametrize("over", [1, 1_000])
@pytest.mark.parametrize("factor", [100, 300, 1000])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_falls_of_every_size_and_speed_are_named(factor, over, seed):
    # A fall of 100x from 5e-3 ends at 5e-5, within the noise of enter: that is the smallest one that is a collapse.
    absmax = falling(healthy(FAULT + over + 150, seed=seed), factor, over)
    _, changes = run(Trace(absmax))
    found = fired(changes)
    assert set(found) == set(FALLEN)
    assert max(change.step for change in found.values()) < FAULT + over + 100


@pytest.mark.parametrize(("every", "over"), [(10, 5_000), (10, 20_000), (100, 20_000)])
def test_slow_falls_are_seen_on_coarse_samples(every, over):
    at = 2_200 // every
    absmax = falling(healthy((over + 6_000) // every), 1_000, over // every, at=at)
    _, changes = run(Trace(absmax, every=every))
    assert set(fired(changes)) == set(FALLEN)


@pytest.mark.parametrize("every", [10, 100])
def test_five_observations_fire_and_five_resolve(every):
    absmax = healthy(60)
    absmax[30:50, 6] *= 1e-3
    _, changes = run(Trace(absmax, every=every))
    resolves = 5 if every >= 20 else 10
    assert [(c.kind, c.step) for c in changes] == [("fired", 34 * every), ("resolved", (49 + resolves) * every)]


def test_fall_of_ten_stays_above_enter_and_is_quiet():
    _, changes = run(Trace(falling(healthy(500), 10, 1)))
    assert changes == ()


def test_healthy_lora_start_is_quiet():
    absmax = healthy(600)
    absmax[0, ::2] = 0
    absmax[1:40, ::2] *= np.logspace(-5, 0, 39)[:, None]
    state, changes = run(Trace(absmax))
    assert changes == ()
    assert state.below_threshold_count() == 0


def test_small_from_the_first_step_is_low_and_no_more():
    absmax = healthy(600)
    absmax[:, [1, 3, 5]] = healthy(600, 3, size=1e-8)
    layers = lora()
    unlike = tuple(
        type(each)(each.number, f"part{'abcdefghijklmnop'[each.number]}", each.shape, "float32", None, 0)
        for each in layers
    )
    state, changes = run(Trace(absmax), launch(unlike))
    assert changes == ()
    assert state.below_threshold_count() == 3
    assert state.verdict(1).below_threshold
    assert not state.verdict(0).below_threshold


def test_always_exactly_zero_is_no_fall():
    absmax = healthy(400)
    absmax[:, :16:2] = 0
    state, changes = run(Trace(absmax))
    assert {change.rule for change in changes} == {"unused"}
    assert state.verdict(0).baseline is None


def test_low_stays_while_a_layer_is_not_seen():
    absmax = healthy(30, size=1e-8)
    absmax[20:] = -1
    state, _ = run(Trace(absmax))
    assert state.below_threshold_count() == 16


def test_fall_to_exact_zero_fires():
    absmax = healthy(300)
    absmax[200:, 4] = 0
    _, changes = run(Trace(absmax))
    assert set(fired(changes)) == {4}


def test_flapping_fires_when_more_than_a_third_is_bad():
    absmax = healthy(800)
    absmax[200::2, 6] *= 1e-3  # half
    absmax[200::4, 8] *= 1e-3  # a quarter
    _, changes = run(Trace(absmax))
    assert 6 in fired(changes)
    assert 8 not in fired(changes)


def test_dips_of_one_step_are_quiet():
    absmax = healthy(800)
    absmax[210::13, 6] = 0
    assert run(Trace(absmax))[1] == ()


def test_wandering_around_enter_is_quiet():
    absmax = healthy(1_000)
    absmax[:, 6] = healthy(1_000, 1, seed=3, size=1e-4)[:, 0]
    assert run(Trace(absmax))[1] == ()


def test_collapse_does_not_recover_by_one_batch_or_between_the_limits():
    absmax = healthy(700)
    absmax[200:, 6] = 2e-6
    absmax[215, 6] = 5e-3
    absmax[300:, 6] = 2e-4
    _, changes = run(Trace(absmax))
    assert [(change.kind, change.step, change.since_step) for change in changes] == [("fired", 221, 200)]


def test_recovery_takes_a_hundred_good_steps():
    absmax = healthy(500)
    absmax[200:240, 6] *= 1e-3
    _, changes = run(Trace(absmax))
    assert [(change.kind, change.step) for change in changes] == [("fired", 219), ("resolved", 339)]


def test_baseline_never_follows_down():
    # Five decades over 4,000 steps: a moving average would follow it all the way.
    absmax = falling(healthy(4_500), 1e5, 4_000)
    state, changes = run(Trace(absmax))
    assert set(fired(changes)) == set(FALLEN)
    assert all(3e-3 < state.verdict(layer).baseline < 8e-3 for layer in FALLEN)


def test_38_of_40_at_once_are_named():
    absmax = healthy(300, 40)
    absmax[200:, 2:] *= 1e-3
    _, changes = run(Trace(absmax), launch(lora(20)))
    assert {(change.layer, change.rule) for change in changes} == {(layer, "collapse") for layer in range(2, 40)}
    assert max(change.step for change in changes) <= 221


@pytest.mark.parametrize(("warm", "quiet_until"), [(400, 400), (3_000, 1_000)])
def test_grace_lasts_while_the_learning_rate_rises_at_most_1000_steps(warm, quiet_until):
    rows = quiet_until + 200
    lr = np.minimum(np.arange(rows) + 1, warm)[:, None] * 1e-6
    before, _ = run(Trace(healthy(quiet_until + 40), lr=lr[: quiet_until + 40]))
    after, _ = run(Trace(healthy(rows), lr=lr))
    assert before.verdict(0).baseline is None
    assert after.verdict(0).baseline is not None


def test_an_unknown_learning_rate_does_not_end_the_warm_up():
    lr = (np.arange(200.0) + 1)[:, None] * 1e-6
    lr[60:90:2] = np.nan
    state, _ = run(Trace(healthy(120), lr=lr))
    assert not state.progress.grace_over
    never, _ = run(Trace(healthy(60), lr=np.full((60, 1), np.nan)))
    assert never.progress.grace_over


def test_a_layer_that_is_switched_off_says_nothing():
    rules = Rules(layers=(LayerRule(r"blocks\.3\.", Collapse(enabled=False)),))
    _, changes = run(Trace(falling(healthy(400), 1e3, 1)), rules=rules)
    assert set(fired(changes)) == {8, 10}
