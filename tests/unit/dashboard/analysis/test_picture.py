"""What the picture of an incident shows."""

from dataclasses import replace

import pytest

from gradcanary_dashboard.analysis import picture
from gradcanary_server.incidents.lifecycle import Member, worst_members
from gradcanary_server.rules.signals import RULES
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


@pytest.mark.parametrize("rule", RULES)
def test_the_worst_parameters_are_those_of_messages(rule: str) -> None:
    values = (1e-4, 1e-6, 0.0, None, 0.9, 1e-5, 1e-9, 2.0, 1e-6)
    stored: dict[int | None, Member] = {
        number: Member("warning", 340, value, 1.0, None, None) for number, value in enumerate(values)
    }
    stored[0] = replace(stored[0], severity="critical")
    stored[6] = replace(stored[6], until_step=400)
    stored[7] = replace(stored[7], until_step=400)
    listed = [{"layer": number, **vars(each)} for number, each in stored.items()]
    shown = picture.worst(full(rule=rule, layers=[*listed, member(9, layer=None)]))
    expected = [number for number, _ in worst_members(stored, rule)]
    assert [each["layer"] for each in shown] == expected[: picture.PARAMETERS]


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
