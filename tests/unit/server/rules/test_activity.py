"""Each detector leaves the same when it skips steps as when it observes them one by one."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gradcanary_server.rules.evaluator import Evaluator, RuleState
from gradcanary_server.rules.state import Progress
from gradcanary_server.rules.types import LayerArrays
from support.strategies import LAYERS, QUICK, launches, now_and_then, traces
from support.traces import Trace, healthy

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


@settings(max_examples=88)
@given(drawn, launches)
def test_a_skipped_span_leaves_what_its_steps_leave(trace, of):
    for skipped, observed in spans(trace, of):
        for name, value in vars(skipped).items():
            other = getattr(observed, name)
            if isinstance(value, Progress):  # rates that are not known are NaN, which equals nothing
                assert repr(value) == repr(other)
                continue
            if isinstance(value, LayerArrays):
                value, other = value.arrays(), other.arrays()
            np.testing.assert_equal(value, other, name)
