"""Weights & Biases: the active run, the address of our page in its summary, and its alerts.

The library is never imported here: a script that uses it has done so. Nothing is logged, so ``run.step`` stays.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from gradcanary import wire
from gradcanary.integrations.library import Library

KEY = "gradcanary"
"""Of the summary."""

LEVELS = {"critical": "ERROR", "warning": "WARN"}
"""Of an alert; any other severity is INFO."""

WAIT_S = 900
"""Between two alerts with the same title: as between two messages of one incident."""

MAX_TITLE = 63
"""Characters: wandb documents fewer than 64."""

library = Library("wandb")


def alert(incident: wire.Brief) -> None:
    """Send an incident as an alert of the active W&B run: ``watch(on_alert=gradcanary.integrations.wandb.alert)``.

    A later process that resumes the run sends the same title, which W&B leaves out for 15 minutes.
    """
    title = f"gradcanary #{incident.id}: {incident.rule} ({incident.severity})"[:MAX_TITLE]
    text, level = f"{incident.summary}\n{incident.url}", LEVELS.get(incident.severity, "INFO")
    library.call_with_run(
        f"the alert of incident #{incident.id}",
        lambda run: run.alert(title=title, text=text, level=level, wait_duration=WAIT_S),
    )


def active_run() -> object:
    """Return the active run of this process, or None."""
    run = getattr(sys.modules.get("wandb"), "run", None)
    # A forked child has the run of its parent: a call would start threads to take part in it.
    is_of_parent = getattr(run, "_attach_pid", None) not in (None, os.getpid())
    return library.follow(None if is_of_parent else run)


def describe(run: Any) -> wire.TrackerRun | None:  # noqa: ANN401 -- a wandb.Run
    """Return names and address of a run; None for one that is disabled, and so nowhere."""
    if getattr(run, "disabled", False):
        return None
    path = str(run.path)
    if run.offline:  # only then: url would print a warning
        return wire.TrackerRun("wandb", path, run.name or path, None, Path(run.dir).parent.name)
    return wire.TrackerRun("wandb", path, run.name or path, run.url, None)


def link(run: Any, page: str) -> None:  # noqa: ANN401 -- a wandb.Run
    """Write the address of our page into the summary of a run, soon."""
    library.call("the address of the run's page", lambda: run.summary.update({KEY: page}))
