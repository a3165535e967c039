"""What the picture of an incident shows."""

import pytest

from gradcanary_dashboard.analysis import picture
from support.api_answers import full, member, run, session


@pytest.mark.parametrize(
    ("since", "opened", "there", "every", "expected"),
    [
        (604, 623, (0, 1_799), 1, (504, 704)),
        (604, 623, (0, 630), 1, (504, 630)),
        (50, 150, (0, 399), 1, (0, 250)),
        (180, 180, (0, 179), 1, (80, 180)),
        (5_000, 5_000, (0, 9_000), 100, (3_800, 6_200)),
        (7, 7, (None, None), 1, (0, 7)),
    ],
)
def test_a_picture_has_the_steps_around_the_first_sign(since, opened, there, every, expected) -> None:
    known = run(sessions=[session(1, *there, every=every)])
    assert picture.steps(full(since_step=since, opened_step=opened), known) == expected


def test_the_worst_parameters_are_those_that_fell_furthest() -> None:
    fell = {0: (1e-3, 1e-4), 1: (1.0, 1e-6), 2: (1e-3, 0.0), 3: (None, 5e-5), 4: (1e-3, None), 5: (1e-2, 1e-5)}
    members = [member(number, baseline=was, value=now) for number, (was, now) in fell.items()]
    members += [member(6, baseline=1.0, value=1e-9, until_step=400), member(7, layer=None)]
    shown = picture.worst(full(layers=members))
    assert [each["layer"] for each in shown] == [2, 1, 5, 0, 3]


def test_without_values_the_first_ones_to_fire_are_the_worst() -> None:
    members = [member(number, value=None, since_step=since) for number, since in enumerate((9, 7, 8))]
    assert [each["layer"] for each in picture.worst(full(rule="nonfinite", layers=members))] == [1, 2, 0]
    frozen = [member(number, value=share, baseline=1e-9) for number, share in enumerate((0.6, 1.0))]
    frozen[1] |= {"baseline": 1.0}
    assert [each["layer"] for each in picture.worst(full(rule="frozen", layers=frozen))] == [1, 0], "no absmax"


@pytest.mark.parametrize(
    ("rule", "values", "expected"),
    [
        ("collapse", {}, "0.0031 \N{RIGHTWARDS ARROW} 6.1e-7"),
        ("collapse", {"baseline": None, "siblings": 1.9e-4}, "6.1e-7, similar 1.9e-4"),
        ("nonfinite", {"value": None}, "0.0031 \N{RIGHTWARDS ARROW} not finite"),
        ("vanished", {"value": None}, "0.0031 \N{RIGHTWARDS ARROW} no gradient"),
        ("in_vain", {"value": 1.0}, "100 % stood still"),
        ("accumulation_loss", {"value": 0.089, "baseline": None}, "8.9 % lost"),
        ("accumulator", {"value": 0.93}, "93 % lost"),
        ("fp16_underflow", {"value": 0.93}, "93 % exactly zero"),
        ("collapse", {"value": 0.0}, "0.0031 \N{RIGHTWARDS ARROW} 0"),
        ("vanished", {"value": 40.0, "baseline": 13.0, "siblings": 2.0, "evidence": "sporadic"}, "no gradient"),
        ("not_optimized", {"value": None}, ""),
    ],
)
def test_a_parameter_tells_what_it_had(rule, values, expected) -> None:
    assert picture.values(rule, member(0, **values)) == expected


def test_incidents_of_zeros_show_the_zeros() -> None:
    assert picture.stats("fp16_underflow") == ["zero_fraction", "absmax"]


def test_a_level_counts_zeros_and_no_steps() -> None:
    zeros = [member(number, value=0.0) for number in range(5)]
    assert picture.level([*zeros, member(5, value=7.9e-7)], "value") == 0
    assert picture.level(zeros, "value") == 0
    counts = member(6, value=40.0, baseline=13.0, evidence="sporadic")
    assert picture.level([counts, member(7)], "baseline") == 3.1e-3
    assert picture.level([counts], "value") is None
