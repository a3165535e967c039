"""The names of a session: run, launch, session id, rank. A process keeps the name that it was given first."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradcanary.settings import Settings


MAX_RUN = 100
MAX_ID = 64

_default_run: str | None = None
_launches: dict[str, tuple[str, int]] = {}


def run_name(script: str, date: str, launch: str | None = None) -> str:
    """Return ``<script>-<date>-<4 hex>`` for a run without a name; it is the same for all processes of a launch."""
    stem = Path(script).stem if script not in ("", "-c", "-m") else "python"
    digits = secrets.token_hex(2) if launch is None else _hash(launch)[:4]
    return f"{allowed_name(stem, MAX_RUN - 14)}-{date}-{digits}"


def allowed_name(name: str, longest: int = MAX_RUN) -> str:
    """Return the name with ``-`` for each character that a path of the collector does not take."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "-", name)[:longest]
    return re.sub(r"^\.", "-", plain) or "-"


def script_name(program: Sequence[str]) -> str:
    """Return the word that names a run: the script, else the module, else the command."""
    words = " ".join(program[1:]).split()  # a shell's command is one word
    script = next((word for word in words if word.endswith(".py")), None)
    if script is None and "-m" in program[1:-1]:
        return program[program.index("-m", 1) + 1].rpartition(".")[2]
    return script or program[0]


def launch_id(environ: Mapping[str, str], launcher_started: str) -> str:
    """Return an id that is the same for all ranks of one start of a job; random without a launcher.

    ``launcher_started`` differs between two starts of the same elastic job.
    """
    if given := environ.get("GRADCANARY_LAUNCH"):
        return allowed_name(given, MAX_ID - 6)
    if "SLURM_JOB_ID" in environ:
        return _hash(environ["SLURM_JOB_ID"], environ.get("SLURM_RESTART_COUNT", "0"))
    if "TORCHELASTIC_RUN_ID" in environ:
        keys = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
        return _hash(*(environ.get(key, "") for key in keys), launcher_started)
    return secrets.token_hex(8)


def nth_launch(launch: str, number: int) -> str:
    """Return the id of a process's nth launch: ``<id>``, ``<id>.2``, ``<id>.3``."""
    return launch if number == 1 else f"{launch}.{number}"


def start_time(pid: int) -> str:
    """Return the start time of a process in clock ticks since boot; empty if the system has none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[19]
    except (OSError, IndexError, UnicodeError):
        return ""


def rank_and_world_size(environ: Mapping[str, str]) -> tuple[int, int]:
    """Return rank and world size from the environment of a launcher."""
    numbers = (environ.get("RANK", "0"), environ.get("WORLD_SIZE", "1"))
    if not all(number.isascii() and number.isdigit() for number in numbers):
        return 0, 1
    number, world = int(numbers[0]), max(int(numbers[1]), 1)
    return (number, world) if number < world else (0, 1)


def session_id() -> str:
    """Return a new random id. ``random`` is not used: its state belongs to the training."""
    return secrets.token_hex(8)


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def choose_run(settings: Settings, suggested: str | None, default: str | None = None) -> str:
    """Return the name of the run: the given one, the suggested one, or the default of this process.

    The first default of a process is made from the script's name. A ``default`` that is given replaces it.
    """
    global _default_run
    if default is not None:
        _default_run = allowed_name(default)
    given = settings.run if settings.run is not None else suggested
    if given is not None:
        return allowed_name(given)
    _default_run = _default_run or run_name(sys.argv[0] if sys.argv else "", time.strftime("%Y%m%d"))
    return _default_run


def next_launch(run: str) -> str:
    """Return the launch: the launcher's for the first watch of a run, the next one for each later watch."""
    launch, number = _launches.get(run) or (launch_id(os.environ, start_time(os.getppid())), 0)
    _launches[run] = launch, number + 1
    return nth_launch(launch, number + 1)
