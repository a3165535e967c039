"""What the runs and launches of this process are called: a name that was given once is kept as long as it lives."""

from __future__ import annotations

import os
import sys
import time

from gradcanary import naming
from gradcanary.settings import Settings

_unnamed: str | None = None
_launches: dict[str, tuple[str, int]] = {}


def call_unnamed(run: str) -> None:
    """Give the run a name where nobody names it, whoever of its job was watched before."""
    global _unnamed
    _unnamed = naming.allowed(run)


def run_of(settings: Settings) -> str:
    """Return the name of the run: the given one, the framework's, or one that is made of the script's."""
    from gradcanary import frameworks

    global _unnamed
    if settings.run is None:
        if (given := frameworks.run_name()) is not None:
            return naming.allowed(given)
        _unnamed = _unnamed or naming.run_name(sys.argv[0] if sys.argv else "", time.strftime("%Y%m%d"))
        return _unnamed
    return naming.allowed(settings.run)


def launch_of(run: str) -> str:
    """Return the launch: the launcher's for the first watch of a run, the next one for each later watch."""
    launch, number = _launches.get(run) or (naming.launch_id(os.environ, naming.started(os.getppid())), 0)
    _launches[run] = launch, number + 1
    return naming.numbered(launch, number + 1)
