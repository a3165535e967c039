"""Findings of the doctor and their text: a line each, in a job after the rank and its machine. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gradcanary import identity, terminal
from gradcanary.wording import count

_LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),  # torchrun, accelerate, deepspeed
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),  # mpiexec of MPICH and Intel
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),  # srun; not set by sbatch
)
"""The variables of a launcher: rank, number of ranks, rank on its machine, ranks on its machine."""

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
    """This process in a job; ``local`` is its number on its machine, None if it is the only one there."""

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
    for rank, size, local, local_size in _LAUNCHERS:
        number, world = _read_pair(environ, rank, size)
        if world > 1:
            place, others = _read_pair(environ, local, local_size)
            return Rank(number, world, place if others > 1 else None, host)
    return Rank(0, 1, None, host)


def _read_pair(environ: Mapping[str, str], rank: str, size: str) -> tuple[int, int]:
    count_of_first_node = environ.get(size, "").partition("(")[0].partition(",")[0]  # Slurm: 8(x2),4
    return identity.rank_and_world_size({"RANK": environ.get(rank, ""), "WORLD_SIZE": count_of_first_node})


def finding_text(finding: Finding, width: int | None) -> str:
    """Return the line of a finding, and below it what to do, which is not wrapped: a command in it can be copied."""
    indent = " " * (STATE_WIDTH + CHECK_WIDTH)
    line = f"{finding.state:<{STATE_WIDTH}}{finding.check:<{CHECK_WIDTH}}{finding.found}"
    return terminal.wrapped(line, width, indent) + (f"\n{indent}do: {finding.do}" if finding.do else "")


def summary(findings: Sequence[Finding]) -> str:
    """Return the last line."""
    faults, notes = (sum(each.state == state for each in findings) for state in ("fault", "note"))
    return f"{count(faults, 'fault') if faults else 'no fault'}, {count(notes, 'note')}, {len(findings)} checks"


def job_text(findings: Sequence[Finding], rank: Rank, width: int | None) -> str:
    """Return what a rank prints: rank 0 everything, another one its faults, or one line if it has none.

    What to do is said once for each machine.
    """
    width = None if width is None else max(width - len(rank.prefix), 20)
    if rank.number == 0:
        lines = [finding_text(each, width) for each in findings] + [summary(findings)]
    else:
        faults = [
            each if rank.local in (None, 0) else replace(each, do="") for each in findings if each.state == "fault"
        ]
        lines = [finding_text(each, width) for each in faults]
        if not lines:
            shown = [each.found for each in findings if each.check.startswith(SHOWN_OF_OTHERS)]
            lines = [terminal.wrapped(f"no fault: {'; '.join(shown)}", width)]
    return "\n".join(rank.prefix + line for line in "\n".join(lines).split("\n"))
