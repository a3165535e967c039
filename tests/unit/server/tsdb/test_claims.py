"""Runs are claimed in small groups."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gradcanary_server.tsdb.claims import GROUP_BYTES, GROUP_RUNS, split_groups


@given(st.dictionaries(st.integers(0, 2**62), st.integers(0, 2 * GROUP_BYTES), max_size=60))
def test_each_run_is_in_one_group_and_a_group_is_small(sizes: dict[int, int]) -> None:
    groups = list(split_groups(sizes))
    assert [run_id for group in groups for run_id in group] == sorted(sizes)
    for group in groups:
        assert 1 <= len(group) <= GROUP_RUNS
        assert len(group) == 1 or sum(sizes[run_id] for run_id in group) <= GROUP_BYTES
    for group, following in pairwise(groups):
        is_full = len(group) == GROUP_RUNS
        assert is_full or sum(sizes[run_id] for run_id in [*group, following[0]]) > GROUP_BYTES
