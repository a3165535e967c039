"""What low precision does: measured of a few layers in turns, or known from dtypes and from what the agent said."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradcanary import wire
from gradcanary_server.rules.config import (
    Accumulator,
    ClipBeforeUnscale,
    Fp16Underflow,
    Frozen,
    NeverCleared,
    NotOptimized,
    Rules,
    SecondMoments,
)
from gradcanary_server.rules.detectors.precision import predicted_loss
from support.traces import Trace, fired, healthy, launch, lora, run

STEPS = 400
BFLOAT16 = (wire.Accumulator((0, 2), None, "bfloat16", None),)
HALF = (wire.Accumulator((5,), None, "float32", "float16"),)


def measured(stat, at, layer=5, steps=STEPS):
    """A stat that one layer has at some steps: ``at`` gives values by step."""
    values = np.full((steps, 16), np.nan)
    for step, value in at.items():
        values[step, layer] = value
    return {stat: values}


def told(changes):
    return [(c.rule, c.layer, c.kind, c.step, c.severity, c.evidence) for c in changes]


@pytest.mark.parametrize(("stat", "bad", "good"), [("accumulation_error", 0.22, 0.004), ("norm_ratio", 0.78, 0.996)])
def test_lossy_sum_is_critical_and_five_exact_ones_resolve(stat, bad, good):
    values = measured("accumulation_error", dict.fromkeys(range(100, 351, 50), 0.004))
    values |= measured(stat, {100: bad} | dict.fromkeys(range(150, 351, 50), good))
    _, changes = run(Trace(healthy(STEPS), values=values))
    assert told(changes) == [
        ("accumulation_loss", 5, "fired", 100, "critical", None),
        ("accumulation_loss", 5, "resolved", 350, "critical", None),
    ]
    assert changes[0].value == pytest.approx(values["accumulation_error"][100, 5])


def test_a_loss_of_four_percent_is_quiet():
    assert run(Trace(healthy(STEPS), values=measured("accumulation_error", {100: 0.04})))[1] == ()


def frozen(at, lr=None, rules=None):
    lr = None if lr is None else lr[:, None]
    return run(Trace(healthy(STEPS), lr=lr, values=measured("frozen_fraction", at)), rules=rules)[1]


def test_weights_that_never_moved_warn():
    assert told(frozen({100: 0.92})) == [("frozen", 5, "fired", 100, "warning", "measured")]
    assert frozen({100: 0.4}) == ()
    assert frozen({20: 0.92}) == ()  # in grace


def test_a_layer_that_moved_and_stopped_is_critical():
    assert told(frozen({100: 0.3, 200: 0.95})) == [("frozen", 5, "fired", 200, "critical", "stopped")]
    assert [change.severity for change in frozen({100: 0.3, 200: 0.85})] == ["warning"]


def test_weights_may_stand_still_when_the_learning_rate_is_over():
    lr = np.full(STEPS, 1e-3)
    lr[150:] = 9e-5
    assert frozen({100: 0.3, 200: 0.95}, lr) == ()
    lr[150:] = 1.1e-4
    assert frozen({100: 0.3, 200: 0.95}, lr) != ()
    assert frozen({100: 0.95}, np.full(STEPS, np.nan)) == ()


def test_weights_may_stand_still_while_the_learning_rate_rises():
    lr = np.minimum(np.arange(STEPS), 180) * 1e-5
    assert frozen({100: 0.95, 200: 0.95}, lr) == ()
    assert [change.step for change in frozen({100: 0.95, 200: 0.95, 240: 0.95}, lr)] == [240]


def test_weights_stand_still_since_the_earlier_of_the_two_moments():
    (change,) = frozen({200: 0.92})
    assert (change.step, change.since_step) == (200, 150)


def underflow(values, records=HALF):
    at = dict(enumerate(values, start=100))
    stats = measured("zero_fraction", at) | measured("frozen_fraction", dict.fromkeys(at, 0.1), layer=7)
    return run(Trace(healthy(STEPS), accumulators=records, values=stats))[1]


def test_zeros_that_grow_in_float16_warn_after_five_observations():
    found = [change for change in underflow([0.1] * 5 + [0.5] * 5) if change.rule == "fp16_underflow"]
    assert told(found) == [("fp16_underflow", 5, "fired", 109, "warning", "zeros")]
    assert told(underflow([0.1] * 5 + [0.95] * 5))[-1] == ("fp16_underflow", 5, "fired", 109, "critical", "all_zeros")


def test_zeros_that_were_always_there_or_are_not_of_float16_are_quiet():
    assert "fp16_underflow" not in {change.rule for change in underflow([0.9] * 20 + [0.99] * 20)}
    assert underflow([0.1] * 5 + [0.95] * 20, ()) == ()


def test_parameters_in_float16_have_gradients_born_there():
    layers = tuple(replace(each, param_dtype="float16") for each in lora())
    values = measured("zero_fraction", dict(enumerate([0.1] * 5 + [0.5] * 5, start=100)))
    assert fired(run(Trace(healthy(STEPS), values=values), launch(layers))[1], "fp16_underflow").keys() == {5}


@pytest.mark.parametrize(
    ("zeros", "severity"), [([0.2] * 20, None), ([0.4] * 20, "warning"), ([0.75] * 3 + [0.95] * 5, "critical")]
)
def test_zeros_beside_the_smallest_numbers_of_float16_count_from_the_start(zeros, severity):
    facts = (wire.Fact("fp16_limit", "", (lora()[5].name,)),)
    values = measured("zero_fraction", dict(enumerate(zeros)))
    state, changes = run(Trace(healthy(STEPS), values=values), launch(facts=facts))
    found = [("fp16_underflow", 5, "fired", 4, "warning", "at_limit")] if severity else []
    found += [("fp16_underflow", 5, "fired", 7, "critical", "at_limit")] if severity == "critical" else []
    assert [each for each in told(changes) if each[0] == "fp16_underflow"] == found
    over = measured("zero_fraction", dict(enumerate([0.1] * 5)))
    _, changes = run(Trace(healthy(STEPS), first=STEPS, values=over), launch(facts=facts), state=state)
    assert {change.kind for change in changes} == ({"resolved"} if severity else set())


@pytest.mark.parametrize(("micro_steps", "severity"), [(8, "information"), (63, "information"), (64, "warning")])
def test_a_sum_in_bfloat16_is_told_once_by_what_it_is_predicted_to_lose(micro_steps, severity):
    trace = Trace(healthy(STEPS), accumulators=BFLOAT16, micro_steps=np.full(STEPS, micro_steps, np.int16))
    state, changes = run(trace, cuts=(100, 200))
    assert told(changes) == [("accumulator", layer, "fired", 0, severity, "low_precision_sum") for layer in (0, 2)]
    again = replace(trace, first=0)
    assert run(again, launch(number=2), state=state)[1] == ()


def test_single_gradient_is_no_sum_and_a_larger_sum_is_worse():
    micro_steps = np.repeat([1, 8, 512, 8], 100).astype(np.int16)
    _, changes = run(Trace(healthy(STEPS), accumulators=BFLOAT16, micro_steps=micro_steps))
    assert [(c.step, c.severity) for c in changes if c.layer == 0] == [(100, "information"), (200, "warning")]


def test_sums_that_become_float32_resolve():
    state, _ = run(Trace(healthy(100), accumulators=BFLOAT16))
    better = (wire.Accumulator((0, 2), None, "float32", "float32"),)
    _, changes = run(Trace(healthy(100), first=100, accumulators=better), state=state)
    assert [(change.layer, change.kind, change.step) for change in changes] == [
        (0, "resolved", 100),
        (2, "resolved", 100),
    ]


def test_another_dtype_than_declared_and_keys_that_do_nothing_are_information():
    records = (wire.Accumulator((3,), "float32", "bfloat16", None),)
    facts = (wire.Fact("dead_config_key", "", (lora()[7].name,)),)
    one = Trace(healthy(60), accumulators=records, micro_steps=np.ones(60, np.int16))
    found = told(run(one, launch(facts=facts))[1])
    assert found == [("accumulator", layer, "fired", 0, "information", "declared") for layer in (3, 7)]


@pytest.mark.parametrize(
    ("code", "rule", "severity", "evidence"),
    [
        ("bf16_moments", "second_moments", "warning", None),
        ("fp16_without_scaler", "fp16_underflow", "warning", "no_scaler"),
        ("clip_before_unscale", "clip_before_unscale", "warning", None),
        ("never_cleared", "never_cleared", "critical", None),
    ],
)
def test_facts_of_the_agent_count_from_the_next_step(code, rule, severity, evidence):
    state, _ = run(Trace(healthy(100)))
    of = launch(facts=(wire.Fact(code, "", (lora()[7].name,)), wire.Fact("sharded", "", ())))
    _, changes = run(Trace(healthy(100), first=100), of, state=state)
    assert told(changes) == [(rule, 7, "fired", 100, severity, evidence)]


def test_a_launch_without_the_fact_resolves_gradients_that_were_never_cleared():
    facts = (wire.Fact("never_cleared", "", ()),)
    state, changes = run(Trace(healthy(3)), launch(facts=facts))
    assert len(fired(changes, "never_cleared")) == 16
    _, changes = run(Trace(healthy(3)), launch(number=2, has_older=True), state=state)
    assert {(each.rule, each.kind, each.resolution) for each in changes} == {("never_cleared", "resolved", "recovered")}


def grouped(owners):
    """Return layers with these parameter groups."""
    return tuple(replace(layer, group=owner) for layer, owner in zip(lora(), owners, strict=True))


@given(
    owners=st.lists(st.sampled_from([None, None, 0, 1]), min_size=16, max_size=16),
    later=st.lists(st.sampled_from([None, 0, 1]), min_size=16, max_size=16),
    named=st.sets(st.integers(0, 15)),
)
def test_a_layer_is_not_optimized_while_it_is_reported_and_in_no_group(owners, later, named):
    facts = (wire.Fact("not_optimized", "", tuple(lora()[layer].name for layer in sorted(named))),)
    expected, expected_later = (
        {layer for layer in named or range(16) if groups[layer] is None and set(groups) != {None}}
        for groups in (owners, later)
    )
    state, changes = run(Trace(healthy(3)), launch(grouped(owners), facts=facts))
    assert set(fired(changes, "not_optimized")) == expected
    _, changes = run(Trace(healthy(3), first=3), launch(grouped(later), facts=facts), state=state)
    found = [change for change in changes if change.rule == "not_optimized"]
    assert {change.layer for change in found if change.kind == "resolved"} == expected - expected_later
    assert {change.layer for change in found if change.kind == "fired"} == expected_later - expected


def test_a_forecast_is_no_incident():
    assert run(Trace(healthy(3)), launch(facts=(wire.Fact("bf16_weights_lr", "", ()),)))[1] == ()


def test_a_finding_without_layers_is_about_all():
    _, changes = run(Trace(healthy(2)), launch(facts=(wire.Fact("fp16_without_scaler", "", ()),)))
    assert len(fired(changes, "fp16_underflow")) == 16


def test_rules_that_are_off_say_nothing():
    off = {"enabled": False}
    rules = Rules(
        accumulator=Accumulator(**off),
        frozen=Frozen(**off),
        fp16_underflow=Fp16Underflow(**off),
        clip_before_unscale=ClipBeforeUnscale(**off),
        not_optimized=NotOptimized(**off),
        never_cleared=NeverCleared(**off),
        second_moments=SecondMoments(**off),
    )
    codes = (
        "bf16_moments",
        "fp16_without_scaler",
        "dead_config_key",
        "clip_before_unscale",
        "not_optimized",
        "never_cleared",
    )
    facts = tuple(wire.Fact(code, "", ()) for code in codes)
    trace = Trace(healthy(STEPS), accumulators=BFLOAT16, values=measured("frozen_fraction", {100: 0.95}))
    assert run(trace, launch(facts=facts), rules)[1] == ()


@pytest.mark.parametrize(
    ("micro_steps", "share"), [(1, 0), (8, 0.004), (64, 0.01), (512, 0.22), (2048, 0.78), (9999, 0.78)]
)
def test_predicted_losses_are_those_of_the_table(micro_steps, share):
    assert predicted_loss(micro_steps) == pytest.approx(share, abs=1e-6)
    assert predicted_loss(micro_steps + 1) >= predicted_loss(micro_steps)
