"""``gradcanary attach``, ``detach`` and ``ps``; the package attach does the work."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gradcanary.cli import console

if TYPE_CHECKING:
    from gradcanary.cli.console import Commands


def add_commands(commands: Commands) -> None:
    """Add ``attach``, ``detach`` and ``ps``."""
    text = "watch a running training, without a restart"
    command = commands.add_parser("attach", help=text, description=text)
    command.add_argument("pid", type=_pid, metavar="PID", help="of the training; of a job, any rank or its launcher")
    console.add_collector_options(command)
    command.add_argument("--run", dest="name", metavar="NAME", help="name of the run (default: made of the script's)")
    command.add_argument("--every", metavar="N", help="sample every Nth step: 1, 10, 100, 1000 (default: auto)")
    command.add_argument(
        "--absmax-below", metavar="X", help="alert as soon as a parameter's largest gradient is below this"
    )
    command.add_argument("--for", dest="for_s", type=_seconds, metavar="TIME", help="detach after 10m, 8h, 3d")
    command.set_defaults(run=_run, action="attach")
    text = "detach from a training: no hook, thread or open file stays"
    command = commands.add_parser("detach", help=text, description=text)
    command.add_argument("pid", type=_pid, metavar="PID", help="as it was given to attach")
    command.set_defaults(run=_run, action="detach")
    text = "list your trainings on this machine"
    command = commands.add_parser("ps", help=text, description=text)
    command.set_defaults(run=_run, action="ps")


def _pid(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(
            f"{text!r} is not the id of a process: gradcanary ps lists trainings and their ids"
        )
    return int(text)


def _seconds(text: str) -> float:
    return console.parse_time_span(text).total_seconds()


def _run(arguments: argparse.Namespace) -> int:
    import signal

    from gradcanary.attach import actions
    from gradcanary.attach.request import AttachError

    for number in (signal.SIGHUP, signal.SIGTERM):  # they withdraw the request, as Ctrl-C does
        if arguments.action == "attach" and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
    try:
        return {"attach": actions.attach, "detach": actions.detach, "ps": actions.ps}[arguments.action](arguments)
    except (AttachError, ValueError) as error:
        console.print_error(f"gradcanary {arguments.action}: {error}")
        return 1
