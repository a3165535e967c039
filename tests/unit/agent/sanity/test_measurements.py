"""What is read of a collector at the end of a short run."""

from typing import Any

from gradcanary.sanity.measurements import Measurements, read_measurements

STATS = "step,time,absmax a,zero_fraction a,absmax b c,zero_fraction b c\n0,t,0.5,0.25,,\n1,t,inf,,0.0,\n"
METRICS = "step,time,loss,step_time_s\n0,t,2.5,\n1,t,nan,0.1\n"


def read(path: str) -> Any:
    answers = {
        "/runs/r": {"sessions": [session(0, 0, 1), session(1, 0, 1), session(0, None, None)], "facts": []},
        "/runs/r/layers": {"layers": [{"name": "a"}]},
        "/runs/r/metrics.csv": METRICS,
    }
    if path.startswith("/incidents?run=r&"):
        return {"incidents": []}
    return STATS if path.startswith("/runs/r/export.csv?") else answers[path]


def session(rank: int, first: int | None, last: int | None) -> dict[str, int | None]:
    return {"rank": rank, "first_step": first, "last_step": last}


def test_an_empty_cell_is_nothing_and_each_stat_has_its_parameters() -> None:
    found = read_measurements(read, "r", ["r"])
    assert found.stats["absmax"] == {"a": [(0, 0.5), (1, float("inf"))], "b c": [(1, 0.0)]}
    assert found.stats["zero_fraction"] == {"a": [(0, 0.25)], "b c": []}
    assert found.metrics["step_time_s"] == [(1, 0.1)]
    assert [step for step, _ in found.metrics["loss"]] == [0, 1]


def test_steps_are_those_of_the_first_rank() -> None:
    assert read_measurements(read, "r", ["r"]).steps == 2


def test_a_run_that_the_collector_does_not_have_is_empty() -> None:
    assert read_measurements(read, "other", ["r"]) == Measurements()
    assert Measurements().steps == 0
