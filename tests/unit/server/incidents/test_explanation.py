"""The parts of an explanation, and the title of a message."""

from dataclasses import replace

import pytest

from gradcanary import remedies
from gradcanary_server.incidents.causes import LikelyCause
from gradcanary_server.incidents.explanation import explain, title
from gradcanary_server.incidents.lifecycle import Incident

INCIDENT = Incident("collapse", 1, "critical", "open", 740, 1.7e9, 728, 300, firing=18, ever_firing=18, id=31)
FIX = remedies.Fix("peft", "Check the schedule. Then the weight decay.", "print(1)")


def test_the_strongest_evidence_comes_first_and_general_text_last() -> None:
    evidence = ("the learning rate rose 6,000 times at step 200", "incident 3 opened at step 9")
    cause = LikelyCause("rate_jump", "A rate jumped. It drives weights away.", evidence, ())
    parts = explain("18 of 300 parameters fell.", INCIDENT, cause, FIX)
    assert parts.what == "18 of 300 parameters fell."
    assert parts.since == "step 728 (opened 2023-11-14 22:13 UTC)"
    assert parts.do_first == "Check the schedule."
    assert parts.why == "The learning rate rose 6,000 times at step 200. A rate jumped. It drives weights away."
    assert parts.evidence == (
        "The learning rate rose 6,000 times at step 200.",
        "Incident 3 opened at step 9.",
    )
    assert parts.more == "Then the weight decay.\nprint(1)"


def test_without_evidence_general_text_is_more() -> None:
    cause = LikelyCause("unknown_fall", "Nothing would explain it. Check first: inputs.", (), ())
    parts = explain("18 of 300 parameters fell.", INCIDENT, cause, replace(FIX, code=""))
    assert parts.why == "Nothing would explain it."
    assert parts.more == "Check first: inputs. Then the weight decay."


@pytest.mark.parametrize("code", remedies.CAUSES)
@pytest.mark.parametrize("framework", remedies.FRAMEWORKS)
def test_no_part_is_empty_and_the_first_thing_to_do_is_one_line(code: str, framework: str) -> None:
    cause, fix = LikelyCause(code, remedies.CAUSES[code].text, (), ()), remedies.fix(code, framework)
    parts = explain("It fell.", INCIDENT, cause, fix)
    assert parts.do_first
    assert "\n" not in parts.do_first
    assert parts.why
    for word in f"{cause.text} {fix.text} {fix.code}".split():
        assert word in f"{parts.do_first} {parts.why} {parts.more}"


@pytest.mark.parametrize(
    ("headline", "event", "severities", "expected"),
    [
        ("18 of 300 parameters collapsed at step 728", "opened", (), "[critical] sdxl: 18 parameters collapsed (#31)"),
        ("1 of 300 parameters collapsed at step 1,728", "grew", (), "[critical] sdxl: 1 parameter collapsed (#31)"),
        (
            "18 of 300 parameters collapsed at steps 728 to 1,740",
            "opened",
            (),
            "[critical] sdxl: 18 parameters collapsed (#31)",
        ),
        ("all 48 parameters exploded at step 9", "resolved", (), "[resolved] sdxl: all 48 parameters exploded (#31)"),
        (
            "the loss became NaN or infinite at step 9",
            "ended",
            (),
            "[ended] sdxl: the loss became NaN or infinite (#31)",
        ),
    ],
)
def test_a_title_has_severity_run_count_and_number(
    headline: str, event: str, severities: tuple[str, ...], expected: str
) -> None:
    assert title(INCIDENT, "sdxl", headline, event, severities) == expected


def test_a_title_has_the_severity_of_the_worst_effect() -> None:
    about = replace(INCIDENT, rule="explosion", severity="warning")
    assert title(about, "sdxl", "3 of 9 parameters exploded", "opened", ("critical",)).startswith("[critical] ")
