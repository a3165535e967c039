"""Ways beside the first one: what noise explains is no difference, and what parts is found where it begins."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradcanary.sanity.comparison import (
    ROUNDING,
    compare_exactly,
    compare_losses,
    compare_times,
    leave_range,
)
from gradcanary.sanity.report import Check, Report

SEEDS = st.integers(0, 10_000)


def falling(seed: int, steps: int = 200, noise: float = 0.1) -> list[tuple[int, float]]:
    """Return losses that fall from 3 to 1, with the noise of batches."""
    drawn = random.Random(seed)
    return [(step, 1 + 2 * math.exp(-step / 40) + drawn.gauss(0, noise)) for step in range(steps)]


def report(absmax: list[float], **others) -> Report:
    return Report("run", ("train.py",), 9, 9, "stopped", 0, absmax=tuple(enumerate(absmax)), **others)


@pytest.mark.parametrize("steps", [30, 75, 200])
def test_noise_of_batches_alone_parts_no_losses(steps: int) -> None:
    """Fixed seeds: of thousands of pairs, one parts by chance."""
    found = [compare_losses(falling(seed, steps), falling(seed + 1, steps)) for seed in range(0, 200, 2)]
    assert [each.parts_at for each in found if each is not None] == [None] * 100


@settings(derandomize=True)  # of thousands of pairs, one parts by chance before
@given(seed=SEEDS, start=st.integers(1, 9))
def test_losses_part_in_the_block_in_which_they_do(seed: int, start: int) -> None:
    other = [(step, loss + (0.5 if step >= 20 * start else 0)) for step, loss in falling(seed + 1)]
    found = compare_losses(falling(seed), other)
    assert found is not None
    assert found.parts_at == 20 * start
    assert found.difference > found.noise


def test_losses_without_noise_part_by_a_hundredth_of_the_first_one() -> None:
    first = [(step, 10.0) for step in range(100)]
    near, far = ([(step, 10.0 + by) for step in range(100)] for by in (0.09, 0.11))
    assert [compare_losses(first, each).parts_at for each in (near, far)] == [None, 0]


def test_a_loss_that_is_not_finite_parts_there() -> None:
    other = [(step, math.nan if step >= 33 else loss) for step, loss in falling(0, 100)]
    found = compare_losses(falling(0, 100), other)
    assert found is not None
    assert found.parts_at == found.nonfinite_at == 33


@given(seed=SEEDS, k=st.sampled_from([0.25, 4, 16]))
def test_the_ratio_of_the_first_losses_is_that_of_the_micro_steps(seed: int, k: float) -> None:
    found = compare_losses(falling(seed), [(step, k * loss) for step, loss in falling(seed)])
    assert found is not None
    assert found.ratio is not None
    assert math.isclose(found.ratio, k)
    assert found.parts_at == 0


def test_few_steps_are_not_compared() -> None:
    assert compare_losses(falling(0, 4), falling(1, 4)) is None
    assert compare_exactly(falling(0, 4), []) is None


def test_the_same_losses_are_the_same_to_the_last_bit_and_rounding_is_not_a_part() -> None:
    first = falling(0)
    same = compare_exactly(first, [*first[:50], (50, math.inf)][:50])
    assert same is not None
    assert (same.is_exact, same.parts_at, same.largest) == (True, None, 0.0)
    rounded = compare_exactly(first, [(step, loss * (1 + ROUNDING / 2)) for step, loss in first])
    assert rounded is not None
    assert (rounded.is_exact, rounded.parts_at) == (False, None)


def test_a_loss_that_differs_after_the_first_step_parts_there_and_one_from_the_start_begins_apart() -> None:
    first = falling(0)
    other = [(step, loss * (1.01 if step >= 1 else 1)) for step, loss in first]
    later, at_once = compare_exactly(first, other), compare_exactly(first[1:], other[1:])
    assert later is not None
    assert at_once is not None
    assert (later.parts_at, later.begins_apart) == (1, False)
    assert (at_once.parts_at, at_once.begins_apart) == (1, True)


def test_times_differ_where_the_middle_halves_do_not_overlap() -> None:
    one, near, far = (
        report([1.0], step_time_quartiles_s=times) for times in ((0.010, 0.012), (0.0119, 0.02), (0.0121, 0.02))
    )
    assert [compare_times(one, each) for each in (near, far)] == ["alike", "slower"]
    assert compare_times(far, one) == "faster"
    assert compare_times(one, report([1.0])) == "unknown"


def test_gradients_leave_the_range_at_the_first_step_beyond_it() -> None:
    healthy = report([1.0, 2.0])
    assert leave_range(report([1.0, 199.0]), healthy) is None
    exploded, dead = leave_range(report([1.0, 10.0, 201.0]), healthy), leave_range(report([1.0, 0.0]), healthy)
    assert exploded is not None
    assert dead is not None
    assert (exploded.step, exploded.kind) == (2, "explosion")
    assert (dead.step, dead.kind) == (1, "zero")
    infinite = leave_range(report([1.0, 2.0, 300.0], first_nonfinite_step=1), healthy)
    assert infinite is not None
    assert (infinite.step, infinite.kind) == (1, "nonfinite")


def test_a_first_way_that_is_ill_is_no_measure() -> None:
    ill = report([1.0, 1e9], checks=(Check("finite", "not ok", ""),))
    found = leave_range(ill, ill)
    assert found is not None
    assert found.step == 1
