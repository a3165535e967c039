"""The scale of a GradScaler: searched in grace, told where it falls far or under 1, and stored with other faults."""

import numpy as np
import pytest

from gradcanary_server.rules.config import LossScale, Nonfinite, Rules
from gradcanary_server.rules.types import ScaleFall
from support.traces import Trace, fired, healthy, run


def scaled(is_skipped: np.ndarray, start: float = 65_536.0, **changes) -> Trace:
    """A run whose scaler halves its scale after each skipped step, which has gradients that are not finite."""
    scales = start * 0.5 ** np.concatenate([[0], np.cumsum(is_skipped)[:-1]])
    absmax = healthy(len(is_skipped))
    absmax[is_skipped] = np.nan
    return Trace(absmax, skipped=is_skipped.astype(int), scales=scales, **changes)


def skips(*at: int, rows: int = 400) -> np.ndarray:
    is_skipped = np.zeros(rows, np.bool_)
    is_skipped[list(at)] = True
    return is_skipped


EACH_THIRD = skips(*range(100, 400, 3))


def told(changes) -> list[tuple[str, str, str]]:
    return [(each.rule, each.kind, each.severity) for each in changes]


@pytest.mark.parametrize("cuts", [(), (99, 130, 131, 200)])
def test_a_scale_that_falls_while_steps_are_skipped_is_a_warning_of_the_run(cuts):
    _, changes = run(scaled(EACH_THIRD), cuts=cuts)
    assert told(changes) == [("loss_scale", "fired", "warning")]
    fall = changes[0].scale_fall
    assert (changes[0].layer, fall.before, fall.first) == (None, 65_536.0, 100 - 1)
    assert fall.after <= 64
    assert fall.last == changes[0].step
    assert fall.skipped == pytest.approx(1 / 3, abs=0.03)


def test_the_search_for_a_scale_is_no_fall():
    """A scaler that begins at 2^40 halves it in each second one of the first steps."""
    assert run(scaled(skips(*range(0, 46, 2)), start=2.0**40))[1] == ()


def test_a_scale_that_fell_and_skips_nothing_any_more_tells_nothing():
    assert run(scaled(skips(*range(100, 111))))[1] == ()


def test_skipping_one_in_forty_of_a_scale_that_grows_again_is_usual():
    is_skipped = skips(*range(60, 400, 40))
    trace = scaled(is_skipped)
    trace.scales = np.where(is_skipped, 131_072.0, 65_536.0)
    assert run(trace)[1] == ()


def test_a_step_without_a_scale_has_the_last_known_one():
    """Twenty steps after grace it is told, and not after those that could have been skipped."""
    _, changes = run(Trace(healthy(400), scales=np.where(np.arange(400) < 5, 0.5, np.nan)))
    assert told(changes) == [("loss_scale", "fired", "warning")]
    assert changes[0].step == 50 + 20 - 1


def test_a_scale_under_one_needs_no_skipped_steps_and_its_recovery_ends_it():
    trace = Trace(healthy(600), scales=np.where(np.arange(600) < 300, 0.5, 2.0))
    _, changes = run(trace)
    assert [(each.kind, each.step) for each in changes] == [("fired", 69), ("resolved", 399)]
    assert changes[0].scale_fall == ScaleFall(0.5, 0.5, 69, 69, None)


def test_what_nonfinite_tells_is_not_told_twice_and_has_the_fall_as_evidence():
    _, changes = run(scaled(skips(*range(100, 400))))
    assert {each.rule for each in changes} == {"nonfinite"}
    found = fired(changes, "nonfinite")[0]
    assert found.scale_fall == ScaleFall(65_536.0, 65_536.0 / 2**19, 99, 119, 1.0)
    rules = Rules(nonfinite=Nonfinite(enabled=False))
    assert {each.rule for each in run(scaled(skips(*range(100, 400))), rules=rules)[1]} == {"loss_scale"}


def test_gradients_that_are_zero_after_it_have_it_as_evidence():
    trace = scaled(EACH_THIRD)
    trace.absmax[300:] = 0
    trace.skipped[300:] = 0
    trace.scales[300:] = 2.0**-20
    changes = run(trace, rules=Rules(loss_scale=LossScale(enabled=False)))[1]
    assert [(each.rule, each.scale_fall.after) for each in changes] == [("scale_drop", 2.0**-20)]


def test_without_a_scaler_nothing_is_kept():
    state, _ = run(Trace(healthy(100)))
    assert state.progress.scaler.scale is None
