"""``gradcanary attach``, ``detach`` and ``ps``: what may be typed."""

from __future__ import annotations

import argparse
import re
import sys
from typing import TYPE_CHECKING

from gradcanary.settings import DEFAULT_URL

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001 -- argparse has no public name for it

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def add(commands: Commands) -> None:
    """Add the commands to a command line; their ``run`` takes the parsed arguments and returns the exit status."""
    text = "watch a training that runs already, without restarting it"
    command = commands.add_parser("attach", help=text, description=text)
    command.add_argument("pid", type=_pid, metavar="PID", help="of the training; of a job, any rank or its launcher")
    command.add_argument("--url", help=f"of the collector (default: GRADCANARY_URL, else {DEFAULT_URL})")
    command.add_argument("--token", help="for the collector (default: GRADCANARY_TOKEN)")
    command.add_argument("--run", dest="name", metavar="NAME", help="name of the run (default: made of the script's)")
    command.add_argument("--every", metavar="N", help="look at every Nth step: 1, 10, 100, 1000 (default: auto)")
    command.add_argument(
        "--absmax-below", metavar="X", help="alert where a layer's largest gradient is under this, at its word"
    )
    command.add_argument("--for", dest="for_s", type=_time, metavar="TIME", help="leave by itself after 10m, 8h, 3d")
    command.set_defaults(run=_run, action="attach")
    text = "leave a training that was attached to: no hook, thread or open file stays"
    command = commands.add_parser("detach", help=text, description=text)
    command.add_argument("pid", type=_pid, metavar="PID", help="as it was given to attach")
    command.set_defaults(run=_run, action="detach")
    text = "list the trainings of yours that run here"
    command = commands.add_parser("ps", help=text, description=text)
    command.set_defaults(run=_run, action="ps")


def _pid(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(
            f"{text!r} is not the id of a process: gradcanary ps lists trainings with theirs"
        )
    return int(text)


def _time(text: str) -> float:
    found = re.fullmatch(r"(\d+)([smhd])", text)
    if found is None or not int(found[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 45s, 10m, 8h, 3d")
    return float(int(found[1]) * _UNITS[found[2]])


def _run(arguments: argparse.Namespace) -> int:
    import signal

    from gradcanary.attach import actions
    from gradcanary.attach.request import AttachError

    for number in (signal.SIGHUP, signal.SIGTERM):  # what was asked for is withdrawn then, as after Ctrl-C
        if arguments.action == "attach" and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
    try:
        return {"attach": actions.attach, "detach": actions.detach, "ps": actions.ps}[arguments.action](arguments)
    except (AttachError, ValueError) as error:
        print(f"gradcanary {arguments.action}: {error}", file=sys.stderr)  # noqa: T201 -- the command line speaks
        return 1
