"""Shards put together against the whole tensor, every stat in float64; and columns that go over the wire and back."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradcanary import wire
from gradcanary_server.ingest.shard_merge import ORDER, AbsentRank, RankBatch, Shard, combine_shards, merge
from gradcanary_server.tsdb import batch
from gradcanary_server.tsdb.batch import NO_PHASE, Columns, MetricColumn, encode_batch
from gradcanary_server.tsdb.log import LoggedBatch

MEASURED, NO_GRADIENT, ZERO, NONFINITE, NOT_TRAINABLE, PARTIAL = range(len(wire.STATES))


def stats(grad, weight, moved, shadow):
    """All stats of some elements as one process has them."""
    norm, error = np.linalg.norm(grad), np.abs(shadow - grad).max(initial=0)
    return {
        "absmax": np.abs(grad).max(initial=0),
        "norm": norm,
        "zero_fraction": np.mean(grad == 0),
        "nonfinite": 0.0,
        "weight_norm": np.linalg.norm(weight),
        "update_ratio": np.linalg.norm(moved) / np.linalg.norm(weight),
        "frozen_fraction": np.mean(moved == 0),
        "accumulation_error": error,
    }


def shard(numel, state, **values):
    planes = {stat: np.full((1, 1), value, np.float32) for stat, value in values.items()}
    return Shard(np.array([numel]), np.full((1, 1), state, np.uint8), planes)


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1), st.lists(st.integers(0, 9), min_size=1, max_size=5).filter(any), st.floats(-8, 8))
def test_every_stat_of_the_parts_is_that_of_the_whole(seed, sizes, decades):
    rng = np.random.default_rng(seed)
    grad, weight, moved, shadow = 10**decades * rng.normal(size=(4, sum(sizes)))
    grad[rng.random(len(grad)) < 0.3] = 0
    moved[rng.random(len(moved)) < 0.3] = 0
    ends = np.cumsum(sizes)
    parts = []
    for size, end in zip(sizes, ends, strict=True):
        mine = slice(end - size, end)
        is_zero = not grad[mine].any()
        told = stats(grad[mine], weight[mine], moved[mine], shadow[mine]) if size else {}
        parts.append(shard(size, NO_GRADIENT if not size else ZERO if is_zero else MEASURED, **told))
    state, values = combine_shards(parts)
    assert state[0, 0] == (MEASURED if grad.any() else ZERO)
    told = {*stats(grad, weight, moved, shadow), "norm_ratio"}  # of which the least part counts
    assert {*wire.STATS} == told, "a new stat is merged in shard_merge, and compared here"
    for stat, expected in stats(grad, weight, moved, shadow).items():
        assert values[stat][0, 0] == pytest.approx(expected, rel=1e-6), stat


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(range(len(wire.STATES)))), min_size=1, max_size=5))
def test_the_state_is_the_first_of_those_that_parts_with_elements_have(parts):
    state, _ = combine_shards([shard(numel, each) for numel, each in parts])
    held = [each for numel, each in parts if numel]
    assert state[0, 0] == next((each for each in ORDER if each in held), PARTIAL)


def test_missing_part_makes_a_stat_unknown():
    whole = {"absmax": 1.0, "norm": 2.0, "zero_fraction": 0.5, "weight_norm": 3.0}
    parts = [shard(4, MEASURED, **whole), shard(4, MEASURED, absmax=2.0, norm=1.0)]
    _, values = combine_shards(parts)
    assert values.keys() == {"absmax", "norm"}
    assert values["norm"][0, 0] == pytest.approx(np.sqrt(5))
    _, values = combine_shards([parts[0], shard(4, PARTIAL)])
    assert values.keys() == set()
    _, values = combine_shards([parts[0], shard(4, ZERO, absmax=0.0, norm=0.0)])
    assert values["zero_fraction"][0, 0] == 0.75, "of a part that is zero it is known"
    _, values = combine_shards([parts[0], shard(4, NO_GRADIENT)])
    assert values["norm"][0, 0] == 2, "without a gradient it adds nothing"


def test_nonfinite_values_are_counted_and_have_no_norm():
    state, values = combine_shards([shard(4, NONFINITE, nonfinite=2.0), shard(4, MEASURED, absmax=1.0, norm=1.0)])
    assert state[0, 0] == NONFINITE
    assert values.keys() == {"nonfinite"}
    assert values["nonfinite"][0, 0] == 2


def test_a_norm_beyond_float32_is_its_largest_number():
    _, values = combine_shards([shard(1, MEASURED, absmax=3e38, norm=3e38)] * 4)
    assert values["norm"][0, 0] == np.finfo(np.float32).max


def columns(steps, state, values, *, every=1, phase=1, micro_steps=8, clipped=False):
    n = len(steps)
    return Columns(
        layer_set="0" * 16,
        every=every,
        steps=np.array(steps, np.int64),
        times=np.arange(n, dtype=np.float64),
        micro_steps=np.full(n, micro_steps, np.int16),
        skipped=np.zeros(n, np.uint8),
        clipped=np.full(n, clipped),
        state=np.asarray(state, np.uint8),
        values={stat: np.asarray(plane, np.float32) for stat, plane in values.items()},
        phases=dict.fromkeys(values, np.full(n, phase, np.uint8)),
        accumulators=(),
        metrics=(),
        dropped_steps=0,
    )


def part(rank, numbers, numel, made):
    return RankBatch(rank, LoggedBatch(1, f"r{rank}", 0, np.array(numbers, np.int32), made), np.array(numel, np.int64))


def test_ranks_may_have_other_layers_and_other_intervals():
    fine = columns(range(12), np.zeros((12, 2)), {"absmax": np.ones((12, 2))}, micro_steps=4)
    coarse = columns([0, 10], np.zeros((2, 2)), {"absmax": np.full((2, 2), 2)}, every=10, phase=3, clipped=True)
    whole = merge([part(1, [2, 7], [4, 4], coarse), part(0, [2, 5], [4, 4], fine)], (), (), 1)
    assert whole.numbers.tolist() == [2, 5, 7]
    assert whole.columns.every == 10
    assert whole.columns.steps.tolist() == [0, 10], "where both have measured"
    assert whole.columns.values["absmax"].tolist() == [[2, 1, 2]] * 2
    assert whole.columns.phases["absmax"].tolist() == [3, 3], "the one that promises less"
    assert whole.columns.micro_steps.tolist() == [4, 4], "as the lowest rank says"
    assert whole.columns.clipped.all()


def test_a_batch_with_metrics_and_no_samples_is_merged():
    """Such a batch has no width: its state is of 0 steps and 0 layers, whatever its layer set."""
    loss = MetricColumn("loss", "{}", np.array([5], np.int64), np.array([2.5]))
    whole = merge([part(0, [2, 5], [4, 4], columns([], np.zeros((0, 0)), {}))], (), (loss,), 1)
    assert whole.columns.metrics == (loss,)
    assert whole.columns.state.shape == (0, 0)


def test_an_absent_rank_makes_partial_what_it_holds():
    made = columns([3], np.zeros((1, 2)), {"absmax": np.ones((1, 2))})
    mine = part(0, [0, 1], [4, 4], made)
    known = AbsentRank(np.array([1, 4], np.int32), np.array([2, 2], np.int64))
    whole = merge([mine], [known], (), 1)
    assert whole.numbers.tolist() == [0, 1, 4]
    assert whole.columns.state.tolist() == [[MEASURED, PARTIAL, PARTIAL]], "the layer that it alone has did not go"
    assert merge([mine], [AbsentRank()], (), 1).columns.state.tolist() == [[PARTIAL, PARTIAL]]


@given(st.integers(0, 2**32 - 1), st.integers(0, 6), st.integers(1, 5))
def test_columns_go_over_the_wire_and_back(seed, steps, layers):
    rng = np.random.default_rng(seed)
    state = rng.integers(0, len(wire.STATES), (steps, layers))
    values = {}
    for stat in ("absmax", "zero_fraction"):
        plane = rng.random((steps, layers)).astype(np.float32)
        plane[(state != MEASURED) & (state != ZERO)] = np.nan
        values[stat] = plane
    values["zero_fraction"][rng.random(steps) < 0.5] = np.nan
    sent = columns(range(steps), state if steps else np.empty((0, 0)), values if steps else {})
    sent.phases["absmax"] = rng.integers(0, 4, steps).astype(np.uint8)
    back = batch.decode_batch(batch.parse_batch(wire.dump(encode_batch(sent))))
    for name in ("steps", "times", "micro_steps", "skipped", "clipped", "state"):
        np.testing.assert_array_equal(getattr(back, name), getattr(sent, name))
    for stat, plane in sent.values.items():
        blank = np.full(plane.shape, np.nan)
        np.testing.assert_array_equal(back.values.get(stat, blank), plane)
        there = ~np.isnan(plane).all(axis=1)
        seen = back.phases.get(stat, np.full(steps, NO_PHASE))
        np.testing.assert_array_equal(seen[there], sent.phases[stat][there])
