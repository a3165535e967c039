"""``gradcanary attach``, ``detach`` and ``ps``: into a training that runs, and out of it again."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from gradcanary import incident_words, naming, notices, on_call
from gradcanary.attach import preflight, processes, request, target
from gradcanary.attach.request import AlreadyAttachedError, AttachError
from gradcanary.attach.target import Visit
from gradcanary.settings import Settings

DETACH_S = 60.0
HEAD = ("PID", "PYTHON", "RANK", "SINCE", "WATCHED BY", "RUN", "COMMAND")

NOT_ATTACHED = "process {pid} is not attached. gradcanary ps lists those that are"
LATER = """\
process {pid} has not come to a place yet where hooks can be taken off. It was asked, and leaves at its next chance"""
NOBODY = "no training of yours runs here that can be attached to: no Python of yours has loaded torch"


def attach(arguments: argparse.Namespace) -> int:
    """Attach to a process, or to all ranks of its job, and tell what was found there; returns the exit status."""
    preflight.check_system()
    settings = _settings(arguments)
    with ExitStack() as held:
        found, launch = _checked(_job(arguments.pid), held)
        return _join(found, settings, arguments.for_s, launch)


def _checked(pids: list[int], held: ExitStack) -> tuple[list[processes.Process], str | None]:
    """Return those of a job that can be attached to, held for us alone, and the launch of those that are."""
    found, launch = [], None
    for pid in pids:
        try:
            process = preflight.checked(pid)
            held.enter_context(request.held(process))
            found.append(preflight.checked(pid))
        except AlreadyAttachedError as error:  # noqa: PERF203 -- of a few processes
            if len(pids) == 1:
                raise
            launch = launch or error.launch
            _complain(f"gradcanary attach: {error}")
    return found, launch


def _names(first: processes.Process, launch: str | None) -> tuple[str, str | None]:
    """Return the name of the run, where nobody gives one, and of the launch: the same for all of a job.

    The name is the same at each attach. The launch is a new one, but where the environment names one for all machines.
    """
    environ, started = first.environ, time.localtime(time.time() - processes.age_s(first))
    is_named = "GRADCANARY_LAUNCH" in environ or "SLURM_JOB_ID" in environ
    if is_named:
        key = naming.launch_id(environ, "")
    elif "RANK" in environ:
        key = f"{environ.get('MASTER_ADDR')} {environ.get('MASTER_PORT')} {naming.started(first.parent)}"
    else:
        key = f"{first.pid} {first.started}"
    name = naming.run_name(first.script, time.strftime("%Y%m%d", started), key)
    return name, launch or (None if is_named else naming.session_id())


def _join(
    found: list[processes.Process], settings: dict[str, str | None], for_s: float | None, launch: str | None
) -> int:
    """Attach to all of a job: ask each, then wait for all; those that are in stay in, whatever the others do."""
    if not found:
        return 1
    names = _names(found[0], launch)
    visits = [Visit(process, settings, for_s, names, _complain) for process in found]
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
    preflight.check_system()
    found = [process for pid in _job(arguments.pid) if (process := processes.find(pid)) is not None]
    for process in found:
        request.check_home(process.uid)
    paths = [(process, request.socket_of(process.uid, process.pid, process.started)) for process in found]
    attached = [(process, path) for process, path in paths if path.exists()]
    if not attached:
        raise AttachError(NOT_ATTACHED.format(pid=arguments.pid))
    end = time.monotonic() + DETACH_S
    return max([_left(process, path, max(end - time.monotonic(), request.PATIENCE_S)) for process, path in attached])


def _left(process: processes.Process, path: Path, timeout_s: float) -> int:
    """Have one be left; returns 1 where it was not (yet), and says so."""
    try:
        said = request.send_request(path, {"do": "detach"}, timeout_s)
    except TimeoutError:
        _complain(f"gradcanary detach: {LATER.format(pid=process.pid)}")
        return 1
    if said is None:
        _complain(f"gradcanary detach: {NOT_ATTACHED.format(pid=process.pid)}")
        return 1
    processes.wait_for_thread(process.pid, said["thread"])
    _print(f"left process {process.pid}, run {said['detached']}: {said.get('unsent') or 'detached'}")
    return 0


def ps(_arguments: argparse.Namespace) -> int:
    """List the trainings of this user and what watches them; returns the exit status."""
    preflight.check_system()
    every = sorted(processes.all_of(os.geteuid()), key=lambda process: process.pid)
    found = [_watches(process) for process in every]
    rows = [_row(process, watches, every) for process, watches in zip(every, found, strict=True)]
    if not rows:
        _print(NOBODY)
        return 0
    _print("\n".join(target.table([HEAD, *rows])), below="    ")
    for run, url in dict.fromkeys(
        (watch["run"], watch["url"]) for watches in found for watch in watches if watch["url"]
    ):
        _print(f"Page of {run}: {url}")
    return 0


def _watches(process: processes.Process) -> list[dict[str, Any]]:
    """Return the watches of a process: of an attached one what it answers, else the notices of its own."""
    try:
        attached = preflight.said_by(process)
    except TimeoutError:
        attached = {"run": "does not answer", "url": ""}
    return list(notices.read_notices(process.pid)) if attached is None else [{**attached, "by": "attach"}]


def _row(process: processes.Process, watches: list[dict[str, Any]], every: list[processes.Process]) -> tuple[str, ...]:
    rank, age = process.environ.get("RANK", "-"), target.duration(processes.age_s(process))
    watched = [", ".join(dict.fromkeys(watch[key] for watch in watches)) or "-" for key in ("by", "run")]
    forked = f"forked from process {process.parent}" if processes.is_forked(process, every) else None
    return str(process.pid), process.spelled, rank, age, *watched, forked or target.typed(process.command)


def _job(pid: int) -> list[int]:
    """Return the process, or all of the job that it is a rank or the launcher of."""
    process = processes.find(pid)
    ranks = processes.ranks_of(process) if process is not None and process.uid == os.geteuid() else []
    return [rank.pid for rank in ranks] or [pid]


def _settings(arguments: argparse.Namespace) -> dict[str, str | None]:
    """Return what was given here; the rest is the process's own to know. Raises AttachError on what is wrong."""
    typed = {
        "url": arguments.url,
        "run": arguments.name,
        "every": arguments.every,
        "absmax_below": arguments.absmax_below,
        "token": arguments.token,
    }
    try:
        Settings.resolve(os.environ, spelled="--{}", **typed)
    except ValueError as error:
        raise AttachError(str(error).replace("--absmax_below", "--absmax-below")) from error
    return {name: value or os.environ.get(f"GRADCANARY_{name.upper()}") for name, value in typed.items()}


def _print(text: str, below: str = "") -> None:
    print(incident_words.wrapped(target.plain(text), on_call.width(), below), flush=True)  # noqa: T201 -- the command line speaks


def _complain(text: str) -> None:
    print(target.plain(text), file=sys.stderr, flush=True)  # noqa: T201 -- likewise
