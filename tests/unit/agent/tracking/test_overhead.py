"""When the sampling interval changes: by what looks cost, on machines whose costs are made up and on real ones."""

from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from gradcanary.settings import INTERVALS
from gradcanary.tracking.overhead import (
    LOOK_ROUNDS,
    LOOK_SAMPLES,
    LOOK_STEPS,
    LOOKS_OVER,
    LOOKS_UNDER,
    IntervalPolicy,
    Measurement,
    next_policy,
)

BUDGET = 0.01
prices = st.floats(0, 0.2)


def measured(every: int, sample: float, step: float, sender: float = 0.0) -> Measurement:
    """A measurement of steps of a second each, at prices of a sample, of a step and of what the sender reads."""
    steps = max(LOOK_STEPS, LOOK_SAMPLES * every)
    samples = steps // every
    return Measurement(
        steps=steps,
        samples=samples,
        elapsed_s=float(steps),
        sampled_s=samples * (sample + step),
        other_s=(steps - samples) * step,
        sender_s=samples * sender,
        rounds=LOOK_ROUNDS,
    )


def intervals(*costs: tuple[float, float], policy: IntervalPolicy | None = None) -> list[int]:
    """Return the interval after each measurement; a cost is that of a sample and of a step."""
    policy, found = policy or IntervalPolicy(), []
    for sample, step in costs:
        policy = next_policy(policy, measured(policy.every, sample, step), BUDGET)
        found.append(policy.every)
    return found


def test_interval_widens_until_the_share_is_within_budget() -> None:
    assert intervals(*[(0.009, 0.0)] * 3) == [1, 1, 1]
    assert intervals(*[(0.05, 0.0)] * 4) == [1, 10, 10, 10]
    assert intervals(*[(0.5, 0.0)] * 4) == [1, 10, 10, 100]
    assert intervals(*[(20.0, 0.0)] * 8) == [1, 10, 10, 100, 100, 1000, 1000, 1000]
    policy = IntervalPolicy()
    for _ in range(LOOKS_OVER):
        policy = next_policy(policy, measured(1, 0.0, 0.0, sender=0.02), BUDGET)
    assert policy.every == 10


def test_interval_ignores_a_single_measurement_over_budget() -> None:
    assert intervals(*[(0.05, 0.0), (0.009, 0.0)] * 5) == [1] * 10


def test_cost_of_unsampled_steps_does_not_widen_the_interval() -> None:
    """Every step takes 2 %: seen only once there are steps that are not sampled."""
    assert intervals(*[(0.001, 0.02)] * 6) == [1, 10, 10, 10, 10, 10]
    assert intervals(*[(0.03, 0.02)] * 6) == [1, 10, 10, 100, 100, 100]


def test_interval_narrows_after_ten_measurements_with_room() -> None:
    slow, fast = (0.05, 0.0), (0.004, 0.0)
    assert intervals(slow, slow, *[fast] * LOOKS_UNDER) == [1] + [10] * LOOKS_UNDER + [1]
    assert intervals(slow, slow, *[fast] * 9, (0.008, 0.0), *[fast] * 9)[1:] == [10] * 20
    assert intervals(*[(20.0, 0.0)] * 4, *[fast] * 2 * LOOKS_UNDER)[-1] == 1


@given(st.lists(st.tuples(prices, prices), min_size=1, max_size=300))
def test_interval_moves_by_one_position_at_most(costs: list[tuple[float, float]]) -> None:
    indices = [0, *map(INTERVALS.index, intervals(*costs))]
    moves = [after - before for before, after in pairwise(indices)]
    assert set(moves) <= {-1, 0, 1}
    returns = moves.count(-1)
    assert returns <= len(costs) / LOOKS_UNDER
    assert moves.count(1) <= returns + len(INTERVALS) - 1


@given(st.sampled_from(INTERVALS), prices, prices, st.integers(0, 2**32), st.sampled_from([0.0, 0.3]))
def test_interval_settles_in_a_steady_training(every: int, sample: float, step: float, seed: int, noise: float) -> None:
    """What else the machine does makes each measurement up to 30 % higher or lower."""
    draws, costs = Random(seed), []
    for _ in range(1000):
        factor = 1 + draws.uniform(-noise, noise)
        costs.append((sample * factor, step * factor))
    found = intervals(*costs, policy=IntervalPolicy(every))
    turns = [after - before for before, after in pairwise(found) if after != before]
    assert sum(first > 0 > second or first < 0 < second for first, second in pairwise(turns)) <= 1


def test_a_measurement_lasts_until_it_can_be_judged() -> None:
    assert not Measurement(steps=LOOK_STEPS, rounds=LOOK_ROUNDS - 1).is_complete(1, BUDGET)
    assert Measurement(steps=LOOK_STEPS, rounds=LOOK_ROUNDS).is_complete(1, BUDGET)
    assert not Measurement(steps=LOOK_STEPS, rounds=LOOK_ROUNDS).is_complete(100, BUDGET)
    dear = Measurement(steps=LOOK_STEPS, samples=LOOK_STEPS, elapsed_s=100.0, sampled_s=1.1, sender_s=5.0)
    assert dear.is_complete(1, BUDGET), "whatever the sender takes"
    assert not dear.is_complete(1, 0.02), "its time varies from round to round"
    assert (Measurement().share, Measurement(steps=3, samples=3, elapsed_s=2.0, sampled_s=1.0).share) == (0.0, 0.5)
