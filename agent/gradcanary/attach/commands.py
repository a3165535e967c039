"""``gradcanary attach``, ``detach`` and ``ps``: into a training that runs, and out of it again."""

from __future__ import annotations

import argparse
import os
import re
import sys
from typing import TYPE_CHECKING

from gradcanary.attach import control, gate, processes, refusals, words
from gradcanary.attach.errors import AttachError
from gradcanary.attach.visit import Visit
from gradcanary.settings import DEFAULT_URL, Settings

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001 -- argparse has no public name for it

DETACH_S = 60.0
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

NOT_ATTACHED = "process {pid} is not attached. gradcanary ps lists those that are"
LATER = """\
process {pid} has not come to a place yet where hooks can be taken off. It was asked, and leaves at its next chance"""
NOBODY = "no training of yours runs here that can be attached to: no Python of yours has loaded torch"


def add(commands: Commands) -> None:
    """Add the commands to a command line; their ``run`` takes the parsed arguments and returns the exit status."""
    text = "watch a training that runs already, without restarting it"
    command = commands.add_parser("attach", help=text, description=text)
    command.add_argument("pid", type=int, metavar="PID", help="of the training; of a job, any rank or its launcher")
    command.add_argument("--url", help=f"of the collector (default: GRADCANARY_URL, else {DEFAULT_URL})")
    command.add_argument("--run", dest="name", metavar="NAME", help="name of the run (default: made of the script's)")
    command.add_argument("--every", metavar="N", help="look at every Nth step: 1, 10, 100, 1000 (default: auto)")
    command.add_argument(
        "--absmax-below", metavar="X", help="alert where a layer's largest gradient is under this, at its word"
    )
    command.add_argument("--for", dest="for_s", type=_time, metavar="TIME", help="leave by itself after 10m, 8h, 3d")
    command.set_defaults(run=_attach)
    text = "leave a training that was attached to: no hook, thread or open file stays"
    command = commands.add_parser("detach", help=text, description=text)
    command.add_argument("pid", type=int, metavar="PID", help="as it was given to attach")
    command.set_defaults(run=_detach)
    text = "list the trainings of yours that run here"
    command = commands.add_parser("ps", help=text, description=text)
    command.set_defaults(run=_ps)


def _attach(arguments: argparse.Namespace) -> int:
    try:
        settings = _settings(arguments)
        return _join([refusals.checked(pid) for pid in _job(arguments.pid)], settings, arguments.for_s)
    except (AttachError, ValueError) as error:
        _complain(f"gradcanary attach: {error}")
        return 1


def _join(found: list[processes.Process], settings: dict[str, str | None], for_s: float | None) -> int:
    """Attach to all of a job: ask each, then wait for all; those that are in stay in, whatever the others do."""
    visits, failures = [Visit(process, settings, for_s, _complain) for process in found], []
    try:
        for step in (Visit.ask, Visit.wait):
            for visit in [each for each in visits if not each.is_over]:
                try:
                    step(visit)
                except AttachError as error:
                    failures.append(str(error))
        for visit in visits:
            if visit.is_in:
                _print(visit.title())
                _print("\n".join(visit.found()))
    finally:
        for visit in visits:
            visit.end()
    for failure in failures:
        _complain(f"gradcanary attach: {failure}")
    return 1 if failures else 0


def _detach(arguments: argparse.Namespace) -> int:
    found = [process for pid in _job(arguments.pid) if (process := processes.find(pid)) is not None]
    paths = [(process, gate.socket_of(process.uid, process.pid, process.started)) for process in found]
    attached = [(process, path) for process, path in paths if control.ask(path, {"do": "tell"}) is not None]
    if not attached:
        _complain("gradcanary detach: " + NOT_ATTACHED.format(pid=arguments.pid))
        return 1
    for process, path in attached:
        try:
            said = control.ask(path, {"do": "detach"}, DETACH_S)
        except TimeoutError:
            _complain("gradcanary detach: " + LATER.format(pid=process.pid))
            return 1
        run = "" if said is None else f", run {said['detached']} is finished"
        _print(f"left process {process.pid}{run}")
    return 0


def _ps(_arguments: argparse.Namespace) -> int:
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


def _time(text: str) -> float:
    found = re.fullmatch(r"(\d+)([smhd])", text)
    if found is None or not int(found[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 45s, 10m, 8h, 3d")
    return float(int(found[1]) * _UNITS[found[2]])


def _print(text: str) -> None:
    print(text, flush=True)  # noqa: T201 -- the command line speaks


def _complain(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201 -- likewise
