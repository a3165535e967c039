"""What ``gradcanary sanity`` says of a run: the rules first, then the measurements, and nothing that these deny."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradcanary.sanity.judge import judge
from gradcanary.sanity.measurements import Json, Measurements, Outcome, Pairs
from gradcanary.sanity.report import Check, Report

STEPS = 60


def outcome(status: int = 130, asked: int = STEPS, *, terminated: bool = False) -> Outcome:
    return Outcome("r", ("train.py",), asked, status, ("the end",), 2**29, terminated)


def run(
    steps: int = STEPS,
    *,
    absmax: dict[str, Pairs] | None = None,
    nonfinite: dict[str, Pairs] | None = None,
    incidents: tuple[Json, ...] = (),
    **metrics: list[float],
) -> Measurements:
    """Return a run of two blocks that are alike, and a head."""
    names = ("blocks.0.w", "blocks.1.w", "head.w")
    had = {name: [(step, 0.1) for step in range(steps)] for name in names}
    layers = [{"name": name, "shape": [4, 4 if "b" in name else 1], "micro_steps": 1} for name in names]
    sessions = [{"rank": 0, "first_step": 0, "last_step": steps - 1}] if steps else []
    given = {"loss": [2 - step / steps for step in range(steps)], "lr0": [0.1] * steps, **metrics}
    return Measurements(
        run={"sessions": sessions, "facts": [], "accumulators": {"float32": 3}},
        layers=layers,
        incidents=list(incidents),
        metrics={name: list(enumerate(values)) for name, values in given.items()},
        stats={
            "absmax": {**had, **(absmax or {})},
            "nonfinite": nonfinite or {},
            "update_ratio": {name: [(0, 0.01)] for name in names},
        },
    )


def incident(rule: str, severity: str = "critical", *names: str, step: int | None = 40, cause: str = "x") -> Json:
    what = f"{rule} it is. The run ended at step 1,234 without a recovery."
    parts = {"what": what, "do_first": f"undo {rule}"}
    layers = [{"layer": number, "name": name} for number, name in enumerate(names)]
    return {
        "rule": rule,
        "severity": severity,
        "explanation": parts,
        "layers": layers,
        "opened_step": step,
        "likely_cause": {"code": cause},
    }


def check(report: Report, code: str) -> Check:
    return next(each for each in report.checks if each.code == code)


def test_a_healthy_run_is_ok_in_each_check() -> None:
    report = judge(outcome(), run(step_time_s=[9.0] * 5 + [0.02] * 55, agent_share=[0.5]))
    assert {each.code: each.verdict for each in report.checks} == dict.fromkeys(
        ("run", "loss", "gradients", "optimizer", "updates", "finite", "size", "sums", "time", "memory"), "ok"
    ) | {"float16": "not seen"}
    assert (report.ending, report.steps, report.step_time_s, report.first_incident_step) == ("stopped", 60, 0.02, None)
    assert check(report, "time").text.startswith("20 ms for a step")
    assert check(report, "memory").text == "512 MiB in the process"


@pytest.mark.parametrize(
    ("rule", "code"),
    [
        ("collapse", "size"),
        ("vanished", "gradients"),
        ("not_optimized", "optimizer"),
        ("never_cleared", "optimizer"),
        ("in_vain", "updates"),
        ("nonfinite", "finite"),
        ("accumulation_loss", "sums"),
        ("loss_scale", "float16"),
        ("metric", "metrics"),
        ("crash", "run"),
    ],
)
def test_what_a_rule_found_is_not_ok_with_what_to_do(rule: str, code: str) -> None:
    report = judge(outcome(), run(incidents=(incident(rule, "warning"),)))
    assert not report.is_healthy
    assert check(report, code) == Check(code, "not ok", f"{rule} it is.", f"undo {rule}")
    assert report.first_incident_step == 40


def test_information_is_told_and_is_no_fault() -> None:
    report = judge(outcome(), run(incidents=(incident("scale_drop", "information"),)))
    assert report.is_healthy
    assert "scale_drop it is" in check(report, "size").text


def test_an_unused_parameter_is_a_fault_unless_it_is_like_one_that_is_used() -> None:
    """An expert that no token chose is not."""
    nothing: dict[str, Pairs] = {"head.w": [], "blocks.1.w": []}
    head = run(absmax={"head.w": []}, incidents=(incident("unused", "information", "head.w"),))
    assert check(judge(outcome(), head), "gradients").verdict == "not ok"
    cancels = run(absmax={"head.w": []}, incidents=(incident("unused", "information", "head.w", cause="cancelled"),))
    assert check(judge(outcome(), cancels), "gradients").verdict == "not judged"
    block = run(absmax={"blocks.1.w": []}, incidents=(incident("unused", "information", "blocks.1.w"),))
    assert check(judge(outcome(), block), "gradients").verdict == "not judged"
    assert check(judge(outcome(), run(absmax=nothing)), "gradients").text.startswith("2 of 3 parameters (blocks.1.w")


@pytest.mark.parametrize(("losses", "verdict"), [([2 - step / 60 for step in range(60)], "not judged"), ([], "not ok")])
def test_weights_that_stand_still_are_a_fault_unless_the_loss_falls(losses: list[float], verdict: str) -> None:
    found = check(judge(outcome(), run(loss=losses, incidents=(incident("frozen", "warning"),))), "updates")
    assert (found.verdict, found.do_first) == (verdict, "undo frozen")
    stopped = run(loss=losses, incidents=(incident("frozen", "critical"),))
    assert check(judge(outcome(), stopped), "updates").verdict == "not ok"


def test_a_parameter_of_no_optimizer_is_not_said_to_have_no_gradient() -> None:
    """It has one, which is not measured."""
    report = judge(outcome(), run(absmax={"head.w": []}, incidents=(incident("not_optimized", "warning", "head.w"),)))
    assert check(report, "gradients").text == "all 2 parameters of the optimizers had one"


def test_no_gradient_at_all_is_not_ok() -> None:
    none: dict[str, Pairs] = {name: [(0, 0.0)] for name in ("blocks.0.w", "blocks.1.w", "head.w")}
    assert check(judge(outcome(), run(absmax=none)), "gradients").verdict == "not ok"


@pytest.mark.parametrize(
    ("losses", "verdict"),
    [
        ([2 - step / 60 for step in range(60)], "ok"),
        ([1 + step / 60 for step in range(60)], "not judged"),
        ([1.0 + 0.1 * (step % 2) for step in range(60)], "not judged"),
        ([0.5] * 60, "not ok"),
        ([0.0] * 60, "not judged"),
        ([0.5] * 8, "not judged"),
        ([0.5] * 59 + [float("nan")], "not ok"),
        ([], "not seen"),
    ],
)
def test_a_loss_is_judged_by_what_it_did(losses: list[float], verdict: str) -> None:
    assert check(judge(outcome(), run(loss=losses)), "loss").verdict == verdict


def test_a_constant_loss_with_a_rate_of_zero_is_not_judged() -> None:
    assert check(judge(outcome(), run(loss=[0.5] * 60, lr0=[0.0] * 60)), "loss").verdict == "not judged"


@pytest.mark.parametrize(
    ("ended", "steps", "ending", "verdict"),
    [
        (outcome(130), 60, "stopped", "ok"),
        (outcome(0), 40, "finished", "ok"),
        (outcome(1), 40, "failed", "not ok"),
        (outcome(0), 0, "finished", "not ok"),
        (outcome(-15, terminated=True), 70, "stopped", "ok"),
    ],
)
def test_the_end_of_the_process(ended: Outcome, steps: int, ending: str, verdict: str) -> None:
    report = judge(ended, run(steps) if steps else Measurements())
    assert (report.ending, report.checks[0].verdict) == (ending, verdict)
    assert ("terminated" in report.checks[0].text) == ended.is_terminated
    assert len(report.checks) == 1 or steps


def test_short_runs_are_not_judged_for_what_takes_longer() -> None:
    report = judge(outcome(asked=8), run(8))
    unjudged = {each.code for each in report.checks if each.verdict == "not judged"}
    assert unjudged == {"loss", "optimizer", "size"}


def test_skipped_steps_of_a_scaler_are_no_fault() -> None:
    found = run(absmax={"head.w": [(1, 0.1)]}, nonfinite={"head.w": [(0, 1.0), (1, 0.0)]}, scaler_scale=[32768.0] * 60)
    report = judge(outcome(), found)
    assert report.is_healthy
    assert report.first_nonfinite_step == 0
    assert check(report, "finite").text.startswith("not in 1 step, the last one 0")
    assert (0, 0.1) in report.absmax


NO_GRADIENT: dict[str, Pairs] = {"blocks.0.w": [], "blocks.1.w": [], "head.w": []}


def test_gradients_that_are_never_finite_are_gradients() -> None:
    every: Pairs = [(step, 1.0) for step in range(STEPS)]
    report = judge(outcome(), run(absmax=NO_GRADIENT, nonfinite=dict.fromkeys(NO_GRADIENT, every)))
    assert check(report, "gradients").verdict == "ok"
    assert report.first_nonfinite_step == 0


def test_an_optimizer_whose_parameters_have_no_gradient_is_not_praised() -> None:
    report = judge(outcome(), run(absmax=NO_GRADIENT))
    assert check(report, "optimizer").verdict == "not judged"
    assert "compare them with those of the optimizer" in check(report, "gradients").do_first


def test_a_loss_that_stands_still_names_what_is_known_of_the_weights() -> None:
    frozen = incident("frozen", "warning", "head.w")
    report = judge(outcome(), run(loss=[1.5] * STEPS, incidents=(frozen,)))
    assert check(report, "loss").do_first == "undo frozen"
    assert "the loss depends" in check(judge(outcome(), run(loss=[1.5] * STEPS)), "loss").do_first


@given(
    st.lists(st.floats(), max_size=80),
    st.lists(st.tuples(st.integers(0, 60), st.floats().map(abs)), max_size=30),
    st.integers(0, 80),
)
def test_any_numbers_give_a_report(losses: list[float], absmax: Pairs, steps: int) -> None:
    report = judge(outcome(), run(steps, absmax={"head.w": absmax}, loss=losses, step_time_s=losses))
    assert all(each.text for each in report.checks)
    assert all(each.verdict != "not ok" or each.code in ("run", "loss", "gradients") for each in report.checks)
