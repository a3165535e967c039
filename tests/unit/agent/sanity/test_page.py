"""The page of ``gradcanary sanity`` in a terminal."""

from gradcanary.sanity.page import page
from gradcanary.sanity.report import Check, Report

RUN = Check("run", "ok", "200 optimizer steps")


def report(*checks: Check) -> Report:
    return Report("r", ("/usr/bin/python3", "train.py", "--lr", "1"), 200, 200, "stopped", 0, ("the end",), checks)


def test_a_healthy_run_says_so_and_shows_no_output() -> None:
    assert page(report(RUN, Check("loss", "not judged", "it rose")), None).splitlines() == [
        "train.py --lr 1, 200 steps asked for",
        "",
        "ok          run            200 optimizer steps",
        "not judged  loss           it rose",
        "",
        "Healthy in these 200 steps. 1 check was not judged: more steps may tell.",
    ]


def test_a_run_that_failed_shows_the_end_of_its_output() -> None:
    lines = page(report(Check("run", "not ok", "status 1", "Read it.")), None).splitlines()
    assert lines[2:4] == ["not ok      run            status 1", " " * 27 + "Do first: Read it."]
    assert lines[-4:] == ["Not healthy: 1 check is not ok.", "", "The end of its output:", "    the end"]


def test_a_fault_of_a_run_that_did_not_fail_shows_no_output() -> None:
    assert "the end" not in page(report(RUN, Check("sums", "not ok", "lost")), None)


def test_lines_fit_the_terminal() -> None:
    long = page(report(RUN, Check("size", "not ok", "word " * 60, "do " * 60)), 80)
    assert max(map(len, long.splitlines())) <= 80
    assert long.count("word") == 60
