"""A row says what is wrong with what was said of a job: rule, cause, severity, layers, messages, alarms."""

from dataclasses import replace

import pytest

from detection.case import Case
from detection.cases import CASES
from detection.job import Job
from detection.page import lines, page
from detection.verdicts import Row, Said, totals


def never_built() -> Job:
    raise AssertionError


FAULT = Case(
    *("a-fault", never_built, "A fault", "no_update", "", 100, ""),
    instead=("in_vain",),
    cause="epsilon",
    severity="warning",
    within=300,
    is_told=True,
)
HEALTHY = Case("a-healthy-job", never_built, "Healthy", also=("frozen",), why="It is true.")
RIGHT = Said("no_update", "warning", 150, frozenset({"up"}), "epsilon")
TOLD = ("gradient.no_update.opened",)


def fault_row(*said: Said, messages: tuple[str, ...] = TOLD) -> Row:
    return Row(FAULT, 0, 500, {"up": 100}, said, messages)


def healthy_row(*said: Said, messages: tuple[str, ...] = ()) -> Row:
    return Row(HEALTHY, 0, 500, {"up": 0}, said, messages)


def test_nothing_is_wrong_with_the_right_rule_or_one_that_says_the_same() -> None:
    assert fault_row(RIGHT).miss == ""
    assert fault_row(replace(RIGHT, rule="in_vain")).miss == ""
    assert fault_row(replace(RIGHT, opened_step=400)).miss == ""


@pytest.mark.parametrize(
    ("said", "miss"),
    [
        (replace(RIGHT, rule="frozen"), "no_update was not reported"),
        (replace(RIGHT, cause="clip_limit"), "cause clip_limit, where epsilon is right"),
        (replace(RIGHT, severity="critical"), "critical, where warning is right"),
        (replace(RIGHT, opened_step=401), "301 steps late"),
        (replace(RIGHT, layers=frozenset({"up", "down"})), "other layers"),
    ],
)
def test_each_deviation_of_a_fault_is_a_miss(said: Said, miss: str) -> None:
    assert fault_row(said).miss == miss


def test_a_fault_without_its_message_or_with_two_incidents_is_a_miss() -> None:
    assert fault_row(RIGHT, messages=()).miss == "no message"
    assert fault_row(RIGHT, replace(RIGHT, opened_step=200)).miss == "2 incidents of one fault"


def test_an_alarm_on_a_healthy_job_is_as_wrong_as_a_message() -> None:
    alarm = Said("unused", "warning", 49, frozenset({"up"}))
    assert healthy_row(alarm).miss == "shown: unused"
    assert healthy_row(alarm, messages=TOLD).miss == "message: gradient.no_update.opened; shown: unused"
    assert healthy_row(replace(alarm, severity="information")).miss == ""
    assert not healthy_row(alarm).is_known


def test_an_alarm_is_let_in_only_for_the_layers_of_which_it_is_true() -> None:
    true = Said("frozen", "warning", 100, frozenset({"up"}))
    assert healthy_row(true).miss == ""
    assert healthy_row(replace(true, layers=frozenset({"up", "head"}))).miss == "shown: frozen"


def test_totals_and_tables_count_alarms_beside_messages() -> None:
    true = Said("frozen", "warning", 100, frozenset({"up"}))
    row = replace(healthy_row(true, replace(true, rule="unused")), rivals=dict.fromkeys(["absmax < 1e-4", "SageMaker"]))
    row = replace(row, rivals={**row.rivals, "AutoTrainer": None})
    assert "incidents at warning or above on healthy jobs: 2, 1 of them false" in totals([row])
    assert "frozen (warning) at 100, unused (warning) at 100 | 2 | 0 |" in page([row])
    assert "| a-healthy-job | noisy |" in page([row])
    right = replace(row, said=(true,))
    assert "- **a-healthy-job**: frozen is true. It is true." in page([right])
    assert "| a-healthy-job | quiet |" in page([right])
    assert "WRONG: shown: unused" in lines([row])[1]


def test_only_true_findings_are_let_in_on_a_healthy_job() -> None:
    for case in CASES:
        assert case.is_fault or not case.also or (case.truth and case.why)
