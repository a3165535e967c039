"""This machine apart from torch: the process, the folder for unsent numbers and its contents, gdb and ptrace."""

from __future__ import annotations

import contextlib
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from gradcanary import __version__
from gradcanary.doctor.network import call_within
from gradcanary.doctor.report import Finding, Rank
from gradcanary.export import spool
from gradcanary.settings import Settings
from gradcanary.wording import count, format_bytes

FOLDER_S = 10.0
"""For the spool folder, which may be on a network that hangs."""

IN_MEMORY = "while the collector is away, numbers wait in memory (128 MB), and are lost with the process"
SPOOL = "export GRADCANARY_SPOOL=/a/folder/on/a/disk"


def describe_process(rank: Rank, environ: Mapping[str, str]) -> Finding:
    """Return where this runs: machine, rank and job, Python and version."""
    job = environ.get("SLURM_JOB_ID")
    part = f"rank {rank.number} of {rank.world} on {rank.host}" if rank.world > 1 else rank.host
    python = f"Python {platform.python_version()} ({sys.executable}), gradcanary {__version__}"
    return Finding("process", "ok", f"{part}{f', Slurm job {job}' if job else ''}, {python}")


def describe_settings(settings: Settings, environ: Mapping[str, str], url: str | None, token: str | None) -> Finding:
    """Return the address of the collector and the source of each setting; a token is not shown."""
    origin = "--url" if url else "GRADCANARY_URL" if environ.get("GRADCANARY_URL") else "the default"
    secret = "no token" if settings.token is None else f"token of {'--token' if token else 'GRADCANARY_TOKEN'}"
    return Finding("settings", "ok", f"{settings.url} ({origin}), {secret}")


def check_spool(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield if numbers can wait in the folder for a collector that is away, and what waits there now."""
    try:
        folder = spool.default_folder(environ)
    except RuntimeError:
        yield Finding("spool", "note", f"this user has no home for a folder: {IN_MEMORY}", SPOOL)
        return
    try:
        yield call_within(FOLDER_S, lambda: _check_folder(folder))
        yield call_within(FOLDER_S, lambda: _find_waiting(folder))
    except TimeoutError as error:
        yield Finding("spool", "fault", f"{folder} does not answer ({error}): a network disk that hangs?", SPOOL)


def _check_folder(folder: Path) -> Finding:
    try:
        spool.check_folder(folder)
        free = shutil.disk_usage(spool.existing_parent(folder)).free
    except OSError as error:
        return Finding("spool", "fault", f"{folder} takes no file ({error.strerror or error}): {IN_MEMORY}", SPOOL)
    found = f"{folder}, {format_bytes(free)} free"
    if free < spool.LIMIT_BYTES:
        return Finding(
            "spool", "note", f"{found}: a process keeps up to {format_bytes(spool.LIMIT_BYTES)} there", SPOOL
        )
    return Finding("spool", "ok", found)


def _find_waiting(folder: Path) -> Finding:
    waiting = list(spool.find_unsent(folder))
    if not waiting:
        return Finding("waiting", "ok", "no earlier session waits to be sent")
    files = [file.stat() for path in waiting for file in path.glob("*.seg")]
    oldest_s = time.time() - min(path.stat().st_mtime for path in waiting)
    age = f"{oldest_s / 86_400:.0f} days" if oldest_s > 2 * 86_400 else f"{oldest_s / 3600:.1f} h"
    size = format_bytes(sum(each.st_size for each in files))
    sessions = count(len(waiting), "earlier session", ("waits", "wait"))
    return Finding(
        "waiting",
        "note",
        f"{sessions} to be sent, {size}, the oldest of {age} ago",
        f"gradcanary sync {shlex.quote(str(folder))}",
    )


def check_attach() -> Iterator[Finding]:
    """Yield if ``gradcanary attach`` can join processes of this user here; nothing else needs it."""
    if not Path("/proc/self/stat").exists():
        yield Finding("attach", "note", "'gradcanary attach' works on Linux only; 'gradcanary run' works here")
        return
    from gradcanary.attach import injection, preflight, processes  # they need modules that only POSIX has

    gdb = shutil.which("gdb")
    if gdb is None:
        found = "not installed: 'gradcanary attach' needs it for trainings on Python 3.10 to 3.13"
        yield Finding("gdb", "note", found, _line(injection.INSTALL_GDB))
    else:
        yield Finding("gdb", "ok", gdb)
    scope = processes.ptrace_scope()
    if _may_trace():
        yield Finding("ptrace", "ok", f"allowed (ptrace_scope {scope}): 'gradcanary attach' can join your processes")
        return
    remedies = {0: injection.ALLOW_PTRACE, 3: preflight.START_WITH_RUN}
    found = f"not allowed (ptrace_scope {scope}): 'gradcanary attach' cannot join a training here"
    yield Finding("ptrace", "note", found, _line(remedies.get(scope, preflight.LOWER_SCOPE)))


def _may_trace() -> bool:
    """Return True if the system lets us attach to a process of ours that is no child: Yama allows children anyway."""
    from gradcanary.attach import processes

    command = ["sh", "-c", "sleep 10 >/dev/null 2>&1 & echo $!"]  # the shell ends, and leaves it to init
    pid = int(subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout)  # noqa: S603 -- fixed words
    try:
        return processes.may_trace(pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _line(text: str) -> str:
    return " ".join(text.split())
