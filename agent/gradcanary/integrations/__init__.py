"""Other trackers beside a watch: ``gradcanary.integrations.wandb.alert`` and ``gradcanary.integrations.mlflow.tag``."""

from gradcanary.integrations import mlflow, wandb

__all__ = ["mlflow", "wandb"]
