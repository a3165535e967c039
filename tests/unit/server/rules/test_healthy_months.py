"""Months of a healthy job: nobody is told of anything."""

import pytest

from support.healthy_job import STEP_S, Job, told

MONTH_S = 30.4 * 86_400


def test_nine_months_of_healthy_noise_are_no_message():
    people, rows = told(Job(steps=int(9 * MONTH_S / STEP_S), every=1_000, launch_steps=2_000_000))
    assert people.messages == []
    assert people.now > 9 * MONTH_S
    assert rows > 8_000


@pytest.mark.parametrize(("every", "steps"), [(1, 4_000), (10, 20_000)])
def test_healthy_days_with_a_small_interval_send_nothing(every, steps):
    people, _ = told(Job(steps=steps, every=every, launch_steps=steps // 2, seed=1))
    assert people.messages == []


def test_a_day_with_a_fault_in_it_is_one():
    """The months are quiet because nothing is wrong, not because nobody listens."""

    class Broken(Job):
        def _trace(self, random, steps, *rest):
            trace = super()._trace(random, steps, *rest)
            trace.absmax[steps >= 30_000, 20:26] *= 1e-4
            return trace

    people, _ = told(Broken(steps=40_000))
    assert [(each.kind, each.ever) for each in people.messages] == [("opened", 6), ("reminder", 6)]
