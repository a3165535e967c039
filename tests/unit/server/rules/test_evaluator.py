"""What holds for every stream: cutting, replay, order of layers, bounds of scores, fired before resolved."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradcanary_server.rules.evaluator import Evaluator, RuleState
from gradcanary_server.rules.signals import EXPLOSION, ZEROS, Scores, Vote, apply_vote
from support.server.slow_score import history
from support.strategies import LAYERS, PICKY, QUICK, QUICK_BY_LAYER, drawn_rates, launches, now_and_then, traces
from support.traces import Trace, healthy, launch, lora, run

OF = launch(lora()[:LAYERS])

rules = st.sampled_from([QUICK, QUICK_BY_LAYER])


@settings(max_examples=25)
@given(traces(), launches, rules, st.lists(st.integers(0, 125), max_size=8))
def test_any_cutting_gives_the_same_bytes_and_changes(trace, of, rules, cuts):
    whole, changes = run(trace, of, rules)
    cut, found = run(trace, of, rules, cuts=tuple(each for each in cuts if each < len(trace.absmax)))
    assert cut.pack() == whole.pack()
    assert found == changes


def step_by_step(trace, of, rules, state):
    """Evaluate a trace one event after the other."""
    evaluator = Evaluator(RuleState.unpack(state.pack()), of, trace.samples(), rules)
    batch, losses = evaluator.context.batch, evaluator.context.losses
    events = [(int(step), evaluator.observe_loss, losses.at(place)) for place, step in enumerate(losses.steps)]
    events += [(int(batch.steps[row]), evaluator.observe, batch.at(row)) for row in range(len(batch.steps))]
    found = [change for _, observe, event in sorted(events, key=lambda event: event[0]) for change in observe(event)]
    return evaluator.state, tuple(found)


quiet = st.builds(
    lambda steps, every, seed: Trace(healthy(steps, LAYERS, seed), every=every, lr=drawn_rates(steps, seed)),
    st.integers(1, 60),
    st.sampled_from([1, 10]),
    st.integers(0, 9),
)


converging = st.builds(
    lambda steps, every, seed, decades: Trace(
        healthy(steps, LAYERS, seed) * 10 ** -np.linspace(0, decades, steps)[:, None],
        every=every,
        loss=1 + 10 ** -np.linspace(0, 4, steps * every),
    ),
    st.integers(30, 120),
    st.sampled_from([1, 10]),
    st.integers(0, 9),
    st.sampled_from([0.9, 1.4, 3.0]),
)


@st.composite
def sick(draw):
    """Layers that fall and stay low for long, others that follow later or come back, and zeros now and then."""
    rows, seed = draw(st.integers(40, 160)), draw(st.integers(0, 9))
    random, absmax = np.random.default_rng(seed), healthy(rows, LAYERS, seed)
    for layer in draw(st.sets(st.integers(0, LAYERS - 1), min_size=1, max_size=4)):
        begin = draw(st.integers(10, rows - 1))
        end = draw(st.integers(begin + 1, rows) | st.just(rows))
        absmax[begin:end, layer] *= draw(st.sampled_from([1e-4, 1e-3, 3e-3]))
        absmax[random.random(rows) < draw(st.sampled_from([0, 0, 0.05, 0.3])), layer] *= draw(st.sampled_from([0, 30]))
    every = draw(st.sampled_from([1, 10]))
    weights = np.full((rows, LAYERS), 3.0) * np.linspace(1, draw(st.sampled_from([1, 0.01])), rows)[:, None]
    return Trace(absmax, every=every, loss=1 + random.random(rows * every) / 9, values={"weight_norm": weights})


seldom = st.builds(now_and_then, st.integers(1, 220), st.sampled_from([1, 10]), st.integers(0, 2**32 - 1))


@pytest.mark.slow
@settings(max_examples=25)
@given(
    st.lists(traces() | quiet | seldom | converging | sick(), min_size=1, max_size=3),
    launches,
    rules,
    st.lists(st.sampled_from([5, 12, 40]), min_size=3),
)
def test_folding_at_once_equals_folding_step_by_step(parts, of, rules, observations):
    """Also where a spool thinned the stream in its middle, or other rules came with a restart."""
    at_once = one_by_one = RuleState.empty()
    begin = 0
    for part, needed in zip(parts, observations, strict=False):
        trace = replace(part, first=-(-begin // part.every) * part.every)
        begin = trace.first + trace.every * len(trace.absmax)
        now = replace(rules, collapse=replace(QUICK.collapse, baseline_observations=needed))
        at_once, changes = run(trace, of, now, at_once)
        one_by_one, found = step_by_step(trace, of, now, one_by_one)
        assert at_once.pack() == one_by_one.pack()
        assert changes == found


@settings(max_examples=8)
@given(traces(), launches)
def test_numbers_of_layers_are_those_that_all_would_have(trace, of):
    """An entry for some layers judges each of them as if its numbers held for all, and the others as if for none.

    But for collapse and explosion, by which layers are judged by each other, and nonfinite, after which a layer sets no
    baseline, with which others are compared.
    """
    entry = replace(PICKY, collapse=None, explosion=None, nonfinite=None)
    _, some = run(trace, of, replace(QUICK, layers=(entry,)))
    _, all_of_them = run(trace, of, replace(QUICK, layers=(replace(entry, match=""),)))
    _, none = run(trace, of, QUICK)
    for layer in range(LAYERS):
        mine = all_of_them if "lora_A" in of.layers[layer].name else none
        assert judged(some, layer) == judged(mine, layer)


def judged(changes, layer):
    """Return what was said of a layer, but how bad an explosion is, and an unused layer: others decide that, too."""
    return [change for change in changes if change.layer == layer and change.rule not in ("explosion", "unused")]


@settings(max_examples=10)
@given(traces(), launches)
def test_a_replay_changes_nothing(trace, of):
    once, _ = run(trace, of, QUICK)
    again, changes = run(trace, of, QUICK, state=once)
    assert again.pack() == once.pack()
    assert changes == ()


@settings(max_examples=15)
@given(traces(), launches, st.permutations(range(LAYERS)))
def test_the_order_of_columns_does_not_matter(trace, of, order):
    _, changes = run(trace, of, QUICK)
    mixed = replace(
        trace,
        absmax=trace.absmax[:, order],
        extra_state={(row, order.index(column)): state for (row, column), state in trace.extra_state.items()},
        accumulators=tuple(
            replace(record, layers=tuple(order.index(column) for column in record.layers))
            for record in trace.accumulators
        ),
        values={stat: values[:, order] for stat, values in trace.values.items()},
    )
    _, found = run(mixed, replace(of, layers=tuple(of.layers[each] for each in order)), QUICK)
    assert found == changes


@settings(max_examples=25)
@given(traces(), launches)
def test_scores_keep_their_bounds_and_nothing_resolves_that_did_not_fire(trace, of):
    state = RuleState.empty()
    open_severity: dict[tuple[str, int | None], int] = defaultdict(lambda: -1)
    ranks = ["information", "warning", "critical"]
    state, changes = run(trace, of, QUICK)
    for change in changes:
        key = (change.rule, change.layer)
        if change.kind == "fired":
            assert change.since_step <= change.step
            open_severity[key] = ranks.index(change.severity)
        else:
            assert open_severity[key] >= 0
            open_severity[key] = -1
    scores = state.scores
    ceiling = np.where(scores.firing, 12, 6)
    ceiling[ZEROS] = np.where(scores.firing[ZEROS], 12, 20)
    ceiling[EXPLOSION] = np.where(scores.firing[EXPLOSION], 12, 3 * min(trace.every, 4))
    assert ((scores.score >= 0) & (scores.score <= ceiling)).all()
    assert (scores.score[scores.firing] > 0).all()
    firing = {(rule, n) for n in range(LAYERS) for rule, said in state.verdict(n).rules.items() if said != "suspect"}
    assert firing == {key for key, rank in open_severity.items() if rank >= 0 and key[1] is not None}


@given(st.lists(st.sampled_from([-1, 0, 1, 1]), max_size=200), st.sampled_from([1, 10, 100, 1000]))
def test_the_score_is_the_one_of_the_design(votes, every):
    scores, column, found = Scores.none(1, 1), np.zeros(1, np.int64), []
    limits = np.array([20], np.float32), np.array([100], np.float32)
    for step, vote in enumerate(votes):
        was = bool(scores.firing[0, 0])
        tipped = apply_vote(Vote(scores, 0, step, every, column, np.array([vote], np.int8), *limits))
        assert tipped == (was != bool(scores.firing[0, 0]))
        found.append((float(scores.score[0, 0]), bool(scores.firing[0, 0])))
    assert found == history(votes, every)
