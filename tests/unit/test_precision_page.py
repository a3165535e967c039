"""The published page of precision is what the benchmark writes, and ``=`` is no difference beyond the spread."""

import pytest

from benchmarks import precision_page as page
from benchmarks.precision_page import Results, Sums, Trained

PLAIN, OTHER = "plain", "other"


def results(losses: list[float]) -> Results:
    """Return a measurement at K = 8 of two ways; the losses are those of the other, by seed."""
    sums = Sums(summed=0.02, handed=0.02, lora=0.0017, norm=0.76, unmoved=0.9, unmoved_stepped=0.0)
    found = Results("a machine", PLAIN, [PLAIN, OTHER], {("all", 8, 1e-3): 200})
    found.independent = {(8, 1e-5): {PLAIN: sums, OTHER: sums}}
    found.alike = {8: {PLAIN: sums, OTHER: sums}}
    found.trained = {
        ("all", 8, 1e-3): {
            PLAIN: [Trained(5.0, each, 0.1) for each in (1.0, 1.2, 1.1)],
            OTHER: [Trained(5.0, each, 0.0) for each in losses],
        }
    }
    found.times = {8: {PLAIN: 1.0, OTHER: 1.042}}
    found.memory = {"all": {PLAIN: page.Memory(10**6, 2 * 2**20, 8 * 2**20), OTHER: page.Memory(10**6, 2**22, 2**23)}}
    found.sentences = ["a sentence."]
    return found


def test_the_page_is_of_the_present_columns() -> None:
    text = page.PAGE.read_text("utf-8")
    _, _, rest = text.partition(page.BEGIN)
    part, end, _ = rest.partition(page.END)
    assert end, "both marks are there"
    heads = [line for line in page.measured(results([1.0, 1.2, 1.1])).splitlines() if line.startswith(("| K", "| tr"))]
    assert len(heads) == 3
    for head in heads:
        assert head in part, "run: python tests/benchmarks/precision.py --write"


def test_only_what_is_between_the_marks_is_replaced() -> None:
    text = f"before\n{page.BEGIN}old\n{page.END}after\n"
    assert page.published(text, "new\n") == f"before\n{page.BEGIN}new\n{page.END}after\n"
    with pytest.raises(ValueError, match="both marks"):
        page.published("before\n", "new\n")


def test_losses_that_differ_from_seed_to_seed_are_no_difference() -> None:
    assert page.is_difference([-0.5, -0.6, -0.55])
    assert not page.is_difference([-0.5, 0.4, -0.6])
    assert not page.is_difference([0.1, 0.9, 0.2])
    assert not page.is_difference([0.0, 0.0, 0.0])


def test_rows_tell_losses_by_their_difference() -> None:
    rows = page.by_micro_steps(results([0.5, 0.7, 0.6])).splitlines()
    assert rows[2].startswith(
        "| 8 | plain | 2.0 % (LoRA: 0.17 %) | 2.0 % (LoRA: 0.17 %), 76 % of the norm left | 90 % (copies: 0 %)"
    )
    assert rows[2].endswith("| 1.100 ± 0.100, 200 steps | 1 |")
    assert rows[3].endswith("| 0.600 (-0.500 ± 0.000), 200 steps | +4.2 % |")
    assert page.by_micro_steps(results([1.1, 1.1, 1.1])).splitlines()[3].endswith("| 1.100 =, 200 steps | +4.2 % |")
    assert page.memory(results([1.0, 1.0, 1.0])).splitlines()[2] == "| all: 1.0 M | plain | 2.0 MiB | 8.0 MiB | 1 |"
