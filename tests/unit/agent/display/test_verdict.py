"""What a page, and a notebook, says first about a run."""

from typing import Any

import pytest

from gradcanary.display.verdict import NO_STEP, Verdict, label, verdict
from support.api_answers import incident, run


def test_an_open_incident_speaks_first() -> None:
    said = verdict(run(open_incidents=[31], worst="critical", headline="1 of 2 parameters collapsed at step 31"))
    assert said == Verdict("critical", "1 of 2 parameters collapsed at step 31")


def test_the_end_of_a_run_is_no_recovery() -> None:
    said = verdict(run(state="finished", severity_at_end="critical", headline="all gradients fell together at step 31"))
    assert said == Verdict("critical", "All gradients fell together at step 31")


def test_a_recovered_run_is_quiet() -> None:
    said = verdict(run(below_threshold=1))
    assert said == Verdict("quiet", "No open incident in 2 parameters; small, but not falling: 1")


def test_a_crash_is_not_quiet() -> None:
    assert verdict(run(state="crashed")).tone == "warning"


def test_a_crash_is_said_beside_what_the_run_ended_on() -> None:
    noted = verdict(
        run(state="crashed", severity_at_end="information", headline="all 48 parameters summed in low precision")
    )
    assert noted == Verdict("warning", "The training crashed at step 99; all 48 parameters summed in low precision")
    fell = verdict(run(state="crashed", severity_at_end="critical", headline="1 of 2 parameters collapsed at step 31"))
    assert fell == Verdict("critical", "1 of 2 parameters collapsed at step 31; the training crashed at step 99")
    early = verdict(run(state="crashed", step=None, severity_at_end="warning", headline="nothing heard"))
    assert early == Verdict("warning", "Nothing heard; the training crashed")


def test_a_crash_with_an_incident_is_said_once() -> None:
    headline = "CUDA out of memory at step 100 (peak 72.8 GiB)"
    known = verdict(run(state="crashed", severity_at_end="critical", headline=headline, firing={"crash": 0}))
    assert known == Verdict("critical", headline)


@pytest.mark.parametrize(
    ("changes", "incidents", "words"),
    [
        ({"open_incidents": [31], "worst": "critical"}, [incident()], "collapse \N{MIDDLE DOT} 1 of 2"),
        ({"open_incidents": [31], "worst": "critical"}, [incident(counts={"firing": 0, "layers": 2})], "collapse"),
        ({"severity_at_end": "warning", "state": "finished"}, [incident(state="ended", severity="warning")], "1 of 2"),
        ({"state": "crashed", "severity_at_end": "information"}, [incident(severity="information")], "crashed"),
        ({"open_incidents": [31], "worst": "critical"}, [], "incident"),
        ({}, [incident(state="resolved")], "OK"),
        ({"step": None}, [], "waiting"),
    ],
)
def test_a_label_has_the_rule_and_the_count(changes: dict[str, Any], incidents: list[Any], words: str) -> None:
    told = label(verdict(run(**changes)), incidents)
    assert told.endswith(words)


def test_a_run_without_a_step_waits() -> None:
    assert verdict(run(step=None, layers=0)).tone == "waiting"


@pytest.mark.parametrize("layers", [0, 2])
def test_a_run_that_ended_without_a_step_does_not_wait(layers: int) -> None:
    ended = verdict(run(state="finished", step=None, layers=layers))
    assert ended == Verdict("information", NO_STEP)
    assert verdict(run(state="crashed", step=None, layers=layers)) == Verdict("warning", "The training crashed")
    for state in ("live", "stale", "silent"):
        assert verdict(run(state=state, step=None, layers=layers)).tone == "waiting"
