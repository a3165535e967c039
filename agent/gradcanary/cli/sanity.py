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
    from gradcanary.sanity.report import Report
    from gradcanary.sanity.runner import Source
    from gradcanary.sanity.ways import Kind

STEPS = 200

EVERY = "10"
"""Each tenth step is sampled where step times are compared: most steps have no measurement in their time."""

KINDS: tuple[Kind, ...] = ("compare", "accumulate", "checkpointing", "stress")

WITHOUT_AND_WITH = "0,1"
"""What ``--checkpointing`` means without a value."""

USAGE = """\
gradcanary sanity [OPTIONS] SCRIPT.py [-- ARGUMENTS]
       gradcanary sanity [OPTIONS] -m MODULE [-- ARGUMENTS]
       gradcanary sanity [OPTIONS] -- COMMAND ..."""
"""Such as ``torchrun --nproc-per-node 2 train.py``; no line is wider than the narrowest terminal of the tests."""

NO_COLLECTOR = """\
gradcanary sanity needs a collector, and {missing} is not installed here. Either install it, in a clone of gradcanary: \
pip install '.[all]'. Or give the address of one that runs: --url http://127.0.0.1:8787"""

NOT_STARTED = "gradcanary sanity: its collector did not start: {reason}. --url takes one that runs."


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
    _add_ways(command)
    command.set_defaults(run=_run)


def _add_ways(command: argparse.ArgumentParser) -> None:
    """Add the options that run the training in several ways; their names are those of ``sanity.ways``."""
    text = (
        "one of these, each for a script that takes what differs where its arguments have braces: docs/how-to/sanity.md"
    )
    group = command.add_argument_group("several ways of the training, side by side", text)
    ways = group.add_mutually_exclusive_group()
    text = "the same in several dtypes, which the script takes at {precision}: fp32,bf16,fp16"
    ways.add_argument("--compare", metavar="A,B,...", help=text)
    text = "numbers of micro-steps, at {accumulate}: 1,4,16"
    ways.add_argument("--accumulate", metavar="K,K,...", help=text)
    text = "without and with activation checkpointing, 0 and 1 at {checkpointing}; or =off=,on=--some-flag"
    ways.add_argument("--checkpointing", nargs="?", const=WITHOUT_AND_WITH, metavar="A,B", help=text)
    text = "values of an argument, at {NAME}: the first step at which gradients leave the range"
    ways.add_argument("--stress", metavar="NAME=V,V,...", help=text)
    text = "examples of a step: with --accumulate, the script takes N divided by the micro-steps at {batch}"
    group.add_argument("--effective-batch", type=_steps, metavar="N", help=text)


def _steps(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 1_000_000):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of steps from 1 to 1,000,000")
    return int(text)


def _run(arguments: argparse.Namespace) -> int:
    kind = next((each for each in KINDS if getattr(arguments, each) is not None), None)
    if arguments.effective_batch is not None and kind != "accumulate":
        raise UsageError("gradcanary sanity: --effective-batch belongs to --accumulate")
    try:
        return _run_once(arguments) if kind is None else _run_ways(arguments, kind)
    except (run.LaunchError, ValueError) as error:
        raise UsageError(f"gradcanary sanity: {error}") from error
    except KeyboardInterrupt:
        console.print_error("gradcanary sanity: interrupted before the steps were made. The training was ended, too.")
        raise


def _run_once(arguments: argparse.Namespace) -> int:
    from gradcanary.sanity.page import page

    with collector(arguments.url) as source:
        report = _run_watched(command_of(arguments), arguments, source, every="1")
    if arguments.json:
        console.print_json(report.as_json())
    else:
        console.print_unwrapped(page(report, terminal.width()))
        if arguments.url:
            console.print_unwrapped(f"{source.url}/runs/{report.run}")
    return 0 if report.is_healthy else 1


def _run_ways(arguments: argparse.Namespace, kind: Kind) -> int:
    """Run the ways of an option one after another, so that none takes time from another."""
    from gradcanary.sanity.ways import plan
    from gradcanary.sanity.ways_page import page
    from gradcanary.sanity.ways_report import judge_ways

    experiment = plan(kind, getattr(arguments, kind), command_of(arguments), effective_batch=arguments.effective_batch)
    reports = []
    with collector(arguments.url) as source:
        for way in experiment.ways:
            console.print_error(f"gradcanary sanity: {experiment.placeholder} {way.name} ...")
            reports.append(_run_watched(way.command, arguments, source, every="1" if kind == "stress" else EVERY))
    report = judge_ways(experiment, reports)
    if arguments.json:
        console.print_json(report.as_json())
    else:
        console.print_unwrapped(page(report, terminal.width()))
    return 0 if report.is_healthy else 1


def _run_watched(command: Sequence[str], arguments: argparse.Namespace, source: Source, *, every: str) -> Report:
    from gradcanary.sanity.runner import run_watched

    program = run.resolve_program(command)
    environ = training_environment(program, source, every)
    return run_watched(program, arguments.steps, source, environ=environ, verbose=arguments.verbose)


def training_environment(program: Sequence[str], source: Source, every: str = "1") -> dict[str, str]:
    """Return the environment of a training with a run of its own: it joins none that has the name of a real one."""
    inherited = {name: value for name, value in os.environ.items() if name != "GRADCANARY_RUN"}
    inherited["GRADCANARY_LAUNCH"] = secrets.token_hex(8)
    return run.environment(inherited, program, url=source.url, run=None, every=every)


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
        raise UsageError(NOT_STARTED.format(reason=error)) from error
