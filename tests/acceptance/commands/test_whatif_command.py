"""``gradcanary whatif``: of real trainings, what is foretold before their schedule changes is what then happens."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from support.agent.fixtures import complaints
from support.collectors import Collector
from support.effort import EFFORT
from support.scheduled_trainings import TRAININGS, Lora, Mlp, Training, cosine, cut

Typed = Callable[..., tuple[int, str, str]]

CUT = {each.name: replace(each, steps=1_100) for each in TRAININGS if each.name.endswith(("cut-10", "cut-100"))}
DECAY = {"steps": 1_500, "changes": (600,), "dtype": torch.float32, "is_lora": True}
SICK = (
    *(CUT.values() if EFFORT > 1 else [CUT["transformer-cut-10"]]),
    Training("mlp-cosine-short", lambda: Mlp(0.15), cosine(2e-3, 1e-6, 1_200), steps=1_200, changes=(500,)),
    Training("decay-rise", Lora, cut(1e-6, 600, 2.0), weight_decay=1_500, **DECAY),
    Training("decay-halved", Lora, cut(2e-6, 600, 0.5), weight_decay=1_400, **DECAY),
)
HEALTHY = (
    Training("healthy-adapters", Lora, cut(1e-3, 600), steps=1_000, dtype=torch.float32, is_lora=True),
    Training("healthy-bf16", Mlp, cut(4e-3, 600, 0.5), steps=1_000),
)


@pytest.fixture
def whatif(
    typed: Typed, module_collector: Collector, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, Any]]:
    """Type the command with --json; return its exit status and the answer."""

    def run(*words: object) -> tuple[int, Any]:
        capsys.readouterr()  # the training has told of its incidents
        status, said, error = typed("whatif", *words, "--json", "--url", module_collector.url)
        assert complaints(error) == ""
        return status, json.loads(said)

    return run


@pytest.mark.parametrize("training", SICK, ids=lambda training: training.name)
def test_what_is_foretold_before_a_change_happens(
    module_collector: Collector, whatif: Callable[..., tuple[int, Any]], training: Training
) -> None:
    training.run(module_collector.url)
    _, found = whatif(training.name, "--backtest", training.changes[0])
    score = found["score"]
    assert score["hit"] >= 2, found["verdicts"]
    assert score["missed"] + score["false"] + score["off"] <= 0.25 * score["hit"], found["verdicts"]


@pytest.mark.parametrize("training", HEALTHY, ids=lambda training: training.name)
def test_nothing_is_foretold_of_a_healthy_training(
    module_collector: Collector, whatif: Callable[..., tuple[int, Any]], training: Training
) -> None:
    training.run(module_collector.url)
    status, found = whatif(training.name, "--backtest")
    assert found["step"] == 600
    assert (status, sum(found["score"].values()) - found["score"]["possible"]) == (0, found["score"]["quiet"])
    status, found = whatif(training.name, "--schedule", "lr")
    assert (status, [each for each in found["outlooks"] if each["likely"] is not None]) == (0, [])
    assert (found["from"], found["to"], found["resolution"]) == (1_000, 11_000, 1)


@pytest.fixture(scope="module")
def mlp(module_collector: Collector) -> Training:
    """A training in bfloat16 whose learning rate does not change."""
    training = Training("mlp", Mlp, cut(1e-3, 10_000), steps=600)
    training.run(module_collector.url)
    return training


@pytest.mark.usefixtures("mlp")
def test_a_cut_to_come_is_foretold_at_its_step(module_collector: Collector, typed: Typed, tmp_path: Path) -> None:
    schedule = tmp_path / "schedule.csv"
    schedule.write_text("step,lr\n600,1e-3\n1000,1e-3\n1001,1e-5\n")
    status, said, error = typed("whatif", "mlp", "--schedule", schedule, "--to", 2_000, "--url", module_collector.url)
    assert (status, error) == (1, "")
    lines = said.splitlines()
    assert lines[0].endswith("from step 600 to 2,000; learning rate 0.001 before, 0.001 first, 1e-5 last")
    assert "Low-precision weights that would stop moving: 5 of 5 measured parameters" in lines
    (row,) = (line for line in lines if line.startswith("body.2.weight "))
    assert row.split()[3] == "1,001"
    assert "Gradients that would come under 1e-4: 0 parameters" in lines
    assert "No forecast of weights: fewer than 32 weights (1 parameter)." in lines
    assert any(line.startswith("Gradients: a fall goes on only where it is as fast as weight decay") for line in lines)


@pytest.mark.usefixtures("mlp")
def test_a_schedule_may_begin_within_the_run_or_later(whatif: Callable[..., tuple[int, Any]]) -> None:
    status, early = whatif("mlp", "--schedule", "1e-5", "--from", 300, "--to", 400)
    assert (status, early["rates"]) == (1, {"before": [1e-3], "first": [1e-5], "last": [1e-5]})
    assert {each["likely"] for each in early["outlooks"] if not each["is_past"]} == {300}
    status, late = whatif("mlp", "--schedule", "lr / 100", "--from", 5_000, "--group", 0)
    assert status == 1
    assert {each["likely"] for each in late["outlooks"] if not each["is_past"]} == {5_000}


@pytest.mark.usefixtures("mlp")
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("nobody", "--schedule", "lr"), "There is no run 'nobody' here"),
        (("mlp", "--schedule", "os.exit()"), "'os.exit()' is not allowed in a schedule; allowed are numbers, step, lr"),
        (("mlp", "--schedule", "none.csv"), "none.csv cannot be read"),
        (("mlp", "--schedule", "lr", "--group", 3), "there is no parameter group 3; the run has 1 of them"),
        (("mlp", "--schedule", "lr", "--from", 0), "--from 0: the first sample of mlp is of step 0"),
        (("mlp", "--schedule", "lr", "--to", 600), "--to 600 does not come after step 600"),
        (("mlp", "--schedule", "-lr"), "expected one argument"),
        (("mlp", "--schedule=-lr"), "the learning rate at step 600 is -0.001; allowed are numbers from 0 on"),
        (("mlp", "--schedule", "lr", "--threshold", "0"), "'0' is not a number over 0"),
        (("mlp", "--schedule", "lr", "--to", "1e9"), "'1e9' is not a number from 0 on"),
        (("mlp", "--backtest"), "did not change: name a step with --backtest STEP"),
        (("mlp", "--backtest", 5_000), "mlp cannot be tested from step 5,000 on: there are samples on one side of it"),
        (("mlp", "--backtest", "--to", 5), "--from, --to and --group are of a schedule"),
        (("mlp",), "one of the arguments --schedule --backtest is required"),
    ],
)
def test_whatif_reports_why_it_cannot_run(
    module_collector: Collector, typed: Typed, words: tuple[object, ...], says: str
) -> None:
    status, said, error = typed("whatif", *words, "--url", module_collector.url)
    assert (status, said) == (2, "")
    assert says in error


def test_a_collector_that_is_away_is_an_error(typed: Typed) -> None:
    status, _, error = typed("whatif", "mlp", "--schedule", "lr", "--url", "http://127.0.0.1:9")
    assert status == 2
    assert "does not answer" in error
