"""W&B beside a watch, offline: the script of docs/how-to/trackers.md, and what W&B's own file has of it."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.agent import tracked
from support.collectors import Collector

ALERTS = {"GRADCANARY_ABSMAX_BELOW": "1e6"}
"""An incident at once."""


@dataclass
class Trained:
    """A training, and the files of its W&B runs."""

    result: dict[str, Any]
    stderr: str
    files: list[Path]

    def summary(self, number: int = 0) -> dict[str, Any]:
        """Return the last value of each key, nested ones as they are."""
        found: dict[str, Any] = {}
        for record in self.of("summary", number):
            found |= {
                ".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.summary.update
            }
        return found

    def history(self) -> list[dict[str, Any]]:
        """Return the loss of each step of W&B, with whatever else is in it but times."""
        found = []
        for record in self.of("history"):
            row = {".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
            found.append({name: value for name, value in row.items() if name not in ("_timestamp", "_runtime")})
        return found

    def of(self, kind: str, number: int = 0) -> list[Any]:
        return [each for each in tracked.records(self.files[number]) if each.WhichOneof("record_type") == kind]


Trains = Callable[..., Trained]


@pytest.fixture(scope="module")
def trains(module_collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Trains:
    def trains(script: str = tracked.SCRIPTS["wandb"], **env: str) -> Trained:
        folder = tmp_path_factory.mktemp("wandb")
        result, stderr = tracked.train(script, folder, GRADCANARY_URL=module_collector.url, **env)
        return Trained(
            result, stderr, sorted(folder.glob("wandb/*-run-*/*.wandb"), key=lambda file: file.stat().st_ctime)
        )

    return trains


@pytest.fixture(scope="module")
def watched(trains: Trains) -> Trained:
    return trains(**ALERTS)


def named(collector: Collector, run: str) -> list[dict[str, Any]]:
    """Return the runs of trackers that the collector knows of the only launch of a run."""
    (launch,) = collector.get(f"/api/v1/runs/{run}").json()["launches"]
    return launch["environment"]["trackers"]


def test_the_page_names_the_offline_run(watched: Trained, module_collector: Collector) -> None:
    folder = watched.files[0].parent.name
    name = f"toy/{folder.rpartition('-')[2]}"
    (run,) = named(module_collector, "beside-wandb")
    assert run == {"tracker": "wandb", "id": name, "name": name, "url": None, "store": folder}
    assert "URL not available" not in watched.stderr


def test_steps_history_config_and_weights_are_the_same_without_gradcanary(watched: Trained, trains: Trains) -> None:
    alone = trains(tracked.without_gradcanary(tracked.SCRIPTS["wandb"]))
    assert watched.result == alone.result
    assert watched.history() == alone.history()
    assert [row["_step"] for row in watched.history()] == list(range(100))
    assert watched.summary().keys() - alone.summary().keys() == {"gradcanary"}
    for kind in ("config", "output", "metric"):
        assert len(watched.of(kind)) == len(alone.of(kind))


def test_the_summary_has_the_address_of_the_page(watched: Trained, module_collector: Collector) -> None:
    assert watched.summary()["gradcanary"] == f"{module_collector.url}/runs/beside-wandb"


def test_an_incident_is_one_alert(watched: Trained, module_collector: Collector) -> None:
    (alert,) = (record.alert for record in watched.of("alert"))
    (incident,) = module_collector.get("/api/v1/incidents", run="beside-wandb").json()["incidents"]
    assert alert.title == f"gradcanary #{incident['id']}: collapse (critical)"
    assert alert.text.startswith("All 4 parameters went under the threshold")
    assert alert.text.endswith(f"\n{module_collector.url}/runs/beside-wandb?incident={incident['id']}")
    assert (alert.level, alert.wait_duration) == ("ERROR", 15 * 60 * 1000)


SWEEP = """
import torch, wandb
from gradcanary.api import watch_when_training

watch_when_training()  # as "gradcanary run" does
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters())
for number in range(2):
    with wandb.init(project="sweep", name=f"try {number}") as run:
        for _ in range(20):
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
"""


def test_each_run_of_a_sweep_in_one_process_is_linked(trains: Trains, module_collector: Collector) -> None:
    sweep = trains(SWEEP, GRADCANARY_RUN="sweep")
    assert [run["name"] for run in named(module_collector, "sweep")] == ["try 0", "try 1"]
    for number in range(2):
        assert sweep.summary(number)["gradcanary"] == f"{module_collector.url}/runs/sweep"


def test_a_later_rank_links_nothing(trains: Trains) -> None:
    later = trains(RANK="1", WORLD_SIZE="2", **ALERTS)
    assert "gradcanary" not in later.summary()
    assert later.of("alert") == []


def test_a_disabled_run_is_nowhere(trains: Trains, module_collector: Collector) -> None:
    script = tracked.SCRIPTS["wandb"].replace("beside-wandb", "disabled")
    assert trains(script, WANDB_MODE="disabled").files == []
    assert named(module_collector, "disabled") == []


def test_without_an_environment_nothing_is_linked_and_alerts_are_passed_on(trains: Trains) -> None:
    script = tracked.SCRIPTS["wandb"].replace("beside-wandb", "private")
    private = trains(script, GRADCANARY_ENVIRONMENT="0", **ALERTS)
    assert "gradcanary" not in private.summary()
    assert len(private.of("alert")) == 1
