"""The published page is of the cases that there are, and each fault has a truth for its sentences."""

from detection.cases import CASES
from detection.page import CONTROLS_HEAD, FAULTS_HEAD, HEAD, MEASURED, PAGE, RIVALS_HEAD
from detection.wording import WORDING, find_case_flaws
from words.check import Incident


def test_the_page_shows_all_cases_and_no_others() -> None:
    text = PAGE.read_text("utf-8")
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
    shown = {row[0].removeprefix("| "): row[1] for row in reversed(rows) if len(row) > 1}
    assert text.startswith(HEAD)
    assert all(each in text for each in (MEASURED, FAULTS_HEAD, CONTROLS_HEAD, RIVALS_HEAD))
    assert {case.name: case.about for case in CASES}.items() <= shown.items()
    assert len({name for name in shown if "-" in name.strip("-")} - {case.name for case in CASES}) == 0


def test_each_fault_has_a_truth_for_its_sentences() -> None:
    assert WORDING.keys() == {case.name for case in CASES if case.is_fault}


def test_a_false_cause_is_a_flaw_and_a_missing_one_too() -> None:
    case = next(each for each in CASES if each.name == "a-branch-is-detached")
    cause = "The learning rate of parameter group 0 rose at step 199. A .detach() cuts the path."
    said = Incident(
        rule=case.rule, severity="critical", step=200, headline="10 parameters", cause=cause, fix="Look for .detach()."
    )
    assert [flaw.sentence for flaw in find_case_flaws(case, [said])] == [cause.split(". ")[0] + "."]
    flaws = find_case_flaws(case, [Incident(**{**vars(said), "cause": "", "fix": ""})])
    assert [flaw.what for flaw in flaws] == ["the true cause is not named", "no fix that mends the job"]
