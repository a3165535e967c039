"""The addresses of runs that have a page, as the real libraries make them: no server is asked."""

from pathlib import Path

from support.agent import tracked

SCRIPT = """
import mlflow, wandb
from mlflow.entities import Run, RunInfo
from wandb.sdk import wandb_run
from gradcanary.integrations import links, mlflow as of_mlflow, wandb as of_wandb

settings = wandb.Settings(
    mode="online", base_url="https://wandb.example", entity="team", project="toy", run_id="abc", run_name="sun 1"
)
print(links.sendable(of_wandb.describe(wandb_run.Run(settings=settings))).url)
run = Run(RunInfo("r1", "7", "user", "RUNNING", 1, None, "active", run_name="lora"), None)
stores = ("https://user:secret@mlflow.example/base/?key=1", "postgresql://user:secret@db/x?password=1", "databricks")
for store in stores:
    mlflow.set_tracking_uri(store)
    found = links.sendable(of_mlflow.describe(run))
    print(found.url or found.store)
"""


def test_addresses_and_stores_have_no_secrets(tmp_path: Path) -> None:
    printed, _ = tracked.run(SCRIPT, tmp_path)
    assert printed.splitlines() == [
        "https://wandb.example/team/toy/runs/abc",
        "https://mlflow.example/base/#/experiments/7/runs/r1",
        "postgresql://***@db/x?***",
        "databricks",
    ]
