"""What other rules take back of a run: the findings of each rule that is another one, and nothing else."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradcanary import wire
from gradcanary_server.rules.config import Collapse, Grace, LayerRule, Rules, ScaleDrop
from gradcanary_server.rules.resets import reset_changed_rules
from gradcanary_server.rules.signals import RULES
from support.strategies import LAYERS, QUICK, QUICK_BY_LAYER, launches, traces
from support.traces import Trace, fired, healthy, launch, run

NAMES = {layer.number: layer.name for layer in launch().layers}
LOW, MISSED = (2, 4, 6), 9


def troubled(steps=400):
    """Layers 2, 4 and 6 fall at step 200, layer 9 has no gradient since then."""
    absmax = healthy(steps)
    absmax[200:, LOW] *= 1e-3
    absmax[200:, MISSED] = -1
    return Trace(absmax)


def taken_back(before, after, state=None):
    state = run(troubled(), rules=before)[0] if state is None else state
    moved, changes = reset_changed_rules(state, NAMES, before, after)
    assert {(c.kind, c.resolution) for c in changes} <= {("resolved", "rule_changed")}
    return state, moved, {(change.rule, change.layer) for change in changes}


@pytest.mark.parametrize(
    ("after", "said"),
    [
        (Rules(), set()),
        (Rules(collapse=Collapse(notify=False)), set()),
        (Rules(grace=Grace(steps=60), scale_drop=ScaleDrop(common_decades=2)), set()),
        (Rules(collapse=Collapse(enter=2e-4)), {("collapse", layer) for layer in LOW}),
        (Rules(layers=(LayerRule("blocks.1", Collapse(enabled=False)),)), {("collapse", layer) for layer in LOW}),
        (Rules(layers=(LayerRule("blocks.[12]", Collapse()),)), set()),
    ],
)
def test_layer_rule_change_resets_all_layers(after, said):
    state, moved, found = taken_back(Rules(), after)
    assert found == said
    assert {(rule, n) for n in NAMES for rule in moved.verdict(n).rules} == {
        *(("collapse", layer) for layer in LOW),
        ("vanished", MISSED),
    } - said
    assert moved.baselines.levels(np.arange(16)).tolist() == state.baselines.levels(np.arange(16)).tolist()


def test_reset_rule_finds_what_is_still_true():
    after = Rules(collapse=Collapse(fire_after_steps=30))
    state, moved, _ = taken_back(Rules(), after)
    more = replace(troubled(500), first=0)
    _, changes = run(more, rules=after, state=moved)
    assert {(layer, change.step) for layer, change in fired(changes).items()} == {(layer, 429) for layer in LOW}
    assert fired(changes)[2].baseline == state.verdict(2).baseline


def test_firing_state_follows_the_recovery_of_the_new_rules():
    after = Rules(collapse=Collapse(resolve_after_steps=200))
    _, moved, _ = taken_back(Rules(), after)
    state, _ = run(troubled(410), rules=after, state=moved)
    assert state.verdict(MISSED).rules == {"vanished": "firing"}


def test_other_blocks_of_observations_make_other_baselines():
    _, moved, _ = taken_back(Rules(), Rules(layers=(LayerRule("lora_A", Collapse(baseline_observations=30)),)))
    assert [moved.verdict(n).baseline is None for n in NAMES] == [n % 2 == 0 for n in NAMES]


def test_finding_of_a_whole_run_is_reset_with_its_rule():
    absmax = healthy(400)
    absmax[200:] *= 1e-3
    loss = np.where(np.arange(400) == 399, np.nan, 1.0)
    state, _ = run(Trace(absmax, loss=loss))
    after = Rules(scale_drop=ScaleDrop(common_decades=2))
    assert taken_back(Rules(), after, state)[2] == {("scale_drop", None)}
    after = Rules(nonfinite=replace(Rules().nonfinite, skipped_in_row=5))
    assert taken_back(Rules(), after, state)[2] == {("nonfinite", None)}


def test_findings_from_facts_are_evaluated_again():
    sums = (wire.Accumulator(tuple(range(16)), None, "bfloat16", None),)
    state, changes = run(Trace(healthy(60), accumulators=sums))
    assert {change.severity for change in changes} == {"information"}
    after = Rules(accumulator=replace(Rules().accumulator, warn_above=1e-3))
    moved, changes = reset_changed_rules(state, NAMES, Rules(), after)
    assert {change.layer for change in changes} == set(NAMES)
    _, changes = run(Trace(healthy(70)), rules=after, state=moved)
    assert {(change.step, change.severity) for change in changes} == {(60, "warning")}


@settings(max_examples=8)
@given(traces(), launches, st.sets(st.sampled_from(sorted(RULES))))
def test_only_changed_rules_are_taken_back_and_the_same_ones_never(trace, of, changed):
    moved_rules = {rule: replace(getattr(QUICK, rule), enabled=False) for rule in changed}
    after = replace(QUICK, **moved_rules)
    state, _ = run(trace, of, QUICK)
    names = {layer.number: layer.name for layer in of.layers}
    moved, changes = reset_changed_rules(state, names, QUICK, after)
    before = {(rule, n) for n in range(LAYERS) for rule, said in state.verdict(n).rules.items() if said != "suspect"}
    assert {(c.rule, c.layer) for c in changes if c.layer is not None} == {
        each for each in before if each[0] in changed
    }
    left = {(rule, n) for n in range(LAYERS) for rule in moved.verdict(n).rules}
    assert left == {(rule, n) for n in range(LAYERS) for rule in state.verdict(n).rules if rule not in changed}
    assert reset_changed_rules(moved, names, after, after) == (moved, ())
    assert run(trace, of, after, moved)[1] == ()


def test_layers_that_are_not_named_yet_and_entries_that_say_the_same_change_nothing():
    state, _ = run(troubled(), rules=QUICK_BY_LAYER)
    same = replace(QUICK_BY_LAYER, layers=tuple(replace(entry) for entry in QUICK_BY_LAYER.layers))
    assert reset_changed_rules(state, {}, QUICK_BY_LAYER, same) == (state, ())
