"""``gradcanary run``: replaces itself by the command, whose Python processes watch themselves as soon as they train.

It leaves environment variables only: the settings of ``watch()``, and a folder on PYTHONPATH whose ``sitecustomize``
calls ``watch()`` after torch is imported. Run name and launch id are made here, once for all processes.
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

from gradcanary import identity
from gradcanary.cli.console import UsageError
from gradcanary.settings import DEFAULT_URL, Settings

if TYPE_CHECKING:
    from gradcanary.cli.console import Commands

FOLDER = Path(__file__).parents[1] / "sitecustomize"

CARRIED = "PYTHON_GRADCANARY"
"""Holds our other variables for a launcher that passes only some on: deepspeed's sends those that begin with PYTHON to
other machines."""

USAGE = "gradcanary run [--url URL] [--run NAME] [--every N] [--] SCRIPT.py ... | -m MODULE ... | COMMAND ..."

PAGE = "gradcanary: the page appears at the first optimizer step: {page}"

_IGNORED_BY_PYTHON = ("SIGPIPE", "SIGXFZ", "SIGXFSZ")


class LaunchError(Exception):
    """The command cannot be started; the message says why."""


def add_command(commands: Commands) -> None:
    """Add ``run``; :func:`split_arguments` has removed the command to start."""
    text = "start a training and watch it, without a change to its code"
    command = commands.add_parser("run", help=text, description=text, usage=_wrapped_usage(), allow_abbrev=False)
    command.add_argument("--url", help=f"of the collector (default: GRADCANARY_URL, else {DEFAULT_URL})")
    command.add_argument(
        "--run", dest="name", metavar="NAME", help="name of the run; a resumed job joins the run of that name"
    )
    command.add_argument("--every", metavar="N", help="sample every Nth step: 1, 10, 100, 1000 (default: auto)")
    command.set_defaults(run=_run)


def _wrapped_usage() -> str:
    """Return the usage in lines of the terminal's width: argparse wraps only the usage that it made itself."""
    width = shutil.get_terminal_size().columns - len("usage: ")
    return textwrap.fill(USAGE, max(width, 20), subsequent_indent=" " * 7, break_on_hyphens=False)


def _run(arguments: argparse.Namespace) -> NoReturn:
    try:
        start_watched(arguments.command, url=arguments.url, run=arguments.name, every=arguments.every)
    except (LaunchError, ValueError) as error:
        raise UsageError(f"gradcanary run: {error}") from error


def split_arguments(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the arguments of gradcanary and, for ``run`` and ``sanity``, the command to start, or its end.

    Options of the command are its own. For ``sanity`` they follow after ``--``.
    """
    arguments = list(argv)
    if arguments[:1] == ["sanity"] and "--" in arguments:
        end = arguments.index("--")
        return arguments[:end], arguments[end + 1 :]
    if arguments[:1] != ["run"]:
        return arguments, []
    end = 1
    while end < len(arguments) and arguments[end].startswith("-") and arguments[end] not in ("-m", "--"):
        end += 1 if "=" in arguments[end] or arguments[end] in ("-h", "--help") else 2
    return arguments[:end], arguments[end:]


def start_watched(command: Sequence[str], *, url: str | None, run: str | None, every: str | None) -> NoReturn:
    """Replace this process by the command; raises LaunchError if it cannot start, ValueError on a wrong setting."""
    program = resolve_program(command)
    environ = environment(os.environ, program, url=url, run=run, every=every)
    with contextlib.suppress(OSError):  # a closed stderr is no reason not to train
        page = f"{environ['GRADCANARY_URL']}/runs/{environ['GRADCANARY_RUN']}"
        print(PAGE.format(page=page), file=sys.stderr, flush=True)  # noqa: T201 -- for the person at the terminal
    for name in _IGNORED_BY_PYTHON:  # from this interpreter's start; the command gets them back
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execve(program[0], program, environ)  # noqa: S606 -- this is the purpose of the command
    except OSError as error:
        raise LaunchError(f"cannot start {program[0]}: {error.strerror}") from error


def resolve_program(command: Sequence[str]) -> list[str]:
    """Return the program and its arguments: this Python for a script or a module, else a command on PATH."""
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


_ENCODED = {
    *("WATCH", "URL", "RUN", "LAUNCH", "EVERY", "BUDGET", "INCLUDE", "EXCLUDE", "ABSMAX_BELOW", "NORM_BELOW", "STEP"),
    *("COLLAPSE_BELOW", "CRASH_MESSAGE", "SPOOL", "CA_FILE", "ENVIRONMENT", "STOP_AFTER"),
}


def environment(
    environ: Mapping[str, str], program: Sequence[str], *, url: str | None, run: str | None, every: str | None
) -> dict[str, str]:
    """Return the environment of the command; raises ValueError on a wrong option or variable."""
    settings = Settings.resolve(environ, spelled="--{}", url=url, run=run, every=every)
    launch = identity.launch_id(environ, identity.start_time(os.getppid()))
    name = settings.run or identity.run_name(identity.script_name(program), time.strftime("%Y%m%d"), launch)
    others = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path != str(FOLDER)]
    found = {
        **environ,
        "GRADCANARY_WATCH": "1",
        "GRADCANARY_URL": settings.url,
        "GRADCANARY_RUN": identity.allowed_name(name),
        "GRADCANARY_LAUNCH": launch,
        "PYTHONPATH": os.pathsep.join([str(FOLDER), *others] if any(others) else [str(FOLDER)]),
    }
    if every is not None:
        found["GRADCANARY_EVERY"] = every
    return {**found, CARRIED: _encoded_settings(found)}


def _encoded_settings(environ: Mapping[str, str]) -> str:
    """Return the settings of a watch as one word for any shell, without secrets: other users see command lines."""
    names = sorted(
        name for name in environ if name.startswith("GRADCANARY_") and name[len("GRADCANARY_") :] in _ENCODED
    )
    return base64.b64encode(b"\0".join(os.fsencode(f"{name}={environ[name]}") for name in names)).decode()
