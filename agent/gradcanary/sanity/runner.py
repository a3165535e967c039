"""Runs a command for some optimizer steps under a collector, and reads what was measured.

The training ends itself: the agent in it raises SIGINT as the window after the last step begins, as Ctrl-C does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from gradcanary.sanity.report import Report


@dataclass(frozen=True)
class Source:
    """A collector that takes the runs: its address, and the token to read with."""

    url: str
    token: str | None = None


def own_collector() -> AbstractContextManager[Source]:
    """Start a collector on a free port with a temporary folder; it ends with the context, and nothing is left."""
    raise NotImplementedError


def run_watched(
    command: Sequence[str],
    steps: int,
    source: Source,
    *,
    name: str,
    environ: Mapping[str, str],
    folder: Path,
    verbose: bool = False,
) -> Report:
    """Run a command, as ``gradcanary run`` takes it, until ``steps`` optimizer steps are made, and judge it.

    ``name`` is that of the run, ``environ`` the environment of the training, ``folder`` takes its output and spool;
    ``verbose`` shows the output on stderr, too. Raises LaunchError if the command cannot be started.
    """
    raise NotImplementedError
