"""Aggregates of rollups: rounded so that they are smaller, and never so that a dip or a peak is hidden."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from gradcanary_server.tsdb import rollup
from gradcanary_server.tsdb.rollup import COUNT, FACTOR, MAXIMUM, MEAN, MINIMUM, NONFINITE, PLANES, Aggregates
from gradcanary_server.tsdb.tiles import TOP

EXTREME, OF_MEAN = 2.5e-4, 2.2e-4
SMALLEST, LARGEST = np.finfo(np.float32).smallest_subnormal, np.finfo(np.float32).max

BITS = st.integers(0, 0x7F7FFFFF).map(lambda bits: float(np.uint32(bits).view(np.float32)))
STATS = st.one_of(
    BITS, st.floats(2.0**-30, 2.0**14, width=32), st.sampled_from([0.0, float(SMALLEST), float(LARGEST), np.nan])
)


def planes(rows):
    return arrays.arrays(np.float32, st.tuples(rows, st.just(2)), elements=STATS)


@given(planes(st.integers(1, 40)))
def test_aggregate_covers_all_measured_values(plane):
    low, mean, high = (rollup.round_plane(name, plane).astype(np.float64) for name in (MINIMUM, MEAN, MAXIMUM))
    true, known = plane.astype(np.float64), ~np.isnan(plane)
    assert (low <= true)[known].all()
    assert (high >= true)[known].all()
    assert ((low <= mean) & (mean <= high))[known].all()
    for found in (low, mean, high):
        assert (np.isnan(found) == ~known).all()
        assert np.isfinite(found[known]).all()
        assert ((found == 0) == (true == 0)).all()
        assert (np.abs(found - true) <= EXTREME * true)[known].all()


@given(planes(st.integers(1, 40)))
def test_rounding_again_changes_nothing(plane):
    for name in (MINIMUM, MEAN, MAXIMUM):
        once = rollup.round_plane(name, plane)
        assert rollup.round_plane(name, once).tobytes() == once.tobytes()


@given(planes(st.integers(1, 60)), st.integers(0, 2**32 - 1), st.integers(1, TOP))
def test_aggregates_of_aggregates_are_those_of_a_plain_reading(plane, seed, top):
    rng = np.random.default_rng(seed)
    steps = np.unique(rng.integers(0, 2 * FACTOR**top, len(plane)))
    plane = plane[: len(steps)]
    found = rollup.Aggregates.of_samples(steps, plane, np.zeros(plane.shape, np.bool_))
    for level in range(1, top + 1):
        found = found.downsample(FACTOR**level)
    for row, start in enumerate(found.start.tolist()):
        mine = plane[steps // FACTOR**top * FACTOR**top == start].astype(np.float64)
        for column in range(plane.shape[1]):
            at = {name: float(part[row, column]) for name, part in found.planes.items()}
            true = mine[~np.isnan(mine[:, column]), column]
            assert (at[COUNT], at[NONFINITE]) == (len(true), 0)
            if len(true):
                assert true.min() * (1 - EXTREME) <= at[MINIMUM] <= true.min()
                assert true.max() <= at[MAXIMUM] <= true.max() * (1 + EXTREME)
                assert at[MINIMUM] <= at[MEAN] <= at[MAXIMUM]
                assert at[MEAN] == pytest.approx(true.mean(), rel=OF_MEAN, abs=top * float(SMALLEST))


@pytest.mark.parametrize(("name", "kept", "added"), [(MINIMUM, 2048, 0), (MEAN, 512, 256), (MAXIMUM, 2048, 2047)])
def test_bits_that_are_dropped_round_to_the_right_side(name, kept, added):
    bits = np.uint32(0x3F800000) + np.arange(4096, dtype=np.uint32).reshape(-1, 1)
    found = rollup.round_plane(name, bits.view(np.float32)).view(np.uint32)
    assert (found == (bits + np.uint32(added)) // kept * kept).all()


STEPS, VALUES, FLAGS = np.arange(6), np.arange(12, dtype=np.float32).reshape(6, 2), np.eye(6, 2) > 0


def test_only_planes_that_are_wanted_are_made():
    assert Aggregates.of_samples(STEPS, VALUES, FLAGS, (MEAN, COUNT)).planes.keys() == {MEAN, COUNT}
    assert Aggregates.of_samples(STEPS, VALUES, None).planes.keys() == {*PLANES} - {NONFINITE}
    assert Aggregates.of_samples(STEPS, None, FLAGS, (NONFINITE,)).planes.keys() == {NONFINITE}


def test_parts_are_put_together_in_their_order():
    whole = Aggregates.of_samples(STEPS, VALUES, FLAGS)
    parts = [Aggregates.of_samples(STEPS[at], VALUES[at], FLAGS[at]) for at in (slice(2), slice(2, 5), slice(5, 6))]
    joined = Aggregates.concat(parts)
    assert (joined.start == whole.start).all()
    assert all((joined.planes[name] == plane).all() for name, plane in whole.planes.items())
    assert Aggregates.concat(parts[:1]) is parts[0]
    blank = Aggregates.without_samples(STEPS, 3, PLANES)
    assert {name: (plane.shape, float(np.nan_to_num(plane, nan=-1).max())) for name, plane in blank.planes.items()} == {
        name: ((6, 3), 0.0 if name in (COUNT, NONFINITE) else -1.0) for name in PLANES
    }
    nothing = Aggregates.without_samples(STEPS[:0], 3, PLANES)
    assert nothing.downsample(FACTOR) is nothing


@given(st.integers(0, 2**32 - 1))
def test_points_of_metrics_are_combined_by_series_and_by_steps(seed):
    rng = np.random.default_rng(seed)
    series, steps = rng.integers(0, 3, 60), np.sort(rng.integers(0, 40, 60))
    values, times = rng.choice([1.0, -2.5, 4.0, np.nan, np.inf], 60), rng.uniform(0, 9, 60)
    parts = [
        rollup.SparseAggregates.of_points(series[at], steps[at], values[at], times[at])
        for at in (series < 1, series > 0)
    ]
    found = rollup.SparseAggregates.concat(parts[::-1]).downsample(FACTOR)
    keys = sorted({(one, step // FACTOR * FACTOR) for one, step in zip(series.tolist(), steps.tolist(), strict=True)})
    assert list(zip(found.series.tolist(), found.start.tolist(), strict=True)) == keys
    for row, (one, start) in enumerate(keys):
        of_row = (series == one) & (steps // FACTOR * FACTOR == start)
        finite = values[of_row & np.isfinite(values)]
        assert (found.first[row], found.last[row]) == (steps[of_row].min(), steps[of_row].max())
        assert (found.count[row], found.nonfinite[row]) == (len(finite), of_row.sum() - len(finite))
        assert found.time[row] == times[of_row].min()
        of_values = [found.minimum[row], found.mean[row], found.maximum[row]]
        true = [finite.min(), finite.mean(), finite.max()] if len(finite) else [np.nan] * 3
        assert of_values == pytest.approx(true, nan_ok=True)
