"""The table of several ways: a row for each, a column for each number that was measured."""

from gradcanary.sanity.report import Report
from gradcanary.sanity.ways import plan
from gradcanary.sanity.ways_page import page
from gradcanary.sanity.ways_report import judge_ways

TRAINED = Report(
    *("run", ("train.py",), 20, 20, "stopped", 0),
    losses=tuple((step, 2.0) for step in range(20)),
    absmax=((0, 1.0), (1, 300.0)),
    step_time_s=0.01,
    step_time_quartiles_s=(0.009, 0.011),
    peak_memory_bytes=300 * 2**20,
    sums_lost=0.031,
)
FAILED = Report("run", ("train.py",), 20, 0, "failed", 1, output_tail=("no Half",))


def test_each_way_has_a_row_with_its_numbers() -> None:
    lines = page(judge_ways(plan("accumulate", "1,4", ["{accumulate}"]), [TRAINED, FAILED]), None).split("\n")
    assert lines[0].split("  ")[:2] == ["accumulate", "steps"]
    assert " ".join(lines[1].split()) == "1 20 10 ms (9 ms to 11 ms) 300 MiB 2 to 2 \N{EN DASH} 3.1 % healthy"
    assert lines[2].split() == ["4", "0", *"\N{EN DASH}" * 5, "made", "no", "step"]


def test_stress_has_the_step_at_which_gradients_leave_the_range() -> None:
    calm = Report("run", ("train.py",), 20, 20, "stopped", 0, absmax=((0, 1.0),))
    text = page(judge_ways(plan("stress", "lr=1,2", ["{lr}"]), [calm, TRAINED]), None)
    assert "not in 20 steps" in text
    assert "300               step 1: explosion" in text


def test_a_narrow_terminal_keeps_all_words() -> None:
    report = judge_ways(plan("compare", "fp32,bf16", ["{precision}"]), [TRAINED, TRAINED])
    assert page(report, 40).split() == page(report, None).split()
    assert max(map(len, page(report, 40).split("\n"))) <= 40
