"""Weights that do not move, or hardly, though they have a gradient; and small updates that are as they should be."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradcanary import wire
from gradcanary_server.rules.config import NoUpdate, Rules
from support.traces import Trace, fired, healthy, launch, lora, run

STEPS, LAYERS = 800, 16
SOME = [3, 5]


def in_turns(values: np.ndarray, steps: int = STEPS) -> np.ndarray:
    """Return values [steps, LAYERS], each layer in each twentieth step, NaN elsewhere."""
    turn = np.arange(steps)[:, None] % 20 == np.arange(LAYERS)[None] % 20
    return np.where(turn, np.broadcast_to(values, (steps, LAYERS)), np.nan)


def trace(ratio=1e-3, size=1.0, absmax=None, lr=1e-4, steps=STEPS, **changes) -> Trace:
    """A run whose layers have this ratio; ``size`` is the norm of the weights, ``lr`` that of one group or of two."""
    ratios = np.broadcast_to(np.asarray(ratio, float), (steps, LAYERS))
    rates = np.asarray(lr, float)
    return Trace(
        healthy(steps) if absmax is None else absmax,
        lr=np.broadcast_to(rates if rates.ndim == 2 else rates.reshape(1, -1), (steps, max(rates.shape[-1:] or (1,)))),
        values={"update_ratio": in_turns(ratios, steps), "weight_norm": in_turns(np.full(LAYERS, size), steps)},
        **changes,
    )


def of_layers(ratio: float, others: float = 1e-3, layers=tuple(SOME)) -> np.ndarray:
    ratios = np.full(LAYERS, others)
    ratios[list(layers)] = ratio
    return ratios


def two_groups(**changes):
    """Return a launch in which the layers of SOME are the second group."""
    layers = tuple(replace(layer, group=int(layer.number in SOME), **changes) for layer in lora())
    return launch(layers, optimizers=("AdamW", "AdamW"))


def found(of_trace, of=None, rules=None):
    return fired(run(of_trace, of or two_groups(), rules)[1], "no_update")


def kinds(of_trace, of=None):
    return {change.evidence for change in found(of_trace, of).values()}


RATES = (1e-4, 1e-4)


def test_weights_that_never_move():
    changes = found(trace(of_layers(0.0), lr=RATES))
    assert set(changes) == set(SOME)
    assert {(each.severity, each.evidence, each.value) for each in changes.values()} == {("critical", "unmoved", 0.0)}
    assert {each.step for each in changes.values()} == {100}
    assert {each.since_step for each in changes.values()} <= set(range(20))


def test_weights_that_stop_moving():
    ratios = np.where(np.arange(STEPS)[:, None] < 330, 1e-3, of_layers(0.0)[None])
    changes = found(trace(ratios, lr=RATES))
    assert {(layer, each.step) for layer, each in changes.items()} == {(3, 400), (5, 400)}
    assert all(330 <= each.since_step < 350 for each in changes.values())


def test_a_rate_of_zero_from_the_start():
    changes = found(trace(of_layers(0.0), lr=(1e-4, 0.0)))
    assert {(layer, each.evidence, each.severity) for layer, each in changes.items()} == {
        (3, "no_rate", "warning"),
        (5, "no_rate", "warning"),
    }


def test_a_step_finer_than_the_weights():
    assert kinds(trace(of_layers(0.0), size=32.0, lr=(1e-4, 1e-9))) == {"too_fine"}
    assert kinds(trace(of_layers(0.0), size=32.0, lr=(1e-4, 1e-7))) == {"unmoved"}


def test_a_layer_apart_from_all_others():
    changes = found(trace(of_layers(1e-6), lr=RATES))
    assert {(layer, each.evidence, each.severity) for layer, each in changes.items()} == {
        (3, "apart", "warning"),
        (5, "apart", "warning"),
    }
    assert [each.siblings for each in changes.values()] == pytest.approx([1e-3] * len(SOME))


def test_all_weights_hardly_move():
    changes = found(trace(1e-9, lr=(1e-10, 1e-10)))
    assert len(changes) == LAYERS
    assert {(each.evidence, each.severity) for each in changes.values()} == {("tiny", "warning")}
    assert min(each.step for each in changes.values()) >= 200


def test_an_eps_that_is_too_large():
    """Of 32 for 1,024 elements, each moves by 1e-6 where the rate is 1e-3."""
    assert kinds(trace(1e-6, size=32.0, lr=(1e-3, 1e-3))) == {"slow"}


def test_most_layers_apart_from_the_others():
    assert set(found(trace(of_layers(1e-6, layers=range(11)), lr=RATES))) == set(range(11))


def test_a_clip_that_leaves_next_to_nothing_to_sgd():
    """A step is a ten-thousandth of the rate times the gradient, whose norm is about 0.015."""
    sgd = replace(two_groups(), optimizers=("SGD", "SGD"))
    assert kinds(trace(1e-6, lr=(0.7, 0.7)), sgd) == {"slow"}
    assert kinds(trace(1e-6, lr=(1e-3, 1e-3)), sgd) == set()


def test_a_resumed_job_is_judged_as_late_as_a_new_one():
    """By all layers: 200 steps after its first one."""
    slow = trace(1e-6, size=32.0, lr=(1e-3, 1e-3), first=10_050)
    changes = found(slow, replace(two_groups(), first_step=10_050))
    assert {(each.evidence, each.step) for each in changes.values()} == {("slow", 10_300)}


def test_updates_that_are_undone():
    facts = (wire.Fact("undone_updates", "", (lora()[3].name,)),)
    changes = found(trace(lr=RATES), replace(two_groups(), facts=facts))
    assert {(layer, each.evidence, each.severity) for layer, each in changes.items()} == {(3, "undone", "critical")}


STEP = np.arange(STEPS)[:, None]


@pytest.mark.parametrize(
    ("what", "of_trace", "of"),
    [
        ("they move", trace(lr=RATES), None),
        (
            "their gradient is zero",
            trace(of_layers(0.0), lr=RATES, absmax=healthy(STEPS) * (of_layers(0.0, 1.0) > 0)),
            None,
        ),
        (
            "they converged",
            trace(np.where(STEP < 400, 1e-3, 0.0), lr=RATES, absmax=healthy(STEPS) * np.where(STEP < 390, 1.0, 1e-5)),
            None,
        ),
        ("they moved now and then", trace(np.where(STEP % 40 < 20, 0.0, 1e-3), lr=RATES), None),
        ("the rate is over", trace(np.where(STEP < 60, 1e-3, of_layers(0.0)), lr=np.where(STEP < 60, 1e-3, 0.0)), None),
        (
            "the rate of a group is over",
            trace(np.where(STEP < 60, 1e-3, of_layers(0.0)), lr=np.where(STEP < 60, RATES, (1e-4, 0.0))),
            None,
        ),
        ("no rate has begun", trace(0.0, lr=(0.0, 0.0)), None),
        ("the rate rises", trace(of_layers(0.0), lr=(STEP + 1) * 1e-7 * np.ones(2)), None),
        ("the rate is unknown", trace(of_layers(0.0), lr=(np.nan, np.nan)), None),
        ("weights of low precision", trace(of_layers(0.0), lr=RATES), two_groups(param_dtype="bfloat16")),
        (
            "an optimizer that stops itself",
            trace(of_layers(0.0), lr=RATES),
            replace(two_groups(), optimizers=("LBFGS",) * 2),
        ),
        ("a small rate of its group", trace(of_layers(1e-7), lr=(1e-4, 1e-8)), None),
        (
            "a small gradient under SGD",
            trace(of_layers(1e-7), absmax=healthy(STEPS) * of_layers(1e-4, 1.0), lr=RATES),
            replace(two_groups(), optimizers=("SGD",) * 2),
        ),
        ("large weights", trace(of_layers(1e-6), size=of_layers(1e3, 1.0), lr=RATES), None),
        (
            "SGD far under its rate",
            trace(1e-6, size=32.0, lr=(1e-3, 1e-3)),
            replace(two_groups(), optimizers=("SGD",) * 2),
        ),
        ("a gradient that fell, under Adam", trace(np.where(STEP < 60, 1e-3, 1e-6), size=32.0, lr=(1e-3, 1e-3)), None),
        (
            "biases without a use, under SGD, and all others converge",
            trace(
                np.where(STEP < 390, of_layers(1e-9), of_layers(1e-9, 1e-6)),
                absmax=healthy(STEPS) * np.where(STEP < 390, of_layers(1e-9, 1.0), of_layers(1e-9, 0.01)),
                lr=(1e-2, 1e-2),
            ),
            replace(two_groups(), optimizers=("SGD",) * 2),
        ),
        (
            "biases of keys, whose gradients cancel but for rounding, under SGD",
            trace(of_layers(0.0), absmax=healthy(STEPS) * of_layers(2e-9, 1.0), lr=(1e-2, 1e-2)),
            replace(two_groups(), optimizers=("SGD",) * 2),
        ),
        (
            "norms of a fine-tune at 5e-7, late in its schedule",
            trace(
                np.where(STEP < 560, of_layers(1e-7, 1e-5), of_layers(0.0, 1e-5)),
                size=of_layers(32.0, 1.0),
                lr=5e-7 * (1 - STEP / 1000) * np.ones(2),
            ),
            None,
        ),
        ("few layers", Trace(healthy(STEPS)), None),
    ],
)
def test_quiet_where(what, of_trace, of):
    assert found(of_trace, of) == {}, what


def test_quiet_if_the_rule_is_off():
    assert found(trace(of_layers(0.0), lr=RATES), rules=Rules(no_update=NoUpdate(enabled=False))) == {}


def test_weights_that_move_again_resolve():
    _, changes = run(trace(np.where(STEP < 250, of_layers(0.0), 1e-3), lr=RATES), two_groups())
    resolved = [change for change in changes if change.rule == "no_update" and change.kind == "resolved"]
    assert {(change.layer, change.step) for change in resolved} == {(3, 700), (5, 700)}


@settings(max_examples=8)
@given(cuts=st.lists(st.integers(1, STEPS - 1), max_size=6))
def test_any_cut_has_the_same_result(cuts):
    of_trace = trace(np.where(STEP < 330, of_layers(1e-6), of_layers(0.0)), lr=RATES)
    assert run(of_trace, two_groups(), cuts=tuple(cuts))[1] == run(of_trace, two_groups())[1]
