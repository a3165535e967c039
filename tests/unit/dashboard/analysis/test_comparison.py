"""What is said of runs that are compared: the sentence, the address, the page of a bad one."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gradcanary_dashboard.address.comparison import CompareView, parse_compare
from gradcanary_dashboard.address.run import View
from gradcanary_dashboard.analysis import comparison
from gradcanary_dashboard.analysis.compared_runs import Compared, CompareData
from gradcanary_dashboard.analysis.differences import Differences
from gradcanary_dashboard.components import run_picker
from gradcanary_dashboard.pages import compare as compare_page
from support.api_answers import column, curve, layer, run, series_answer, session, text_of

NAN = float("nan")
BEFORE = comparison.Numbers(
    letter="A",
    layers=300,
    firing=18,
    rules=("collapse",),
    accumulators={"bfloat16": 300},
    micro_steps=(8,),
    step_time_s=0.2,
    peak_memory_bytes=10 * 2.0**30,
    loss_last=0.125,
    loss_there=0.131,
    loss_least=0.12,
)
AFTER = replace(
    BEFORE,
    letter="B",
    firing=0,
    rules=(),
    accumulators={"float32": 300},
    step_time_s=0.206,
    peak_memory_bytes=10.6 * 2**30,
    loss_there=0.125,
)


def said(*numbers: comparison.Numbers, common: tuple[int, int] | None = (0, 99)) -> str:
    return comparison.sentence(numbers, common)


def test_the_sentence_says_what_the_accumulator_costs_and_saves() -> None:
    assert said(BEFORE, AFTER) == (
        "B has fp32 accumulators instead of bf16; 0 of 300 parameters collapsed instead of 18; steps take 3.0 % "
        "longer, peak memory is 6.0 % more; over the same steps the loss ends at 0.125 instead of 0.131."
    )
    assert said(replace(AFTER, letter="A"), replace(BEFORE, letter="B")) == (
        "B has bf16 accumulators instead of fp32; 18 of 300 parameters collapsed instead of 0; steps take 2.9 % less "
        "time, peak memory is 5.7 % less; over the same steps the loss ends at 0.131 instead of 0.125."
    )


def test_unmeasured_layers_are_not_called_equal() -> None:
    unknown = replace(AFTER, step_time_s=None, peak_memory_bytes=None, loss_there=None, accumulators={})
    words = said(BEFORE, unknown)
    assert "The dtype of the accumulators of B is not known" in words
    assert words.endswith(
        "The step time of B is not known. The peak memory of B is not known. The loss of B is not known."
    )
    assert "steps take" not in words
    assert "peak memory is" not in words
    apart = said(BEFORE, AFTER, common=None)
    assert apart.endswith("They have no steps in common over which the rest could be compared.")
    assert "%" not in apart


def test_no_difference_is_said_as_that() -> None:
    same = replace(BEFORE, letter="B", step_time_s=0.2005)
    assert said(BEFORE, same) == (
        "Both have bf16 accumulators; 18 of 300 parameters collapsed in both; steps take as long, peak memory is the "
        "same; over the same steps the loss ends at 0.131 in both."
    )
    diverged = said(BEFORE, replace(AFTER, loss_there=NAN, rules=("explosion",), firing=2))
    assert "2 of 300 parameters have not recovered from a fault instead of 18" in diverged
    assert "ends at not finite instead of 0.131" in diverged


def test_sentence_names_the_lowest_of_several_runs() -> None:
    third = replace(AFTER, letter="C", firing=3, step_time_s=None, peak_memory_bytes=9 * 2.0**30, loss_there=NAN)
    assert said(BEFORE, AFTER, third) == (
        "Fewest parameters not recovered from a fault: B, 0; most: A, 18; shortest steps: A, 200 ms (not known of C); "
        "least memory: C, 9 GiB; lowest loss at the end of the same steps: B, 0.125."
    )


def test_changes_are_told_with_their_sign() -> None:
    assert [comparison.change(*pair) for pair in ((103.0, 100.0), (97.0, 100.0), (100.2, 100.0))] == [
        "+3.0 %",
        "\N{MINUS SIGN}3.0 %",
        "same",
    ]
    assert [comparison.change(*pair) for pair in ((None, 1.0), (1.0, None), (1.0, 0.0))] == ["", "", ""]


def compared(letter: str, metrics: dict[str, list[float]], *, first: int = 0, **changes: Any) -> Compared:
    steps = len(next(iter(metrics.values()))) if metrics else 4
    answer = series_answer(curve([1.0], [1.0], [1.0]), range(first, first + steps))
    answer["metrics"] = [
        {**curve(values, values, values, [int(value != value) for value in values]), "name": name}
        for name, values in metrics.items()
    ]
    told = run(run=letter * 3, sessions=[session(1, first, first + steps - 1)], **changes)
    return Compared(
        letter, told, [layer(0), layer(1, micro_steps=None)], 0, (first, first + steps - 1), (), answer, answer
    )


def test_numbers_are_of_the_steps_in_common() -> None:
    slow_start = [30.0, 0.2, 0.2, 0.21, 0.2, 99.0]
    one = compared(
        "A", {"step_time_s": slow_start, "loss": [9, 5, 4, 3, 2, 1], "peak_memory_bytes": [1, 1, 7, 7, 7, 8]}
    )
    numbers = comparison.read(one, (0, 4))
    assert (numbers.step_time_s, numbers.peak_memory_bytes) == (pytest.approx(0.2), 7)
    assert (numbers.loss_there, numbers.loss_least, numbers.micro_steps) == (2, 2, (8,))
    nothing = comparison.read(one, None)
    assert (nothing.step_time_s, nothing.peak_memory_bytes, nothing.loss_there) == (None, None, None)


def test_the_loss_that_a_run_ends_at_is_not_that_of_one_batch() -> None:
    losses = [3.0] * 40 + [1.0, 1.1, 0.9, 1.0, 1.2, 0.8, 1.0, 7.0]
    assert comparison.read(compared("A", {"loss": losses}), (0, 47)).loss_there == 1.0


def test_a_loss_that_ends_as_nan_does_not_end_at_what_was_before() -> None:
    ended = compared("A", {"loss": [3.0, 2.0, 1.5]})
    ended.metrics["metrics"][0]["nonfinite"] = column([0, 0, 7], "int32")  # of a bucket of several steps
    numbers = comparison.read(ended, (0, 2))
    assert numbers.loss_there is not None
    assert np.isnan(numbers.loss_there)
    assert numbers.loss_least == 1.5


def test_a_tagged_metric_is_neither_drawn_nor_counted() -> None:
    one = compared("A", {"loss": [3.0, 2.0]})
    one.metrics["metrics"][0]["tags"] = {"category": "bottles"}
    assert comparison.read(one, (0, 1)).loss_there is None


@pytest.mark.parametrize(
    ("search", "unknown", "words"),
    [
        ("", (), "Choose a run"),
        ("?run=AAA", (), "Choose the run to hold against"),
        ("?run=AAA&run=AAA", (), "is named twice"),
        ("?run=AAA&run=gone", ("gone",), "The collector knows no run"),
    ],
)
def test_a_page_without_two_runs_says_what_to_do(search: str, unknown: tuple[str, ...], words: str) -> None:
    wanted = parse_compare(search)
    known = [compared("A", {})] if wanted.runs else []
    data = CompareData(known, [run(run="AAA"), run(run="<img src=x>")], unknown)
    contents = compare_page.fill(data, wanted)
    assert words in text_of([contents["compare-notes"], contents["compare-picker"]])
    assert set(contents) <= {*compare_page.SLOTS}
    assert "<img src=x>" in text_of(contents["compare-picker"])


def test_runs_without_common_layers_offer_a_link() -> None:
    data = CompareData([compared("A", {}), compared("B", {}, first=5000)], [])
    assert "Count from the first step of each" in text_of(run_picker.notes(data, CompareView(("AAA", "BBB"))))
    zoomed = CompareView(("AAA", "BBB"), View(from_step=3, to_step=9))
    assert "All steps" in text_of(run_picker.notes(data, zoomed))
    waiting = replace(data, runs=[data.runs[0], replace(data.runs[1], steps=None)])
    assert "There is no step of B yet." in text_of(run_picker.notes(waiting, CompareView(("AAA", "BBB"))))


@pytest.mark.parametrize(("states", "yet"), [(("finished", "crashed"), ""), (("finished", "live"), " yet")])
def test_no_step_of_a_run_that_ended_is_waited_for(states: tuple[str, str], yet: str) -> None:
    runs = [compared(letter, {}) for letter in "AB"]
    runs = [
        replace(each, run={**each.run, "state": state}, steps=None) for each, state in zip(runs, states, strict=True)
    ]
    contents = compare_page.fill(CompareData(runs, []), CompareView(("AAA", "BBB")))
    assert f"There is no step of A and B{yet}." in text_of(contents["compare-notes"])
    assert contents["compare-layer"] == f'["No parameter{yet}"]'


def test_the_page_fills_all_of_its_slots() -> None:
    data = CompareData([compared("A", {"loss": [1.0] * 4}), compared("B", {"loss": [1.0] * 4})], [], common=(0, 3))
    contents = compare_page.fill(replace(data, found=Differences(partly={"x<b>": (0,)})), CompareView(("AAA", "BBB")))
    assert set(contents) == {*compare_page.SLOTS}
    assert "x<b>" in text_of(contents["differences-rest"])


@pytest.mark.parametrize(
    ("intervals", "counts", "words"),
    [
        ((10, 10), (1, 1), "each sample (every 10th step)"),
        ((10, 10), (1, 2), "10 steps per point"),
        ((10, 1), (1, 1), "10 steps per point"),  # of the other run these are ten of its steps
        ((1, 1), (1, 1), "single steps"),
    ],
)
def test_a_point_that_is_one_sample_is_said_to_be_that(
    intervals: tuple[int, int], counts: tuple[int, int], words: str
) -> None:
    runs = []
    for letter, every, count in zip("AB", intervals, counts, strict=True):
        found = compared(letter, {"loss": [1.0] * 4})
        line = {**curve([1.0] * 4, [1.0] * 4, [1.0] * 4), "count": column([count] * 4, "int32")}
        series = series_answer(line, range(0, 40, 10), bucket_steps=max(intervals))
        told = {**found.run, "sessions": [session(1, 0, 39, every=every)]}
        runs.append(replace(found, run=told, series=series))
    view = CompareView(("AAA", "BBB"), View(from_step=0, to_step=39))
    assert compare_page.fill(CompareData(runs, [], common=(0, 39)), view)["compare-zoom-note"] == [words]
