"""Settings that explain an incident: the numbers are the measured ones, and nothing is claimed without them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradcanary.wire import Setting
from gradcanary_server.incidents.setting_causes import (
    HIGH_MOMENTUM,
    NEAR_STEPS,
    Configuration,
    change_lines,
    exact,
    find_decay,
    find_momentum,
    find_tiny_clip,
    jump_lines,
)
from gradcanary_server.rules.types import Jump


def adamw(*changes: Setting, lr: float = 1e-3, weight_decay: float = 0.0, kind: str = "AdamW", groups: int = 1):
    everything = tuple(range(groups))
    first = (
        Setting(0, None, everything, "optimizer", kind),
        Setting(0, None, everything, "lr", lr),
        Setting(0, None, everything, "weight_decay", weight_decay),
    )
    return Configuration((*first, *changes), groups)


def decay(step: int, value: float, groups: tuple[int, ...] = (0,), checked: int | None = None) -> Setting:
    return Setting(step, step - 1 if checked is None else checked, groups, "weight_decay", value)


def test_weight_decay_that_halves_the_weights_is_named_with_its_factor() -> None:
    """The change of the demo: learning rate and weight decay of one group at once."""
    changes = Setting(200, 199, (1,), "lr", 5e-6), decay(200, 1e5, (1,))
    found = find_decay(adamw(*changes, groups=2), 206)
    assert found is not None
    assert found.sentence == (
        "weight decay of parameter group 1 rose from 0 to 100,000 at step 200: with the learning rate 5e-6 each step "
        "multiplies its weights by 1 - 5e-6 * 100,000 = 0.5"
    )


@pytest.mark.parametrize(
    ("configuration", "since"),
    [
        (adamw(decay(200, 1e5), lr=1e-5), 199),  # after
        (adamw(decay(200, 1e5), lr=1e-5), 200 + NEAR_STEPS + 1),  # long before
        (adamw(decay(200, 0.1)), 300),  # 3 % of the weights
        (adamw(decay(200, 5e4), weight_decay=4e4, lr=1e-5), 205),  # hardly more than before
        (adamw(decay(200, 1e5), lr=1e-5, kind="Adam"), 205),  # not decoupled: Adam divides it by its own size
        (Configuration((Setting(200, 199, (0,), "weight_decay", 1e5),), 1), 205),  # no learning rate is known
        (adamw(weight_decay=0.1), 60),
    ],
)
def test_weight_decay_without_evidence_is_not_named(configuration: Configuration, since: int) -> None:
    assert find_decay(configuration, since) is None


def test_weight_decay_of_the_first_steps_is_named_early() -> None:
    assert find_decay(adamw(weight_decay=0.01, lr=1e5), 50).code == "rate_with_decay"
    found = find_decay(adamw(weight_decay=1e5, lr=1e-5), 50)
    assert found.code == "weight_decay"
    assert found is not None
    assert "weight decay has been 100,000 since step 0" in found.sentence
    assert "= 0" in found.sentence


@pytest.mark.parametrize(("since", "is_named"), [(475, True), (640, True), (700, False)])
def test_a_slow_weight_decay_is_named_until_it_has_taken_three_decades(since: int, is_named: bool) -> None:
    """Of 1.5 % a step, which needs 460 steps for that."""
    assert (find_decay(adamw(decay(200, 1.5e4), lr=1e-6), since) is not None) == is_named


@given(st.floats(0, 1e6), st.floats(1e-8, 10), st.integers(200, 500))
def test_named_decay_changes_the_weights_by_half_at_least(value: float, lr: float, since: int) -> None:
    found = find_decay(adamw(decay(200, value), lr=lr), since)
    if found is not None:
        assert not 0.5 < min(abs(1 - lr * value), 2.0) ** (since - 199) < 2
        assert f"to {exact(value)} at step 200" in found.sentence


def momentum(value: float, name: str = "momentum", step: int = 0, dampening: float = 0.0) -> Configuration:
    settings = [Setting(0, None, (0,), "dampening", dampening)]
    settings += [Setting(0, None, (0,), name, 0.9)] if step else []
    return Configuration((*settings, Setting(step, step - 1 if step else None, (0,), name, value)), 1)


def test_momentum_of_the_first_steps_explains_an_explosion() -> None:
    found = find_momentum(momentum(0.9999999), 100, from_start=True)
    assert found is not None
    assert found.sentence == (
        "momentum has been 0.9999999 since step 0: each step is the sum of up to 10,000,000 gradients"
    )
    assert find_momentum(momentum(0.9999999), 100, from_start=False) == found
    assert find_momentum(momentum(0.999), 100, from_start=False) is None
    assert find_momentum(momentum(0.9999999), 5_000, from_start=True) is None


@pytest.mark.parametrize(
    "configuration", [momentum(0.99), momentum(0.999, "beta2"), momentum(0.9999, dampening=0.9999)]
)
def test_usual_momentum_is_not_named(configuration: Configuration) -> None:
    assert find_momentum(configuration, 100, from_start=True) is None


@pytest.mark.parametrize(("name", "value"), [("momentum", HIGH_MOMENTUM), ("beta1", 1.0), ("beta2", 1.5)])
def test_momentum_that_changed_is_named(name: str, value: float) -> None:
    found = find_momentum(momentum(value, name, step=300), 310, from_start=False)
    assert found is not None
    assert found.sentence.startswith(f"{name} went from 0.9 to {exact(value)} at step 300")
    assert find_momentum(momentum(value, name, step=300), 299, from_start=False) is None


def test_clip_is_named_if_it_leaves_next_to_nothing() -> None:
    def clip(limit: float, norm: float | None) -> Configuration:
        return Configuration((Setting(20, None, (), "max_norm", limit),), 1, norm)

    found = find_tiny_clip(clip(1e-9, 0.742), 150)
    assert found is not None
    assert found.sentence == "gradients are clipped to a norm of 1e-9, and had one of 0.742 before the clip"
    assert find_tiny_clip(clip(1.0, 30.0), 150) is None
    assert find_tiny_clip(clip(1e-9, None), 150) is None
    assert find_tiny_clip(clip(1e-9, math.inf), 150) is None
    large = find_tiny_clip(clip(1.0, 12_345.6), 150)
    assert large is not None
    assert large.sentence.endswith("had one of 12,346 before the clip")
    assert find_tiny_clip(clip(1e-9, 0.742), 19) is None


def test_lines_of_changes_have_both_values_and_their_steps() -> None:
    changes = (
        decay(200, 0.1, (0, 1)),
        Setting(210, 200, (1,), "eps", 1e-3),
        Setting(211, 210, (0, 1), "lr", 1.0),
        Setting(220, 219, (0, 1), "beta1", 0.85),
    )
    first = Setting(0, None, (0, 1), "eps", 1e-8), Setting(0, None, (0, 1), "beta1", 0.9)
    configuration = adamw(*first, *changes, groups=2)
    assert change_lines(configuration, 230, without=None) == [
        "weight_decay of all groups went from 0 to 0.1 at step 200",
        "eps of parameter group 1 went from 1e-8 to 0.001 between steps 200 and 210",
    ]
    assert change_lines(configuration, 230, without="eps") == change_lines(configuration, 200, without=None)


def test_groups_that_jump_alike_share_a_line() -> None:
    jumps = (Jump(0, 200, 0.0015, 9.0), Jump(1, 200, 0.0015, 9.0), Jump(2, 201, 0.1, 0.01))
    assert jump_lines(jumps[:2], 2, 210) == [
        "the learning rate of all groups rose 6,000 times at step 200, from 0.0015 to 9"
    ]
    assert jump_lines(jumps, 5, 210) == [
        "the learning rate of parameter groups 0 and 1 rose 6,000 times at step 200, from 0.0015 to 9",
        "the learning rate of parameter group 2 fell 10 times at step 201, from 0.1 to 0.01",
    ]
    assert jump_lines(jumps[:1], 1, 210) == ["the learning rate rose 6,000 times at step 200, from 0.0015 to 9"]


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (1e-8, 0.99999995, "rose 1e8 times"),
        (1e-6, 0.00099999, "rose 1,000 times"),
        (0.3, 0.1, "fell 3 times"),
        (2e-5, 7e-5, "rose 3.5 times"),
        (0.0, 0.1, "rose"),
    ],
)
def test_ratio_of_a_jump_has_two_digits(before: float, after: float, words: str) -> None:
    (line,) = jump_lines([Jump(0, 200, before, after)], 1, 210)
    assert line.startswith(f"the learning rate {words} at step 200, from ")
