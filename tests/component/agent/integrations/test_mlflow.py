"""MLflow beside a watch, with a store in a folder: the script of docs/how-to/trackers.md, read by MLflow's client."""

from pathlib import Path

from support.agent import tracked
from support.collectors import Collector

OURS = {"gradcanary.run", "gradcanary.alert", "gradcanary.alert.url"}


def test_links_alert_and_nothing_else(module_collector: Collector, tmp_path: Path) -> None:
    script, env = tracked.SCRIPTS["mlflow"], {"GRADCANARY_URL": module_collector.url, "GRADCANARY_ABSMAX_BELOW": "1e6"}
    watched, _ = tracked.train(script, tmp_path / "watched", **env)
    alone, _ = tracked.train(tracked.without_gradcanary(script), tmp_path / "alone")

    page = f"{module_collector.url}/runs/beside-mlflow"
    (incident,) = module_collector.get("/api/v1/incidents", run="beside-mlflow").json()["incidents"]
    tags = watched["tags"]
    assert tags["gradcanary.run"] == page
    assert tags["gradcanary.alert"].startswith("critical, collapse: All 4 parameters went under the threshold")
    assert tags["gradcanary.alert.url"] == f"{page}?incident={incident['id']}"

    assert tags.keys() - alone["tags"].keys() == OURS
    for what in ("weights", "random", "history", "metrics"):
        assert watched[what] == alone[what]
    assert [step for step, _ in watched["history"]] == list(range(100))

    (launch,) = module_collector.get("/api/v1/runs/beside-mlflow").json()["launches"]
    store = f"file:{tmp_path}/watched/mlruns"
    (run,) = launch["environment"]["trackers"]
    assert run == {"tracker": "mlflow", "id": watched["id"], "name": "toy", "url": None, "store": store}
