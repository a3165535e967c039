"""The published page is of the cases that there are."""

from detection.cases import CASES
from detection.page import HEAD, PAGE


def test_the_page_shows_all_cases_and_no_others() -> None:
    text = PAGE.read_text("utf-8")
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
    shown = {row[0].removeprefix("| "): row[1] for row in reversed(rows) if len(row) > 1}
    assert text.startswith(HEAD)
    assert {case.name: case.about for case in CASES}.items() <= shown.items()
    assert len({name for name in shown if "-" in name.strip("-")} - {case.name for case in CASES}) == 0
