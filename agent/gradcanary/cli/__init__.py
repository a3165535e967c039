"""The command line: ``main``, the parser, ``sync`` and ``init``. Commands import their parts when they run."""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gradcanary import __version__
from gradcanary.cli import (
    attach,
    check,
    console,
    doctor,
    endpoints,
    explain,
    export,
    incidents,
    mcp,
    run,
    runs,
    sanity,
    serve,
)
from gradcanary.cli.console import UsageError
from gradcanary.settings import Settings
from gradcanary.training_config import FILE, TrainingConfig

if TYPE_CHECKING:
    from gradcanary.cli.console import Commands

CLOSED_PIPE = 141
"""128 and the number of SIGPIPE, which ends other programs at a closed pipe; Python ignores that signal."""

FULL_DISK = (errno.ENOSPC, errno.EDQUOT)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand and return its exit status: 0 fine, 1 failed, 2 wrong arguments, 141 for a closed pipe."""
    try:
        try:
            return _run_command(argv)
        finally:
            _flush_output()
    except BrokenPipeError:
        _discard_unread_output()
        return CLOSED_PIPE
    except OSError as error:
        if error.errno not in FULL_DISK:
            raise
        with contextlib.suppress(OSError):  # stderr may be on that disk, too
            console.print_error(f"gradcanary: {error}")
        _discard_unread_output()
        return 1


def _run_command(argv: Sequence[str] | None) -> int:
    typed, command = run.split_arguments(sys.argv[1:] if argv is None else argv)
    top, commands = _parsers()
    name = typed[0] if typed else ""
    if name not in commands and not name.startswith("-"):
        missing = f"there is no command {name!r}{_nearest(name, commands)}" if name else "a command is missing"
        top.error(f"{missing}. 'gradcanary --help' lists all")
    arguments, unknown = top.parse_known_args(typed, argparse.Namespace(command=command))
    if unknown:
        hint = ": arguments of the script follow after --" if name == "sanity" and not command else ""
        used = commands.get(name, top)
        hint = hint or _nearest(unknown[0], re.findall(r"--[a-z-]+", used.format_help()))
        used.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    try:
        return int(arguments.run(arguments))
    except UsageError as error:
        console.print_error(str(error))
        return 2
    except KeyboardInterrupt:
        return 130


def _nearest(typed: str, known: Iterable[str]) -> str:
    """Return a hint to the name that was meant; empty if none is similar."""
    import difflib

    similar = difflib.get_close_matches(typed.partition("=")[0], list(known), 1)
    return f". The nearest: {similar[0]}" if similar else ""


def _flush_output() -> None:
    """Write the buffers while an error can still be caught; a closed stream is None."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.flush()


def _discard_unread_output() -> None:
    """Send the rest of the buffers to the null device: Python flushes again at its exit, and prints an error."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except OSError:  # noqa: PERF203 -- of two streams
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)


def parser() -> argparse.ArgumentParser:
    """Return the parser of all subcommands."""
    return _parsers()[0]


def _parsers() -> tuple[argparse.ArgumentParser, Mapping[str, argparse.ArgumentParser]]:
    """Return the parser of all subcommands, and theirs by name."""
    top = argparse.ArgumentParser(prog="gradcanary", description="Gradient health of PyTorch trainings, watched live.")
    top.add_argument("--version", action="version", version=f"gradcanary {__version__}")
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")
    serve.add_up(commands)
    serve.add_token(commands)
    run.add_command(commands)
    sanity.add_command(commands)
    attach.add_commands(commands)
    serve.add_demo(commands)
    doctor.add_command(commands)
    check.add_command(commands)
    _add_sync(commands)
    _add_init(commands)
    explain.add_commands(commands)
    incidents.add_commands(commands)
    endpoints.add_commands(commands)
    runs.add_commands(commands)
    export.add_command(commands)
    mcp.add_command(commands)
    serve.add_backup_and_migrate(commands)
    serve.add_test_rules(commands)
    serve.add_whatif(commands)
    return top, commands.choices


def _add_sync(commands: Commands) -> None:
    command = commands.add_parser("sync", help="send what trainings could not deliver before they ended")
    text = "spools, or folders of them (default: where trainings put them)"
    command.add_argument("places", nargs="*", type=Path, metavar="PATH", help=text)
    command.add_argument("--url", help="address of the collector (default: the one that the training had)")
    command.add_argument("--token", help="for the collector (default: GRADCANARY_TOKEN)")
    command.set_defaults(run=_sync)


def _sync(arguments: argparse.Namespace) -> int:
    try:
        from gradcanary.export import spool, sync

        places = arguments.places or [spool.default_folder(os.environ)]
        paths = sync.find_spools(place for place in places if arguments.places or place.exists())
        settings = Settings.resolve({}, url=arguments.url, token=arguments.token or os.environ.get("GRADCANARY_TOKEN"))
    except (RuntimeError, ValueError) as error:
        raise UsageError(f"gradcanary: {str(error).replace('watch(', '--').replace('=)', '')}") from error
    if not paths:
        console.print_text(f"nothing to send in {', '.join(map(str, places))}")
    return (
        0 if sync.sync_spools(paths, settings.url if arguments.url else None, settings.token, console.print_text) else 1
    )


def _add_init(commands: Commands) -> None:
    command = commands.add_parser("init", help="write the settings of a training, for gradcanary.setup_training()")
    command.add_argument("path", nargs="?", type=Path, default=Path(FILE), metavar="PATH", help="default: %(default)s")
    command.add_argument("--force", action="store_true", help="replace the file if it exists")
    command.set_defaults(run=_init)


def _init(arguments: argparse.Namespace) -> int:
    path: Path = arguments.path
    try:
        with path.open("w" if arguments.force else "x", encoding="utf-8") as file:
            file.write(TrainingConfig().as_yaml())
    except FileExistsError as error:
        raise UsageError(f"gradcanary init: {path} exists: --force replaces it") from error
    except OSError as error:
        if error.errno in FULL_DISK:
            raise
        raise UsageError(f"gradcanary init: {path} cannot be written: {error.strerror}") from error
    console.print_text(
        f"{path} holds the settings, each with its meaning and what is allowed. In the training:\n"
        f"config = gradcanary.TrainingConfig.from_yaml({str(path)!r})\n"
        "optimizer, watch = gradcanary.setup_training(model, config)"
    )
    return 0
