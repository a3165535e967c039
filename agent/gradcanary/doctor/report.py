"""Findings of the doctor and their text: a line each, in a job after the rank and its machine. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gradcanary import identity, terminal
from gradcanary.wording import count

_LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),  # torchrun, accelerate, deepspeed
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),  # Open MPI's mpirun
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),  # MPICH's and Intel's
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),  # srun: the second one is not set in a batch script
)

STATE_WIDTH, CHECK_WIDTH = 7, 11
SHOWN_OF_OTHERS = ("collector", "torch", "cuda:")
"""Of a rank over 0 without a fault, these checks are its one line."""


@dataclass(frozen=True)
class Finding:
    """The result of a check. ``found`` has the values, ``do`` a remedy, empty where nothing is to be done.

    A *fault* keeps a training from being seen, or from running in mixed precision. A *note* does not.
    """

    check: str
    state: Literal["ok", "note", "fault"]
    found: str
    do: str = ""


@dataclass(frozen=True)
class Rank:
    """This process in a job; ``local`` is its number on its machine, None if no launcher gives one."""

    number: int
    world: int
    local: int | None
    host: str

    @property
    def prefix(self) -> str:
        """The beginning of each line; empty for a process alone."""
        return "" if self.world == 1 else f"[rank {self.number} on {self.host}] "


def find_rank(environ: Mapping[str, str], host: str) -> Rank:
    """Return the rank that the launcher gives this process; 0 of 1 without one."""
    for rank, size, local in _LAUNCHERS:
        given = {"RANK": environ.get(rank, ""), "WORLD_SIZE": environ.get(size, "")}
        number, world = identity.rank_and_world_size(given)
        if world > 1:
            place = environ.get(local, "")
            return Rank(number, world, int(place) if place.isascii() and place.isdigit() else None, host)
    return Rank(0, 1, None, host)


def finding_text(finding: Finding, width: int | None) -> str:
    """Return the line of a finding, and below it what to do."""
    lines = [f"{finding.state:<{STATE_WIDTH}}{finding.check:<{CHECK_WIDTH}}{finding.found}"]
    indent = " " * (STATE_WIDTH + CHECK_WIDTH)
    if finding.do:
        lines.append(f"{indent}do: {finding.do}")
    return "\n".join(terminal.wrapped(line, width, indent) for line in lines)


def summary(findings: Sequence[Finding]) -> str:
    """Return the last line."""
    faults, notes = (sum(each.state == state for each in findings) for state in ("fault", "note"))
    return f"{count(faults, 'fault') if faults else 'no fault'}, {count(notes, 'note')}, {len(findings)} checks"


def job_text(findings: Sequence[Finding], rank: Rank, width: int | None) -> str:
    """Return what a rank prints: rank 0 everything, another one its faults, or one line if it has none."""
    width = None if width is None else max(width - len(rank.prefix), 20)
    if rank.number == 0:
        lines = [finding_text(each, width) for each in findings] + [summary(findings)]
    else:
        lines = [finding_text(each, width) for each in findings if each.state == "fault"]
        if not lines:
            shown = [each.found for each in findings if each.check.startswith(SHOWN_OF_OTHERS)]
            lines = [terminal.wrapped(f"no fault: {'; '.join(shown)}", width)]
    return "\n".join(rank.prefix + line for line in "\n".join(lines).split("\n"))
