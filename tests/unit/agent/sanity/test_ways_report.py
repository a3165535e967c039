"""Findings of several ways: each sentence, and whether it fails the command."""

import math
from dataclasses import replace

import pytest

from gradcanary.sanity.report import Check, Report
from gradcanary.sanity.ways import Kind, plan
from gradcanary.sanity.ways_page import page
from gradcanary.sanity.ways_report import WaysReport, judge_ways

LOSSES = tuple((step, 1 + 2 * math.exp(-step / 40) + 0.05 * math.sin(9.0 * step * step)) for step in range(100))
HEALTHY = Report(
    *("run", ("train.py",), 100, 100, "stopped", 0),
    losses=LOSSES,
    absmax=tuple((step, 1.0) for step in range(100)),
    step_time_s=0.01,
    step_time_quartiles_s=(0.009, 0.011),
    peak_memory_bytes=300 * 2**20,
    agent_share=0.02,
)
VALUES: dict[Kind, str] = {"compare": "fp32,bf16", "accumulate": "1,4", "checkpointing": "0,1", "stress": "lr=1,2"}
COMMAND = ["train.py", "{precision}{accumulate}{checkpointing}{lr}"]


def judged(kind: Kind, other: Report, first: Report = HEALTHY) -> WaysReport:
    return judge_ways(plan(kind, VALUES[kind], COMMAND), [first, other])


def sentences(report: WaysReport) -> str:
    return "\n".join(finding.text for finding in report.findings)


def scaled(factor: float, since: int = 0) -> Report:
    return replace(HEALTHY, losses=tuple((s, loss * factor if s >= since else loss) for s, loss in LOSSES))


@pytest.mark.parametrize("kind", VALUES)
def test_ways_alike_are_healthy(kind: Kind) -> None:
    report = judged(kind, HEALTHY)
    assert report.is_healthy
    assert "All ways are healthy." in page(report, None)
    expected = {"stress": "none leaves it in 100 steps", "checkpointing": "to the last bit"}
    assert expected.get(kind, "its losses agree with those of") in sentences(report)


@pytest.mark.parametrize(
    ("times", "told"),
    [
        ((0.020, (0.019, 0.021)), "slower here than fp32: 20 ms for a step instead of 10 ms, 2 times"),
        ((0.005, (0.004, 0.006)), "faster here than fp32: 5 ms for a step instead of 10 ms, 0.5 times"),
        ((0.012, (0.010, 0.014)), "not distinguishable from that of fp32"),
    ],
)
def test_time_is_told_and_fails_nothing(times: tuple[float, tuple[float, float]], told: str) -> None:
    report = judged("compare", replace(HEALTHY, step_time_s=times[0], step_time_quartiles_s=times[1]))
    assert told in sentences(report)
    assert report.is_healthy


@pytest.mark.parametrize(
    ("kind", "other", "told"),
    [
        ("compare", scaled(1.5, since=50), "part from those of fp32 at step 50"),
        ("accumulate", scaled(4.0), "4 times that of 1 with 4 micro-steps instead of 1: divide the loss"),
        ("accumulate", scaled(0.25), "0.25 times that of 1 with 4 micro-steps instead of 1: the loss is divided twice"),
        ("accumulate", scaled(1.5), "At one effective batch they agree, unless"),
        ("checkpointing", scaled(1.01, since=1), "at step 1 (3 instead of 2.97), after the same first step"),
        ("checkpointing", scaled(1.5), "The first loss differs already"),
        ("compare", replace(scaled(1), losses=((0, math.nan), *LOSSES[1:])), "its loss is not finite at step 0"),
        ("stress", replace(HEALTHY, absmax=((0, 1.0), (1, 101.0))), "at step 1: the largest is 101"),
        ("stress", replace(HEALTHY, first_nonfinite_step=7), "at step 7: NaN or infinity"),
        (
            "compare",
            replace(HEALTHY, checks=(Check("size", "not ok", "it fell", "Look."),)),
            "it fell. Do first: Look.",
        ),
        (
            "compare",
            Report("run", ("train.py",), 9, 0, "failed", 1, output_tail=("RuntimeError: no Half", "")),
            "made no step (status 1). The end of its output: RuntimeError: no Half",
        ),
    ],
)
def test_what_must_not_be_fails_and_is_told(kind: Kind, other: Report, told: str) -> None:
    report = judged(kind, other)
    assert told in sentences(report)
    assert told in page(report, None)
    assert not report.is_healthy
    assert report.as_json()["is_healthy"] is False


def test_a_first_loss_that_differs_by_noise_is_no_part() -> None:
    report = judged("checkpointing", scaled(1.001))
    assert report.is_healthy
    assert "with a seed" in sentences(report)


def test_ways_are_compared_with_the_first_one_that_made_a_step() -> None:
    report = judged("compare", HEALTHY, first=replace(HEALTHY, steps=0, losses=(), checks=()))
    assert report.reference == 1
    assert [finding.way for finding in report.findings] == ["fp32"]
