"""Collapse by siblings, by lateness and by a threshold; what clipping, skipping and partial samples may feed."""

from dataclasses import replace

import numpy as np
import pytest

from gradcanary_server.rules.config import Collapse, LayerRule, Rules
from gradcanary_server.rules.layer_config import compile_rules
from gradcanary_server.rules.types import Jump
from support.traces import ACCUMULATED, NONFINITE, PARTIAL, POST_CLIP, Trace, fired, healthy, launch, lora, run


def small(rows: int = 300, layers=(2, 4), size: float = 1e-6) -> np.ndarray:
    absmax = healthy(rows)
    absmax[:, layers] = healthy(rows, len(layers), seed=9, size=size)
    return absmax


def test_far_under_siblings_from_the_start_is_a_warning():
    _, changes = run(Trace(small()))
    found = fired(changes)
    assert set(found) == {2, 4}
    assert {(c.evidence, c.severity, c.step) for c in found.values()} == {("siblings", "warning", 19)}
    assert all(c.siblings > 1e-3 for c in found.values())


def test_a_warning_becomes_critical_with_an_own_fall():
    absmax = healthy(600)
    absmax[:, 2] = healthy(600, 1, size=5e-5)[:, 0] * 0.4  # under siblings by 2.4 decades, above nothing
    absmax[300:, 2] *= 1e-3
    _, changes = run(Trace(absmax))
    assert [(c.layer, c.severity, c.evidence) for c in changes] == [
        (2, "warning", "siblings"),
        (2, "critical", "fall"),
    ]


def test_three_siblings_are_too_few():
    absmax = small(layers=(2,))[:, :6]
    assert run(Trace(absmax), launch(launch().layers[:6]))[1] == ()


def of_family(levels: list[float], rows: int = 300) -> np.ndarray:
    """A family of lora_A, one level each, and healthy lora_B."""
    absmax = healthy(rows, 2 * len(levels))
    absmax[:, ::2] *= np.array(levels) / 5e-3
    return absmax


def named(levels: list[float], rows: int = 300, **changes) -> set[int]:
    """Return the members of the family that are named for being under their siblings."""
    _, found = run(Trace(of_family(levels, rows), **changes), launch(lora(len(levels))))
    assert {(change.rule, change.evidence, change.severity) for change in found} <= {
        ("collapse", "siblings", "warning")
    }
    return {change.layer // 2 for change in found}


def test_most_of_a_family_can_be_sick():
    assert named([1e-7] * 18 + [4e-3] * 3) == {*range(18)}
    _, changes = run(Trace(of_family([1e-7] * 18 + [4e-3] * 3)), launch(lora(21)))
    assert {change.step for change in changes} == {69}, "20 steps after grace"
    assert all(change.siblings > 3e-3 for change in changes)


def test_all_layers_whose_gradient_is_lost_with_depth_are_named():
    levels = 10.0 ** -np.linspace(11, 2, 16)  # 0.25 for each sigmoid
    # All that are low, and two decades under the best but one, not only those under the upper quartile.
    assert named(levels.tolist()) == {*range(11)}


@pytest.mark.parametrize(
    "levels",
    [
        [1e-2, *[1e-6] * 11],  # the first block of a transformer: one alone may be the odd one
        [*[3e-5] * 8, *[3e-3] * 4],  # layers of one model differ by two decades
        [*[1e-11] * 10, 1e-7, 1e-7],  # biases of keys: all are rounding errors
        [0.0] * 6 + [1e-5, 1e-2, 1e-2],  # experts that were not asked
    ],
)
def test_healthy_families_are_quiet(levels):
    absmax = of_family(levels)
    assert not fired(run(Trace(absmax), launch(lora(len(levels))))[1])


def test_gradients_may_take_all_of_grace_to_reach_the_first_layers():
    absmax = of_family([1e-7] * 12 + [1e-4] * 2 + [4e-3] * 2)
    absmax[60:, :24:2] *= 1e4
    assert not fired(run(Trace(absmax), launch(lora(16)))[1])


def test_attach_to_a_running_job_informs_once():
    absmax = healthy(400, size=1e-6)
    state, changes = run(Trace(absmax, first=12_000), launch(first_step=12_000, late=True))
    assert {(c.layer, c.severity, c.evidence) for c in changes} == {
        (n, "information", "joined_late") for n in range(16)
    }
    assert state.below_threshold_count() == 0
    assert run(Trace(absmax, first=12_000), launch(first_step=12_000))[1] == ()


def test_late_information_is_given_on_coarse_samples_and_not_for_later_ones():
    absmax = healthy(60, size=1e-6)
    assert len(run(Trace(absmax, every=100), launch(late=True))[1]) == 16
    later = np.concatenate([healthy(60), healthy(300, size=1e-6)])
    rows = run(Trace(later), launch(late=True))[1]
    assert [c for c in rows if c.evidence == "joined_late"] == []


@pytest.mark.parametrize(
    ("given", "rules"),
    [
        ({"absmax_below": 1e-3}, None),
        ({"norm_below": 3e-3}, None),
        ({}, Rules(collapse=Collapse(norm_below=3e-3))),
        ({"norm_below": 1e-9}, Rules(layers=(LayerRule("2.lora_B", Collapse(norm_below=3e-3)),))),
    ],
)
def test_explicit_thresholds_are_taken_at_their_word(given, rules):
    absmax = healthy(200, size=1e-1)
    absmax[:, 5] = 5e-4  # neither low nor fallen; norm 1.5e-3
    absmax[100:, 5] = 1e-1
    _, changes = run(Trace(absmax), launch(**given), rules)
    found = fired(changes)
    assert set(found) == {5}
    assert (found[5].evidence, found[5].severity, found[5].step) == ("threshold", "critical", 19)
    assert changes[-1].kind == "resolved"


def test_a_threshold_for_some_layers_needs_no_evidence_and_no_grace():
    rule = LayerRule("lora_A", Collapse(enter=1e-2, exit=3e-2, evidence=("threshold",)))
    _, changes = run(Trace(healthy(40)), rules=Rules(layers=(rule,)))
    assert set(fired(changes)) == set(range(0, 16, 2))
    assert {c.evidence for c in changes} == {"threshold"}


def test_a_layer_that_is_switched_off_ignores_the_launch_threshold():
    rule = LayerRule("lora_A", Collapse(enabled=False))
    _, changes = run(Trace(healthy(40)), launch(absmax_below=1.0), Rules(layers=(rule,)))
    assert set(fired(changes)) == set(range(1, 16, 2))


THRESHOLD = ("threshold",)


@pytest.mark.parametrize(
    ("enter", "rules", "found"),
    [
        (None, Rules(), {2, 3}),
        (1e-4, Rules(), {2, 3}),
        (1e-5, Rules(), set()),
        (1e-4, Rules(collapse=Collapse(enter=1e-6, exit=1e-6)), {2, 3}),
        (1e-4, Rules(layers=(LayerRule("lora_A", Collapse(enter=1e-5)),)), {3}),  # numbers of its own
        (1e-1, Rules(collapse=Collapse(enter=1e-6, evidence=THRESHOLD)), set()),  # no bound without evidence
    ],
)
def test_the_threshold_of_a_run_asks_for_the_evidence_of_the_rule(enter, rules, found):
    absmax = healthy(600, size=2e-3)
    absmax[200:400, 2:4] *= 1e-2
    absmax[:, 8:] *= 2.5e-2  # always at 5e-5: these neither fell, nor are they two decades below their siblings
    state, changes = run(Trace(absmax), launch(collapse_below=enter), rules)
    assert set(fired(changes)) == found
    assert {change.evidence for change in fired(changes).values()} <= {"fall"}
    assert not state.scores.firing.any(), "all are over the ``exit`` in the ratio of the rules"


@pytest.mark.parametrize(("enter", "is_over"), [(1e-3, False), (1e-4, True)])
def test_the_end_of_a_collapse_is_in_the_ratio_of_the_rules(enter, is_over):
    absmax = healthy(600)
    absmax[200:300, 2] *= 1e-3
    absmax[300:, 2] *= 0.2  # 1e-3, under 3e-3 and over 3e-4
    state, changes = run(Trace(absmax), launch(collapse_below=enter))
    assert set(fired(changes)) == {2}
    assert state.scores.firing.any() != is_over


def test_another_threshold_of_a_new_launch_keeps_baselines():
    state, _ = run(Trace(healthy(200)), launch(collapse_below=1e-6))
    absmax = healthy(120)
    absmax[:, 2] *= 1.6e-2  # not two decades below its siblings
    _, changes = run(Trace(absmax, first=200), launch(number=2, first_step=200, collapse_below=1e-4), state=state)
    assert set(fired(changes)) == {2}
    assert changes[0].evidence == "fall"


@pytest.mark.parametrize(("phase", "count"), [(ACCUMULATED, 1), (POST_CLIP, 0)])
def test_clipped_samples_feed_no_fall(phase, count):
    absmax = healthy(400)
    absmax[200:, 4] *= 1e-3
    state, changes = run(Trace(absmax, phase=phase))
    assert len(changes) == count
    assert (state.verdict(4).baseline is None) == (phase == POST_CLIP)


def test_partial_samples_feed_nothing():
    absmax = healthy(300)
    absmax[200:, 4] *= 1e-4
    partial = {(row, 4): PARTIAL for row in range(200, 300)}
    state, changes = run(Trace(absmax, extra_state=partial), launch(absmax_below=1e-4))
    assert changes == ()
    assert state.verdict(4).rules == {}


def test_skipped_windows_feed_only_nonfinite():
    absmax = healthy(300)
    absmax[200:, 4] *= 1e-4
    skipped = np.where(np.arange(300) >= 200, 2, 0)
    assert run(Trace(absmax, skipped=skipped), launch(absmax_below=1e-4))[1] == ()
    absmax[250, 4] = np.nan
    _, changes = run(Trace(absmax, skipped=skipped))
    assert [(c.rule, c.layer, c.step) for c in changes] == [("nonfinite", 4, 250)]


def test_nonfinite_gradient_fires_at_once_and_recovers():
    absmax = healthy(300)
    absmax[20, 3] = np.nan
    _, changes = run(Trace(absmax))
    assert [(c.rule, c.kind, c.layer, c.step, c.severity, c.value is None) for c in changes] == [
        ("nonfinite", "fired", 3, 20, "critical", True),
        ("nonfinite", "resolved", 3, 120, "critical", False),
    ]


@pytest.mark.parametrize("loss", [np.nan, np.inf])
def test_nonfinite_loss_fires_in_its_own_step_sampled_or_not(loss):
    losses = np.ones(300)
    losses[57] = loss
    _, changes = run(Trace(healthy(30), every=10, loss=losses))
    assert [(c.rule, c.kind, c.layer, c.step) for c in changes] == [
        ("nonfinite", "fired", None, 57),
        ("nonfinite", "resolved", None, 157),
    ]


@pytest.mark.parametrize(("row", "who", "steps"), [(19, 1, []), (20, 1, [69]), (1, 2, [50])])
def test_a_scaler_may_skip_19_in_a_row_a_loop_none(row, who, steps):
    absmax, skipped = healthy(100), np.zeros(100)
    absmax[50 : 50 + row, 7] = np.nan
    skipped[50 : 50 + row] = who
    losses = np.ones(100)
    losses[50 : 50 + row] = np.nan
    _, changes = run(Trace(absmax, skipped=skipped, loss=losses), cuts=(60,))
    began = [c for c in changes if c.kind == "fired"]
    assert [c.step for c in began] == [step for step in steps for _ in range(2)]
    assert {c.layer for c in began} == ({None, 7} if steps else set())
    assert NONFINITE


@pytest.mark.parametrize(("jumped", "is_told"), [(299, True), (200, True), (199, False), (301, False)])
@pytest.mark.parametrize(("before", "after"), [(1e-3, 5e-6), (1e-3, 4e-3), (1e-3, 0.0)])
def test_a_learning_rate_that_jumped_shortly_before_is_told(before, after, jumped, is_told):
    absmax, rates = healthy(400), np.full((400, 2), 1e-4)
    absmax[300:, 2] *= 1e-3
    rates[:jumped, 1], rates[jumped:, 1] = before, after
    (change,) = run(Trace(absmax, lr=rates))[1]
    expected = (Jump(1, jumped, *(float(np.float32(rate)) for rate in (before, after, before))),)
    assert change.jumps == (expected if is_told else ())


@pytest.mark.parametrize(
    "rates", [np.linspace(1e-3, 0, 400), 1e-5 * np.minimum(np.arange(400), 50), np.full(400, np.nan)]
)
def test_a_schedule_is_no_jump(rates):
    absmax = healthy(400)
    absmax[300:, 2] *= 1e-3
    (change,) = run(Trace(absmax, lr=rates[:, None]))[1]
    assert change.jumps == ()


@pytest.mark.parametrize(
    ("rates", "now"),
    [
        ({100: 5e-2}, 5e-2),
        ({100: 5e-2, 150: 5e-3}, 5e-3),  # a schedule lowers it, and it is high all the same
        ({100: 5e-2, 150: 1e-4}, None),  # put back
        ({60: 1e-2, 70: 1e-4, 180: 2e-2}, None),  # a restart of a schedule
        ({100: 4e-4}, None),  # of a usual size
    ],
)
def test_a_rise_long_before_is_told_while_it_holds(rates, now):
    absmax, lr = healthy(400), np.full((400, 1), 1e-4)
    absmax[300:, 2] *= 1e-3
    for step, rate in rates.items():
        lr[step:] = rate
    (change,) = run(Trace(absmax, lr=lr))[1]
    assert [jump.now for jump in change.jumps] == ([] if now is None else [pytest.approx(now)])


@pytest.mark.parametrize("back", [301, 305])
def test_a_rate_that_jumped_there_and_back_is_told_as_it_jumped_there(back):
    absmax, rates = healthy(400), np.full((400, 1), 1e-4)
    absmax[301:, 2] *= 1e-3
    rates[300:back] = 0.1
    (change,) = run(Trace(absmax, lr=rates))[1]
    assert [(jump.step, jump.after > jump.before) for jump in change.jumps] == [(300, True)]


def test_a_rate_that_jumped_a_sample_before_is_told_however_few_are_sampled():
    absmax, rates = healthy(200), np.full((200, 1), 1e-4)
    absmax[150:, 2] *= 1e-3
    rates[149:] = 1e-2
    (change,) = run(Trace(absmax, lr=rates, every=1000))[1]
    assert [jump.step for jump in change.jumps] == [149_000]


def falling(factors, begin: int = 120, rows: int = 1_200, layers=(6, 7), noise: float = 0.1) -> np.ndarray:
    """Gradients of which those of some layers are multiplied by a factor that depends on the steps since ``begin``."""
    absmax = healthy(rows)
    absmax *= 10 ** np.random.default_rng(1).normal(0, noise, absmax.shape)
    absmax[:, layers] *= factors(np.maximum(np.arange(rows) - begin, 0))[:, None]
    return absmax


def evidence(changes) -> set[tuple[int | None, str, str | None]]:
    return {(each.layer, each.severity, each.evidence) for each in changes if each.evidence != "siblings"}


def annealed(rate: float):
    return lambda steps: rate**steps


@pytest.mark.parametrize("begin", [0, 120, 333])
@pytest.mark.parametrize("rate", [0.98, 0.985, 0.99])
def test_a_fall_in_one_straight_line_for_hundreds_of_steps_is_a_warning(rate, begin):
    _, changes = run(Trace(falling(annealed(rate), begin)))
    assert evidence(changes) == {(6, "warning", "straight"), (7, "warning", "straight")}


def test_a_straight_line_may_begin_while_the_layer_still_learns():
    """Slower at first, block by block, and with a block that falls a little more than those beside it."""
    levels = np.cumsum([0.0, 0.2, 0.3, 0.4, 0.4, 0.52, *[0.43] * 20])
    absmax = 3 * falling(lambda steps: 10.0 ** -levels[steps // 50], begin=100, noise=0.02)
    _, changes = run(Trace(absmax))
    assert evidence(changes) == {(6, "warning", "straight"), (7, "warning", "straight")}


def test_a_straight_line_is_seen_where_few_steps_are_sampled():
    _, changes = run(Trace(falling(annealed(0.95), rows=500), every=10))
    assert evidence(changes) == {(6, "warning", "straight"), (7, "warning", "straight")}


@pytest.mark.parametrize(
    "factors",
    [
        lambda steps: np.where(steps > 0, 1e-3, 1.0),
        annealed(0.9),  # what dies in 50 steps
        lambda steps: 1 / (1 + steps) ** 1.5,
        lambda steps: 10.0 ** -((steps / 150) ** 2),
        lambda steps: 0.995**steps * np.where(steps > 300, 1e-4, 1.0),
    ],
)
def test_what_falls_at_once_or_on_a_curve_or_off_its_line_is_critical(factors):
    _, changes = run(Trace(falling(factors)))
    assert evidence(changes) == {(6, "critical", "fall"), (7, "critical", "fall")}


def shrinking(rate: float, share: float, rows: int = 1_200) -> np.ndarray:
    """The norms of the weights of layer 8, measured in turns, that shrink at a share of the pace."""
    norms = np.full((rows, 16), np.nan)
    norms[::8, 8] = (rate**share) ** np.maximum(np.arange(rows) - 120, 0)[::8]
    norms[::8, 9] = 3.0
    return norms


@pytest.mark.parametrize(
    ("share", "severity"), [(1.0, "critical"), (0.6, "critical"), (0.0, "warning"), (0.1, "warning")]
)
def test_weights_that_shrink_in_the_same_line_make_it_critical(share, severity):
    trace = Trace(falling(annealed(0.98)), values={"weight_norm": shrinking(0.98, share)})
    for cuts in ((), (130, 301)):
        _, changes = run(trace, cuts=cuts)
        assert {(each.layer, each.severity) for each in changes} == {(6, severity), (7, severity)}


def test_a_line_that_ends_low_stays_a_warning_and_a_recovery_ends_it():
    absmax = falling(lambda steps: 0.98 ** np.minimum(steps, 260))
    absmax[1_000:, 6:8] = 5e-3
    _, changes = run(Trace(absmax))
    assert [(each.kind, each.severity) for each in changes if each.layer == 6] == [
        ("fired", "warning"),
        ("resolved", "warning"),
    ]


def dying(beside: int, *, share: float = 1.0, collapses: bool = True) -> tuple[set[tuple[str, int, str]], tuple]:
    """Let block 3 collapse and a lora_B be exactly zero more and more often; it had a gradient in a share of steps."""
    random = np.random.default_rng(4)
    absmax = healthy(1_000)
    dying = 2 * beside + 1
    absmax[: 300 if collapses else 0, dying] *= random.random(300 if collapses else 0) < share
    if collapses:
        absmax[300:, 6] *= 1e-4
    fades = np.clip((np.arange(700) - 100) / 200, 0, 1)
    absmax[300:, dying] *= (random.random(700) >= fades) * 10 ** -(2 * fades)
    _, changes = run(Trace(absmax))
    found = {(change.rule, change.layer, change.evidence) for change in changes if change.kind == "fired"}
    return found, changes


@pytest.mark.parametrize("beside", [2, 3, 4])
def test_a_dense_layer_that_dies_beside_a_collapse_joins_it(beside):
    found, changes = dying(beside)
    assert found == {("collapse", 6, "fall"), ("collapse", 2 * beside + 1, "follows")}
    assert [change.severity for change in changes] == ["critical", "warning"]


def test_a_layer_that_dies_elsewhere_or_alone_or_was_idle_before_does_not_join():
    assert dying(6)[0] == {("collapse", 6, "fall"), ("vanished", 13, "sporadic")}
    assert dying(3, collapses=False)[0] == {("vanished", 7, "sporadic")}
    assert dying(3, share=0.2)[0] == {("collapse", 6, "fall"), ("vanished", 7, "sporadic")}


def test_layers_without_a_block_are_beside_all():
    names = ("input.weight", "blocks.0.up", "blocks.1.up", "blocks.3.up", "others.1.up")
    layers = tuple(replace(lora()[0], number=n, name=name) for n, name in enumerate(names))
    config = compile_rules(launch(layers), Rules())
    assert config.beside(np.eye(5, dtype=np.bool_)[1]).tolist() == [True, True, True, False, False]
    assert config.beside(np.eye(5, dtype=np.bool_)[0]).all()
