"""Each detector leaves the same when it skips steps as when it observes them one by one."""

from dataclasses import astuple, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradcanary_server.rules.evaluator import Evaluator, RuleState
from gradcanary_server.rules.signals import (
    APART,
    COLLAPSE,
    EXPLOSION,
    LOST,
    NO_RATE,
    NONFINITE,
    SLOW,
    SUM_FINE,
    TINY,
    UNMOVED,
    VAIN,
    WITHOUT_GRADIENT,
)
from support.strategies import LAYERS, QUICK, launches, now_and_then, traces
from support.traces import Trace, healthy, launch, lora

PARTS = {
    "StaticFindings": lambda state: (
        state.progress.micro_steps,
        state.progress.facts,
        state.scores.score[SUM_FINE:VAIN],
    ),
    "NonfiniteDetector": lambda state: (state.scores.score[NONFINITE], state.of_run.score, state.progress.skipped),
    "LossScaleDetector": lambda state: (state.of_run.score, np.array(astuple(state.progress.scaler), np.float64)),
    "ActivityTracker": lambda state: state.activity.arrays(),
    "ExplosionDetector": lambda state: (*state.initial_levels.arrays(), state.scores.score[EXPLOSION]),
    "ScaleDropDetector": lambda state: (
        *(state.alive, state.baselines.level, state.baselines.block, state.baselines.filled),
        *(state.baselines.blocks, state.baselines.begin, state.baselines.end, state.baselines.pace),
        *(state.progress.last_small_step, state.progress.common_fall),
    ),
    "CollapseDetector": lambda state: (state.below_threshold, state.scores.score[COLLAPSE], *state.weights.arrays()),
    "VanishedDetector": lambda state: (state.scores.score[WITHOUT_GRADIENT],),
    "PrecisionDetector": lambda state: (*state.precision.arrays(), state.scores.score[LOST:SUM_FINE]),
    "NoUpdateDetector": lambda state: (
        *state.updates.arrays(),
        state.scores.score[[UNMOVED, APART, TINY, *range(NO_RATE, SLOW + 1)]],
    ),
    "InVainDetector": lambda state: (state.scores.score[VAIN:UNMOVED], np.array(state.progress.unmoved.shares)),
}
"""What each detector remembers of a run."""

drawn = (
    traces()
    | st.builds(now_and_then, st.integers(1, 120), st.sampled_from([1, 10]), st.integers(0, 2**32 - 1))
    | st.builds(lambda steps, seed: Trace(healthy(steps, LAYERS, seed)), st.integers(1, 60), st.integers(0, 9))
)


def spans(trace, of):
    """Yield the states that a skipped span of a trace leaves, and its steps one by one."""
    samples = trace.samples()
    evaluator = Evaluator(RuleState.empty(), of, samples, QUICK)
    batch, row = evaluator.context.batch, 0
    while row < len(batch.steps):
        span = evaluator.find_span(row)
        if span is None:
            list(evaluator.observe(batch.at(row)))
            row += 1
            continue
        before = RuleState.unpack(evaluator.state.pack())
        one_by_one = Evaluator(before, of, replace(samples, accumulators=()), QUICK)
        for each in range(span.begin, span.end):
            assert list(one_by_one.observe(batch.at(each))) == []
        evaluator.skip(span)
        yield evaluator.state, one_by_one.state
        row = span.end


@pytest.mark.parametrize("detector", PARTS)
@settings(max_examples=8)
@given(drawn, launches)
def test_a_skipped_span_leaves_what_its_steps_leave(detector, trace, of):
    for skipped, observed in spans(trace, of):
        for one, other in zip(PARTS[detector](skipped), PARTS[detector](observed), strict=True):
            np.testing.assert_array_equal(one, other)


def test_every_detector_is_compared():
    evaluator = Evaluator(RuleState.empty(), launch(lora()[:LAYERS]), Trace(healthy(1, LAYERS)).samples(), QUICK)
    assert {type(each).__name__ for each in evaluator.detectors} == {*PARTS}
