"""Tables of an export: the rows are the same however they came, and no table is larger than its columns need."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradcanary_server.tsdb import tables
from gradcanary_server.tsdb.rollup import SparseAggregates
from gradcanary_server.tsdb.tables import Table, full_tables, point_tables


def table(first: int, rows: int, columns: int) -> Table:
    steps = np.arange(first, first + rows, dtype=np.int64)
    values = (steps[:, None] + np.arange(columns) / 8).astype(np.float32)
    return Table(steps, steps * 0.5, np.full(rows, 1 + first, np.int32), values, values % 3 < 2)


@given(st.lists(st.integers(0, 40), max_size=12), st.sampled_from([0, 1, 3]))
def test_rows_stay_the_same_in_full_tables(sizes: list[int], columns: int) -> None:
    firsts = np.cumsum([0, *sizes])[:-1].tolist()
    cut = [table(first, rows, columns) for first, rows in zip(firsts, sizes, strict=True)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tables, "CELLS", 24)
        patched.setattr(tables, "MIN_ROWS", 5)
        patched.setattr(tables, "MAX_ROWS", 11)
        found = list(full_tables(iter(cut), columns))
    assert all(len(each) == (8 if columns == 3 else 11) for each in found[:-1])
    assert all(len(each) for each in found)
    if found:
        whole, expected = Table.concat(found), Table.concat(cut)
        for name in vars(whole):
            np.testing.assert_array_equal(getattr(whole, name), getattr(expected, name))
    else:
        assert sum(sizes) == 0


def test_a_table_is_there_before_all_was_read() -> None:
    read = []

    def pieces() -> object:
        for number in range(100):
            read.append(number)
            yield table(number * 1_000, 1_000, 100)

    next(full_tables(pieces(), 100))  # type: ignore[arg-type]
    assert len(read) <= 1 + tables.CELLS // 100 // 1_000


def test_points_of_a_step_are_a_row_and_the_later_one_counts() -> None:
    steps = np.array([7, 3, 3, 3, 9], np.int64)
    values = np.array([0.5, np.nan, np.inf, 2.0, 4.0])
    series = np.array([0, 0, 1, 1, 2], np.int64)
    part = SparseAggregates.of_points(series, steps, values, np.array([1.0, np.nan, 5.0, 4.0, np.nan]))
    [found] = point_tables([part], 3)
    assert found.steps.tolist() == [3, 7, 9]
    assert repr(found.times.tolist()) == "[4.0, 1.0, nan]"
    assert repr(found.values.tolist()) == "[[nan, 2.0, nan], [0.5, nan, nan], [nan, nan, 4.0]]"
    assert found.is_valid.tolist() == [[True, True, False], [True, False, False], [False, False, True]]
