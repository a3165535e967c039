"""Aggregates of rollups: rounded so that they are smaller, and never so that a dip or a peak is hidden."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from gradcanary_server.tsdb import rollup
from gradcanary_server.tsdb.rollup import COUNT, FACTOR, MAXIMUM, MEAN, MINIMUM, NONFINITE
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
