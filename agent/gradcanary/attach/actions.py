"""``gradcanary attach``, ``detach`` and ``ps``: into a training that runs, and out of it again."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable

from gradcanary.attach import control, gate, processes, refusals, words
from gradcanary.attach.errors import AttachError
from gradcanary.attach.visit import Visit
from gradcanary.settings import Settings

DETACH_S = 60.0

NOT_ATTACHED = "process {pid} is not attached. gradcanary ps lists those that are"
LATER = """\
process {pid} has not come to a place yet where hooks can be taken off. It was asked, and leaves at its next chance"""
NOBODY = "no training of yours runs here that can be attached to: no Python of yours has loaded torch"


def attach(arguments: argparse.Namespace) -> int:
    """Attach to a process, or to all ranks of its job, and tell what was found there; returns the exit status."""
    refusals.check_system()
    settings = _settings(arguments)
    return _join([refusals.checked(pid) for pid in _job(arguments.pid)], settings, arguments.for_s)


def _join(found: list[processes.Process], settings: dict[str, str | None], for_s: float | None) -> int:
    """Attach to all of a job: ask each, then wait for all; those that are in stay in, whatever the others do."""
    visits = [Visit(process, settings, for_s, _complain) for process in found]
    try:
        for step in (Visit.ask, Visit.wait, _tell):
            for visit in [each for each in visits if not each.is_over]:
                _take(step, visit)
    except KeyboardInterrupt:
        for visit in visits:
            _take(Visit.withdraw, visit)
        raise
    finally:
        for visit in visits:
            visit.end()
    return 1 if any(visit.is_over for visit in visits) else 0


def _take(step: Callable[[Visit], None], visit: Visit) -> None:
    try:
        step(visit)
    except AttachError as error:
        visit.is_over = True
        _complain(f"gradcanary attach: {error}")


def _tell(visit: Visit) -> None:
    _print(visit.title())
    _print("\n".join(visit.found()))


def detach(arguments: argparse.Namespace) -> int:
    """Have a process, or all ranks of its job, be left; returns the exit status."""
    refusals.check_system()
    found = [process for pid in _job(arguments.pid) if (process := processes.find(pid)) is not None]
    paths = [(process, gate.socket_of(process.uid, process.pid, process.started)) for process in found]
    attached = [(process, path) for process, path in paths if path.exists()]
    if not attached:
        raise AttachError(NOT_ATTACHED.format(pid=arguments.pid))
    for process, path in attached:
        try:
            said = control.ask(path, {"do": "detach"}, DETACH_S)
        except TimeoutError as error:
            raise AttachError(LATER.format(pid=process.pid)) from error
        if said is None:
            raise AttachError(NOT_ATTACHED.format(pid=process.pid))
        processes.wait_for_thread(process.pid, said["thread"])
        _print(f"left process {process.pid}, run {said['detached']} is finished")
    return 0


def ps(_arguments: argparse.Namespace) -> int:
    """List what can be attached to; returns the exit status."""
    refusals.check_system()
    every = sorted(processes.all_of(os.geteuid()), key=lambda process: process.pid)
    rows = [_row(process, every) for process in every]
    if not rows:
        _print(NOBODY)
        return 0
    _print("\n".join(words.table([("PID", "PYTHON", "RANK", "SINCE", "ATTACHED", "COMMAND"), *rows])))
    return 0


def _row(process: processes.Process, every: list[processes.Process]) -> tuple[str, ...]:
    try:
        said = refusals.said_by(process)
    except TimeoutError:
        said = {"run": "does not answer"}
    rank, age = process.environ.get("RANK", "-"), words.duration(processes.age_s(process))
    where = "-" if said is None else said["run"]
    forked = f"forked from process {process.parent}" if processes.is_forked(process, every) else None
    return str(process.pid), process.spelled, rank, age, where, forked or words.typed(process.command)


def _job(pid: int) -> list[int]:
    """Return the process, or all of the job that it is a rank or the launcher of."""
    process = processes.find(pid)
    ranks = processes.ranks_of(process) if process is not None and process.uid == os.geteuid() else []
    return [rank.pid for rank in ranks] or [pid]


def _settings(arguments: argparse.Namespace) -> dict[str, str | None]:
    """Return what was given here; the rest is the process's own to know. Raises ValueError on what is wrong."""
    typed = {
        "url": arguments.url,
        "run": arguments.name,
        "every": arguments.every,
        "absmax_below": arguments.absmax_below,
        "token": None,
    }
    Settings.resolve(os.environ, spelled="--{}", **typed)
    return {name: value or os.environ.get(f"GRADCANARY_{name.upper()}") for name, value in typed.items()}


def _print(text: str) -> None:
    print(text, flush=True)  # noqa: T201 -- the command line speaks


def _complain(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201 -- likewise
