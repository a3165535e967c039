"""The report of ``gradcanary sanity`` as JSON."""

import json

from gradcanary.sanity.report import Check, Report


def report(*checks: Check, **fields: object) -> Report:
    return Report("r", ("train.py",), 4, 4, "stopped", 0, checks=checks, **fields)  # type: ignore[arg-type]


def test_json_has_no_number_that_json_lacks() -> None:
    found = report(losses=((0, 1.0), (1, float("nan"))), agent_share=float("inf"), first_nonfinite_step=1)
    told = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert told["losses"] == [[0, 1.0], [1, None]]
    assert (told["agent_share"], told["first_nonfinite_step"], told["is_healthy"]) == (None, 1, True)


def test_only_a_check_that_is_not_ok_is_unhealthy() -> None:
    well = [Check("loss", verdict, "") for verdict in ("ok", "not seen", "not judged")]  # type: ignore[arg-type]
    assert report(*well).is_healthy
    assert not report(*well, Check("sums", "not ok", "")).is_healthy
