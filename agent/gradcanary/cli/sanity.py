"""``gradcanary sanity``: a short training, watched, and one page of what is healthy in it."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import secrets
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gradcanary import terminal
from gradcanary.cli import console, run
from gradcanary.cli.console import UsageError

if TYPE_CHECKING:
    from gradcanary.cli.console import Commands
    from gradcanary.sanity.runner import Source

STEPS = 200

USAGE = """\
gradcanary sanity [--steps N] [--json] [--verbose] [--url URL] SCRIPT.py [-- ARGUMENTS ...]
       gradcanary sanity ... -m MODULE [-- ARGUMENTS ...]
       gradcanary sanity ... -- COMMAND ..., as torchrun --nproc-per-node 2 train.py"""

NO_COLLECTOR = """\
gradcanary sanity needs a collector, and {missing} is not installed here. Either install it, in a clone of gradcanary: \
pip install '.[all]'. Or give the address of one that runs: --url http://127.0.0.1:8787"""

NOT_STARTED = "gradcanary sanity: its collector did not start; the reason is above. --url takes one that runs."


def add_command(commands: Commands) -> None:
    """Add ``sanity``; ``run.split_arguments`` has taken what follows after ``--``."""
    text = "run some steps of a training, watched, and print one page of what is healthy"
    status = "exit status: 0 healthy, 1 not, or the training failed or made no step, 2 wrong arguments"
    command = commands.add_parser("sanity", help=text, description=text, usage=USAGE, epilog=status, allow_abbrev=False)
    command.add_argument("script", nargs="?", metavar="SCRIPT.py", help="its arguments follow after --")
    command.add_argument("-m", dest="module", metavar="MODULE", help="a module instead of a script, as python -m")
    text = "optimizer steps, after which the training is ended as by Ctrl-C (default: %(default)s)"
    command.add_argument("--steps", type=_steps, default=STEPS, metavar="N", help=text)
    command.add_argument("--json", action="store_true", help="print the report as JSON")
    command.add_argument("--verbose", action="store_true", help="show the output of the training on stderr")
    text = "send it to a running collector, whose page shows it, instead of an own one that leaves nothing"
    command.add_argument("--url", help=text)
    command.set_defaults(run=_run)


def _steps(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 1_000_000):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of steps from 1 to 1,000,000")
    return int(text)


def _run(arguments: argparse.Namespace) -> int:
    from gradcanary.sanity.page import page
    from gradcanary.sanity.runner import run_watched

    try:
        program = run.resolve_program(command_of(arguments))
        with collector(arguments.url) as source:
            environ = training_environment(program, source)
            report = run_watched(program, arguments.steps, source, environ=environ, verbose=arguments.verbose)
    except (run.LaunchError, ValueError) as error:
        raise UsageError(f"gradcanary sanity: {error}") from error
    if arguments.json:
        console.print_json(report.as_json())
    else:
        console.print_unwrapped(page(report, terminal.width()))
        if arguments.url:
            console.print_unwrapped(f"{source.url}/runs/{report.run}")
    return 0 if report.is_healthy else 1


def training_environment(program: Sequence[str], source: Source) -> dict[str, str]:
    """Return the environment of a training with a run of its own: it joins none that has the name of a real one."""
    inherited = {name: value for name, value in os.environ.items() if name != "GRADCANARY_RUN"}
    inherited["GRADCANARY_LAUNCH"] = secrets.token_hex(8)
    return run.environment(inherited, program, url=source.url, run=None, every="1")


def command_of(arguments: argparse.Namespace) -> list[str]:
    """Return the command to run, as ``gradcanary run`` takes it; raises UsageError if there is none."""
    if arguments.script is None and arguments.module is None and not arguments.command:
        raise UsageError(f"gradcanary sanity: nothing to run. Usage: {USAGE}")
    if arguments.module is not None:
        given = [arguments.script] if arguments.script else []
        return ["-m", arguments.module, *given, *arguments.command]
    return [*([arguments.script] if arguments.script else []), *arguments.command]


@contextlib.contextmanager
def collector(url: str | None) -> Iterator[Source]:
    """Give the collector of an address, else an own one; raises UsageError if none can be had."""
    from gradcanary.demo.processes import NotListeningError
    from gradcanary.sanity.runner import Source, own_collector

    if url is not None:
        yield Source(url, os.environ.get("GRADCANARY_TOKEN"))
        return
    missing = [name for name in ("fastapi", "dash") if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(NO_COLLECTOR.format(missing=missing[0]))
    try:
        with own_collector() as source:
            yield source
    except NotListeningError as error:
        raise UsageError(NOT_STARTED) from error
