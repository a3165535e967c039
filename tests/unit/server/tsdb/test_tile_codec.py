"""Packed arrays come back bit for bit, and cost no more than what differs between neighbours."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from gradcanary_server.tsdb import tile_codec

DTYPES = ["<f4", "<f8", "<i8", "<i4", "<u2", "|u1", "|b1", ">f4", ">i8"]
VALUES = st.sampled_from(DTYPES).flatmap(
    lambda dtype: arrays.arrays(np.dtype(dtype), arrays.array_shapes(max_dims=3, min_side=0, max_side=9))
)
ZEROS = np.array([[0.0, -0.0], [np.nan, np.inf]], np.float32)


@given(st.lists(VALUES, max_size=4))
@example([ZEROS, ZEROS[0], ZEROS[:, ::-1], ZEROS[:1, :1], np.arange(7), np.full((2, 3), np.nan, np.float32)])
def test_arrays_come_back_bit_for_bit(values):
    named = {f"a{number}": each for number, each in enumerate(values)}
    for found in (tile_codec.unpack(tile_codec.pack(named)), tile_codec.compact(named)):
        assert {name: picture(each) for name, each in found.items()} == {
            name: picture(each) for name, each in named.items()
        }


def picture(values):
    little = values.astype(values.dtype.newbyteorder("<"))
    return little.dtype, little.shape, little.tobytes()


def test_compacted_arrays_neither_change_nor_hold_the_memory_they_are_part_of():
    whole = np.arange(1000, dtype=np.float32)
    found = tile_codec.compact({"part": whole[:10], "same": np.zeros(500_000), "whole": whole})
    with pytest.raises(ValueError, match="read-only"):
        found["part"][0] = 1
    assert not np.shares_memory(found["part"], whole)
    assert np.shares_memory(found["whole"], whole), "not copied"
    assert whole.flags.writeable
    assert found["same"].strides == (0,)


def noise(levels):
    """Values of 400 steps within a factor of two, each layer around its level."""
    return (2.0 ** np.random.default_rng(0).uniform(0, 1, (400, len(levels))) * levels).astype(np.float32)


@pytest.mark.parametrize(
    ("values", "most"),
    [
        (np.full((400, 300), 1.5, np.float32), 64),
        (np.arange(10_000) * 50 + 12_345, 150),
        (noise(10.0 ** np.linspace(-9, 0, 300)), 0.73 * 4 * 400 * 300),  # the highest byte of each is constant
    ],
)
def test_what_neighbours_share_costs_next_to_nothing(values, most):
    assert len(tile_codec.pack({"values": values})) <= most
