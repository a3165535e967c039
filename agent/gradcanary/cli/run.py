"""``gradcanary run``: becomes the command, whose Python processes watch themselves once they train.

All that it leaves behind are environment variables: what ``watch()`` reads, and a folder on PYTHONPATH whose
``sitecustomize`` calls it where torch is imported. Run name and launch id are made here, once, so that all processes
of a job share them without talking.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import os
import shutil
import signal
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from gradcanary import naming
from gradcanary.cli.console import UsageError
from gradcanary.settings import DEFAULT_URL, Settings

if TYPE_CHECKING:
    from gradcanary.cli.console import Commands

FOLDER = Path(__file__).parents[1] / "sitecustomize"

CARRIED = "PYTHON_GRADCANARY"
"""Holds our other variables for launchers that pass on only some: over several machines deepspeed's does so with all
that begin with PYTHON."""

USAGE = "gradcanary run [--url URL] [--run NAME] [--every N] [--] SCRIPT.py ... | -m MODULE ... | COMMAND ..."

_IGNORED_BY_PYTHON = ("SIGPIPE", "SIGXFZ", "SIGXFSZ")


class LaunchError(Exception):
    """The command cannot be started; the message says why."""


def add_command(commands: Commands) -> None:
    """Add ``run`` to the command line; ``split`` has taken its command off before."""
    text = "start a training under watch, without a change to its code"
    command = commands.add_parser("run", help=text, description=text, usage=_wrapped_usage(), allow_abbrev=False)
    command.add_argument("--url", help=f"of the collector (default: GRADCANARY_URL, else {DEFAULT_URL})")
    command.add_argument("--run", dest="name", metavar="NAME", help="name of the run; a resumed job joins it by this")
    command.add_argument("--every", metavar="N", help="look at every Nth step: 1, 10, 100, 1000 (default: auto)")
    command.set_defaults(run=_run)


def _wrapped_usage() -> str:
    """Return the usage in lines of the terminal's width: argparse wraps only the usage that it made itself."""
    width = shutil.get_terminal_size().columns - len("usage: ")
    return textwrap.fill(USAGE, max(width, 20), subsequent_indent=" " * 7, break_on_hyphens=False)


def _run(arguments: argparse.Namespace) -> NoReturn:
    try:
        start(arguments.command, url=arguments.url, run=arguments.name, every=arguments.every)
    except (LaunchError, ValueError) as error:
        raise UsageError(f"gradcanary run: {error}") from error


def split(typed: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return what is meant for gradcanary and, of ``run``, the command behind it, whose options are its own."""
    arguments = list(typed)
    if arguments[:1] != ["run"]:
        return arguments, []
    end = 1
    while end < len(arguments) and arguments[end].startswith("-") and arguments[end] not in ("-m", "--"):
        end += 1 if "=" in arguments[end] or arguments[end] in ("-h", "--help") else 2
    return arguments[:end], arguments[end:]


def start(command: Sequence[str], *, url: str | None, run: str | None, every: str | None) -> NoReturn:
    """Become the command, watched; raises LaunchError if it cannot be started, ValueError on a wrong setting."""
    program = resolved(command)
    environ = environment(os.environ, program, url=url, run=run, every=every)
    with contextlib.suppress(OSError):
        page = f"{environ['GRADCANARY_URL']}/runs/{environ['GRADCANARY_RUN']}"
        print(f"gradcanary: {page}", file=sys.stderr, flush=True)  # noqa: T201 -- spoken to the person at the terminal
    for name in _IGNORED_BY_PYTHON:  # since this interpreter began; the command shall find them as we did
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execve(program[0], program, environ)  # noqa: S606 -- to start what was typed is what this is for
    except OSError as error:
        raise LaunchError(f"cannot start {program[0]}: {error.strerror}") from error


def resolved(command: Sequence[str]) -> list[str]:
    """Return the program and its arguments: a script or a module is for this Python, the rest is looked up on PATH."""
    words = list(command[1:] if command[:1] == ["--"] else command)
    if not words or words == ["-m"]:
        raise LaunchError(f"nothing to run. Usage: {USAGE}")
    if words[0] == "-m":
        return [sys.executable, *words]
    if words[0].endswith(".py"):
        if not Path(words[0]).is_file():
            raise LaunchError(f"there is no script {words[0]} in {Path.cwd()}")
        return [sys.executable, *words]
    program = shutil.which(words[0])
    if program is None:
        raise LaunchError(f"there is no command {words[0]} on PATH")
    return [program, *words[1:]]


_READ = {
    *("WATCH", "URL", "RUN", "LAUNCH", "EVERY", "BUDGET", "INCLUDE", "EXCLUDE", "ABSMAX_BELOW", "NORM_BELOW", "STEP"),
    *("SPOOL", "CA_FILE"),
}


def environment(
    environ: Mapping[str, str], program: Sequence[str], *, url: str | None, run: str | None, every: str | None
) -> dict[str, str]:
    """Return the variables of the command; raises ValueError on a wrong setting, typed or in the environment."""
    settings = Settings.resolve(environ, spelled="--{}", url=url, run=run, every=every)
    launch = naming.launch_id(environ, naming.started(os.getppid()))
    name = settings.run or naming.run_name(naming.subject(program), time.strftime("%Y%m%d"), launch)
    others = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path != str(FOLDER)]
    found = {
        **environ,
        "GRADCANARY_WATCH": "1",
        "GRADCANARY_URL": settings.url,
        "GRADCANARY_RUN": naming.allowed(name),
        "GRADCANARY_LAUNCH": launch,
        "PYTHONPATH": os.pathsep.join([str(FOLDER), *others] if any(others) else [str(FOLDER)]),
    }
    if every is not None:
        found["GRADCANARY_EVERY"] = every
    return {**found, CARRIED: _carried(found)}


def _carried(environ: Mapping[str, str]) -> str:
    """Return what a watch reads as one word for any shell; secrets, the agent's or a collector's, are for no
    command line."""
    names = sorted(name for name in environ if name.startswith("GRADCANARY_") and name[len("GRADCANARY_") :] in _READ)
    return base64.b64encode(b"\0".join(os.fsencode(f"{name}={environ[name]}") for name in names)).decode()
