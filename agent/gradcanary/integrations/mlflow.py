"""MLflow: the active run, the address of our page in its tags, and the latest alert.

The library is never imported here: a script that uses it has done so. No metric is logged.
"""

from __future__ import annotations

import sys
from typing import Any

from gradcanary import wire
from gradcanary.integrations.library import Library
from gradcanary.redaction import redact

PAGE, ALERT, ALERT_PAGE = "gradcanary.run", "gradcanary.alert", "gradcanary.alert.url"
"""Names of tags."""

library = Library("mlflow")


def tag(alert: wire.Brief) -> None:
    """Write an incident into the tags of the active run: ``watch(on_alert=gradcanary.integrations.mlflow.tag)``.

    The tags hold the latest one, and stay when it is over.
    """
    tags = {ALERT: f"{alert.severity}, {alert.rule}: {alert.summary}", ALERT_PAGE: alert.url}
    library.call_with_run(f"the tags of incident #{alert.id}", lambda run: _set_tags(run, tags))


def active_run() -> object:
    """Return the active run of this thread, or None: MLflow has one for each thread."""
    active = getattr(sys.modules.get("mlflow"), "active_run", None)
    return library.follow(None if active is None else active())


def describe(run: Any) -> wire.TrackerRun:  # noqa: ANN401 -- an mlflow.ActiveRun
    """Return names and address of a run, or the store that keeps it if that is no server."""
    info, store = run.info, str(sys.modules["mlflow"].get_tracking_uri())
    name = info.run_name or info.run_id
    if store.startswith(("http://", "https://")):
        page = f"{store.rstrip('/')}/#/experiments/{info.experiment_id}/runs/{info.run_id}"
        return wire.TrackerRun("mlflow", info.run_id, name, page, None)
    return wire.TrackerRun("mlflow", info.run_id, name, None, redact(store))


def link(run: Any, page: str) -> None:  # noqa: ANN401 -- an mlflow.ActiveRun
    """Write the address of our page into the tags of a run, soon."""
    library.call("the address of the run's page", lambda: _set_tags(run, {PAGE: page}))


def _set_tags(run: Any, tags: dict[str, str]) -> None:  # noqa: ANN401 -- an mlflow.ActiveRun
    # By the run's id: the calls without one go to the active run of their own thread, and would start one.
    client = sys.modules["mlflow"].MlflowClient()
    for name, value in tags.items():
        client.set_tag(run.info.run_id, name, value)
