"""When the sampling interval changes: by what looks cost, on machines whose costs are made up and on real ones."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gradcanary.budget import INTERVALS, LOOK_ROUNDS, LOOK_SAMPLES, LOOK_STEPS, PATIENCE, Look, Pace, paced

BUDGET = 0.01
prices = st.floats(0, 0.2)


def look(every: int, sample: float, step: float, sender: float = 0.0) -> Look:
    """A look at steps of a second each, at prices of a sample, of a step and of what the sender reads."""
    steps = max(LOOK_STEPS, LOOK_SAMPLES * every)
    samples = steps // every
    return Look(
        steps=steps,
        samples=samples,
        elapsed_s=float(steps),
        sampled_s=samples * (sample + step),
        other_s=(steps - samples) * step,
        sender_s=samples * sender,
        rounds=LOOK_ROUNDS,
    )


def intervals(*costs: tuple[float, float], pace: Pace | None = None) -> list[int]:
    """Return the interval after each look; a cost is that of a sample and of a step."""
    pace, found = pace or Pace(), []
    for sample, step in costs:
        pace = paced(pace, look(pace.every, sample, step), BUDGET)
        found.append(pace.every)
    return found


def test_it_widens_while_the_share_is_over_the_budget_and_no_further() -> None:
    assert intervals(*[(0.009, 0.0)] * 3) == [1, 1, 1]
    assert intervals(*[(0.05, 0.0)] * 3) == [10, 10, 10]
    assert intervals(*[(0.5, 0.0)] * 3) == [10, 100, 100]
    assert intervals(*[(20.0, 0.0)] * 5) == [10, 100, 1000, 1000, 1000]
    assert paced(Pace(), look(1, 0.0, 0.0, sender=0.02), BUDGET).every == 10


def test_what_every_step_costs_is_no_reason_to_sample_less() -> None:
    """Every step takes 2 %: seen only once there are steps that are not sampled."""
    assert intervals(*[(0.001, 0.02)] * 3) == [10, 10, 10]
    assert intervals(*[(0.03, 0.02)] * 4) == [10, 10, 100, 100]


def test_hooks_rest_once_what_every_step_costs_takes_a_quarter_of_the_budget() -> None:
    """Before a wider interval is tried, which that may make needless; and for good, or the next look would end it."""
    paces = [Pace(10)]
    for step in (0.0024, 0.0026, 0.0001, 0.0):
        paces.append(paced(paces[-1], look(paces[-1].every, 0.08, step), BUDGET))
    assert [pace.rests for pace in paces] == [False, False, True, True, True]
    assert [pace.every for pace in paces] == [10, 100, 100, 100, 100]
    assert not paced(Pace(1), look(1, 0.5, 0.5), BUDGET).rests


def test_one_that_was_too_wide_becomes_finer_after_several_looks_with_room() -> None:
    slow, fast = (0.05, 0.0), (0.004, 0.0)
    assert intervals(slow, *[fast] * PATIENCE) == [10] * PATIENCE + [1]
    assert intervals(slow, fast, fast, fast, (0.008, 0.0), fast, fast, fast) == [10] * 8
    assert intervals((20.0, 0.0), (20.0, 0.0), *[fast] * 2 * PATIENCE)[-1] == 1


def test_each_return_that_was_too_early_doubles_the_looks_before_the_next() -> None:
    pace, lengths, length = Pace(), [], 0
    for _ in range(1000):
        # A machine that punishes: dear at 1 whenever it is 1, and with room whenever it is not.
        before, pace = pace.every, paced(pace, look(pace.every, 0.05 if pace.every == 1 else 0.004, 0.0), BUDGET)
        length += 1
        if (before, pace.every) == (10, 1):
            lengths.append(length)
            length = 0
    assert lengths == [5, 9, 17, 33, 65, 129, 257]


@given(st.lists(st.tuples(prices, prices), min_size=1, max_size=300))
def test_it_moves_by_one_and_never_flaps_whatever_the_costs(costs: list[tuple[float, float]]) -> None:
    pace, places = Pace(), [0]
    for sample, step in costs:
        pace = paced(pace, look(pace.every, sample, step), BUDGET)
        places.append(INTERVALS.index(pace.every))
    moves = [after - before for before, after in pairwise(places)]
    assert set(moves) <= {-1, 0, 1}
    assert sum(map(abs, moves)) <= 6 * (2 + len(costs).bit_length())


@given(st.sampled_from(INTERVALS), prices, prices)
def test_with_constant_costs_it_settles(every: int, sample: float, step: float) -> None:
    found = intervals(*[(sample, step)] * 60, pace=Pace(every))
    assert len(set(found[-20:])) == 1


def test_a_look_lasts_until_it_can_be_judged() -> None:
    assert not Look(steps=LOOK_STEPS, rounds=LOOK_ROUNDS - 1).is_over(1)
    assert Look(steps=LOOK_STEPS, rounds=LOOK_ROUNDS).is_over(1)
    assert not Look(steps=LOOK_STEPS, rounds=LOOK_ROUNDS).is_over(100)
    assert (Look().share, Look(steps=3, samples=3, elapsed_s=2.0, sampled_s=1.0).share) == (0.0, 0.5)
