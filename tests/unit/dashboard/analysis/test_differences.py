"""Which layers of several runs differ, and by how much."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from gradcanary_dashboard.analysis.differences import STRETCHES, Difference, differences, stretch
from support.api_answers import column

STEPS = 240
NO_DATA, ZERO, NONFINITE = -32768, -32767, 32767


def picture(
    cells: NDArray[np.int16], names: list[str] | None = None, first: int = 0, bucket: int = 1
) -> dict[str, object]:
    """What the collector answers: milli-decades [layer, bucket]."""
    rows = names or [f"layer.{row}" for row in range(len(cells))]
    return {
        "bucket_steps": bucket,
        "steps": column(first + bucket * np.arange(cells.shape[1]), "float64"),
        "rows": [{"layers": [place], "name": name, "block": name} for place, name in enumerate(rows)],
        "cells": column(cells, "int16"),
    }


def flat(*decades: float, steps: int = STEPS) -> NDArray[np.int16]:
    return np.repeat(1000 * np.array([decades]).T, steps, axis=1).astype(np.int16)


def of_two(
    one: NDArray[np.int16], other: NDArray[np.int16], *, is_log: bool = True, bucket: int = 1
) -> list[Difference]:
    common = (0, bucket * one.shape[1] - 1)
    answers = [picture(cells, bucket=bucket) for cells in (one, other)]
    return list(differences(answers, [0, 0], common, is_log=is_log).rows)


@given(
    st.lists(st.floats(-7, 0), min_size=2, max_size=8), st.integers(0, 7), st.floats(0.5, 4), st.sampled_from([-1, 1])
)
def test_the_layer_that_was_moved_is_first_and_by_as_much(
    levels: list[float], which: int, decades: float, way: int
) -> None:
    moved = which % len(levels)
    before, after = flat(*levels), flat(*levels)
    after[moved] += way * round(1000 * decades)
    found = of_two(before, after)
    assert found[0].name == f"layer.{moved}"
    assert found[0].gap == pytest.approx(way * decades, abs=2e-3)
    assert all(row.gap == 0 for row in found[1:])
    assert found[0].values[1] / found[0].values[0] == pytest.approx(10 ** found[0].gap, rel=1e-2)
    back = of_two(after, before)
    assert (back[0].name, back[0].gap) == (found[0].name, -found[0].gap)


@given(st.integers(0, STRETCHES - 1), st.integers(1, 5_000), st.integers(1, 12))
def test_stretches_cover_all_steps_once(place: int, width: int, count: int) -> None:
    count = min(count, width)
    place %= count
    covered = [step for each in range(count) for step in range(*stretch(each, count, (7, 6 + width)))]
    ends = [stretch(each, count, (7, 6 + width))[1] for each in range(count)]
    assert sorted([*covered, *ends]) == list(range(7, 7 + width))
    first, last = stretch(place, count, (7, 6 + width))
    assert {(step - 7) * count // width for step in range(first, last + 1)} == {place}


def test_a_collapse_late_in_a_run_is_found_where_it_was() -> None:
    """Over all steps the medians of both runs are the same."""
    before, after = flat(-3, -3), flat(-3, -3)
    after[1, 200:220] = -6500
    (first, _) = of_two(before, after)
    assert (first.name, first.gap) == ("layer.1", pytest.approx(-3.5))
    assert (first.first, first.last) == (200, 219)


def test_single_step_is_no_difference() -> None:
    before, after = flat(-3), flat(-3)
    after[0, 100], after[0, 150] = -9000, 3000
    assert of_two(before, after)[0].gap == 0


def test_sampled_at_other_steps_in_other_buckets_and_counted_from_elsewhere() -> None:
    one, other = flat(-3, -4), flat(-3, -4, steps=24)
    other[1, 6:12] = -5000
    answers = [picture(one), picture(other, first=5000, bucket=10)]
    found = differences(answers, [0, 5000], (0, STEPS - 1), is_log=True)
    assert [(row.name, row.gap) for row in found.rows] == [("layer.1", pytest.approx(-1)), ("layer.0", 0)]
    assert (found.rows[0].first, found.rows[0].last) == (60, 119)
    assert found.stretches == 4  # of at least five of the wider buckets


def test_exact_zero_and_not_finite_are_further_than_any_number() -> None:
    one, other = flat(-3, -3, -3, -3, -3), flat(-9, -3, -3, -3, -3)
    other[1], other[2] = ZERO, NONFINITE
    one[3] = other[3] = ZERO
    found = {row.name: row for row in of_two(one, other)}
    assert [abs(row.gap) for row in found.values()] == [np.inf, np.inf, pytest.approx(6), 0, 0]
    assert found["layer.1"].values == (pytest.approx(1e-3), 0)
    assert found["layer.2"].values == (pytest.approx(1e-3), np.inf)
    assert found["layer.3"].values == (0, 0)


def test_steps_measured_in_one_run_only_are_counted_and_not_compared() -> None:
    one, other = flat(-3, -3, -3), flat(-3, -6, -4)
    one[1], other[1, :120], other[2, ::2] = NO_DATA, NO_DATA, NO_DATA
    found = differences([picture(one), picture(other)], [0, 0], (0, STEPS - 1), is_log=True)
    assert ([row.name for row in found.rows], found.unmeasured) == (["layer.2", "layer.0"], 1)


def test_layers_that_only_some_runs_have_are_named() -> None:
    names = (["a", "b", "only"], ["b", "a"], ["b", "a", "two"])
    answers = [picture(flat(*[-3.0] * len(each)), each) for each in names]
    answers[2] = picture(flat(-3, -5, -3), names[2])
    found = differences(answers, [0, 0, 0], (0, STEPS - 1), is_log=True)
    assert found.partly == {"only": (0,), "two": (2,)}
    assert [(row.name, row.of, row.gap) for row in found.rows] == [("a", 2, pytest.approx(-2)), ("b", 1, 0)]


def test_a_share_differs_by_plain_numbers() -> None:
    one, other = flat(np.log10(0.5), -1), flat(np.log10(0.25), -1)
    other[1] = ZERO
    first, second = of_two(one, other, is_log=False)
    assert (first.name, first.gap) == ("layer.0", pytest.approx(-0.25, rel=1e-2))
    assert (second.name, second.gap, second.values[1]) == ("layer.1", pytest.approx(-0.1), 0)


def test_no_layer_in_common_is_no_row() -> None:
    answers = [picture(flat(-3), ["a"]), picture(flat(-3), ["b"])]
    found = differences(answers, [0, 0], (0, STEPS - 1), is_log=True)
    assert (list(found.rows), found.partly) == ([], {"a": (0,), "b": (1,)})
