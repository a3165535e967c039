"""``gradcanary attach``, ``detach`` and ``ps``: each prints, and returns the exit status."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from gradcanary import identity, notices, terminal
from gradcanary.attach import preflight, processes, request, target
from gradcanary.attach.processes import Process
from gradcanary.attach.request import AlreadyAttachedError, AttachError
from gradcanary.attach.target import Target
from gradcanary.settings import UNPRINTABLE, Settings

DETACH_S = 60.0
HEAD = ("PID", "PYTHON", "RANK", "SINCE", "WATCHED BY", "RUN", "COMMAND")

NOT_ATTACHED = "process {pid} is not attached. gradcanary ps lists those that are"
LATER = """\
process {pid} has not reached a moment yet in which hooks can be removed. It detaches at the next one"""
NO_TRAINING = "no training of yours runs here that can be attached to: no Python of yours has loaded torch"


# -- attach ----------------------------------------------------------------------------------------------------------


def attach(arguments: argparse.Namespace) -> int:
    """Attach to a process, or to all ranks of its job, and print what they train."""
    preflight.check_system()
    settings = _settings(arguments)
    with ExitStack() as locks:
        found, launch = _lock_attachable(_job(arguments.pid), locks)
        return _attach_all(found, settings, arguments.for_s, launch) if found else 1


def _lock_attachable(pids: list[int], locks: ExitStack) -> tuple[list[Process], str | None]:
    """Return the processes that can be attached to, locked, and the launch of those that are attached already."""
    found, launch = [], None
    for pid in pids:
        try:
            locks.enter_context(request.locked(preflight.attachable(pid)))
            found.append(preflight.attachable(pid))
        except AlreadyAttachedError as error:  # noqa: PERF203 -- of a few processes
            if len(pids) == 1:
                raise
            launch = launch or error.launch
            _print_error(f"gradcanary attach: {error}")
    return found, launch


def _attach_all(found: list[Process], settings: dict[str, str | None], for_s: float | None, launch: str | None) -> int:
    """Attach to all processes of a job: inject all, then wait for each. One that fails changes nothing for others."""
    default_run, launch = _names(found[0], launch)
    targets = [
        Target(process, settings, for_s, default_run=default_run, launch=launch, show=_print_error) for process in found
    ]
    try:
        for step in (Target.inject, Target.wait, _print_description):
            for each in targets:
                if not each.has_failed:
                    _run_step(step, each)
    except KeyboardInterrupt:
        for each in targets:
            _run_step(Target.withdraw, each)
        raise
    finally:
        for each in targets:
            each.close()
    return 1 if any(each.has_failed for each in targets) else 0


def _run_step(step: Callable[[Target], None], each: Target) -> None:
    try:
        step(each)
    except AttachError as error:
        each.has_failed = True
        _print_error(f"gradcanary attach: {error}")


def _print_description(each: Target) -> None:
    _print(each.title())
    _print("\n".join(each.describe()))


def _names(first: Process, launch: str | None) -> tuple[str, str | None]:
    """Return the default name of the run and the launch, both the same for all of a job.

    Each attach gives the same name. The launch is new, unless the environment names one for all machines.
    """
    environ, started = first.environ, time.localtime(time.time() - processes.age_s(first))
    is_named = "GRADCANARY_LAUNCH" in environ or "SLURM_JOB_ID" in environ
    if is_named:
        key = identity.launch_id(environ, "")
    elif "RANK" in environ:
        key = f"{environ.get('MASTER_ADDR')} {environ.get('MASTER_PORT')} {identity.start_time(first.parent)}"
    else:
        key = f"{first.pid} {first.started}"
    name = identity.run_name(first.script, time.strftime("%Y%m%d", started), key)
    return name, launch or (None if is_named else identity.session_id())


def _settings(arguments: argparse.Namespace) -> dict[str, str | None]:
    """Return the settings of this command line and environment; the process knows the rest.

    Raises AttachError on a wrong one.
    """
    given = {
        "url": arguments.url,
        "run": arguments.name,
        "every": arguments.every,
        "absmax_below": arguments.absmax_below,
        "token": arguments.token,
    }
    try:
        Settings.resolve(os.environ, spelled="--{}", **given)
    except ValueError as error:
        raise AttachError(str(error).replace("--absmax_below", "--absmax-below")) from error
    return {name: value or os.environ.get(f"GRADCANARY_{name.upper()}") for name, value in given.items()}


# -- detach ----------------------------------------------------------------------------------------------------------


def detach(arguments: argparse.Namespace) -> int:
    """Detach from a process, or from all ranks of its job."""
    preflight.check_system()
    found = [process for pid in _job(arguments.pid) if (process := processes.find(pid)) is not None]
    for process in found:
        request.check_user_folder(process.uid)
    attached = [process for process in found if request.socket_of(process).exists()]
    if not attached:
        raise AttachError(NOT_ATTACHED.format(pid=arguments.pid))
    end = time.monotonic() + DETACH_S
    return max([_detach_one(process, max(end - time.monotonic(), request.PATIENCE_S)) for process in attached])


def _detach_one(process: Process, timeout_s: float) -> int:
    """Detach from one process; return 1 and print why if it is still attached."""
    try:
        answer = request.send_request(request.socket_of(process), "detach", timeout_s)
    except TimeoutError:
        _print_error(f"gradcanary detach: {LATER.format(pid=process.pid)}")
        return 1
    if answer is None:
        _print_error(f"gradcanary detach: {NOT_ATTACHED.format(pid=process.pid)}")
        return 1
    processes.wait_for_thread(process.pid, answer["thread"])
    _print(f"left process {process.pid}, run {answer['detached']}: {answer.get('unsent') or 'detached'}")
    return 0


# -- ps --------------------------------------------------------------------------------------------------------------


def ps(_arguments: argparse.Namespace) -> int:
    """List the trainings of this user, and what watches them."""
    preflight.check_system()
    every = sorted(processes.find_all(os.geteuid()), key=lambda process: process.pid)
    watches = [_watches(process) for process in every]
    rows = [_row(process, each, every) for process, each in zip(every, watches, strict=True)]
    if not rows:
        _print(NO_TRAINING)
        return 0
    _print(terminal.table(HEAD, rows), below="    ")
    pages = dict.fromkeys((watch["run"], watch["url"]) for each in watches for watch in each if watch["url"])
    for run, url in pages:
        _print(f"Page of {run}: {url}")
    return 0


def _watches(process: Process) -> list[dict[str, Any]]:
    """Return the watches of a process: the status of an attached one, else the notices of its own watches."""
    try:
        status = request.read_status(process)
    except TimeoutError:
        status = {"run": "does not answer", "url": ""}
    return list(notices.read_notices(process.pid)) if status is None else [{**status, "by": "attach"}]


def _row(process: Process, watches: list[dict[str, Any]], every: list[Process]) -> tuple[str, ...]:
    rank, age = process.environ.get("RANK", "-"), target.format_duration(processes.age_s(process))
    watched = [", ".join(dict.fromkeys(watch[key] for watch in watches)) or "-" for key in ("by", "run")]
    forked = f"forked from process {process.parent}" if processes.is_forked(process, every) else None
    return str(process.pid), process.python_version, rank, age, *watched, forked or process.command_line


# -- all three -------------------------------------------------------------------------------------------------------


def _job(pid: int) -> list[int]:
    """Return all processes of a job, given the launcher or any rank; else the process alone."""
    process = processes.find(pid)
    ranks = processes.ranks_of(process) if process is not None and process.uid == os.geteuid() else []
    return [rank.pid for rank in ranks] or [pid]


def _print(text: str, below: str = "") -> None:
    print(terminal.wrapped(_printable(text), terminal.width(), below), flush=True)  # noqa: T201 -- the output of the command


def _print_error(text: str) -> None:
    print(_printable(text), file=sys.stderr, flush=True)  # noqa: T201 -- likewise


def _printable(text: str) -> str:
    """Remove control characters: names of layers and runs come from another process."""
    return "\n".join(UNPRINTABLE.sub(" ", line) for line in text.split("\n"))
