"""The commands for a collector's store, on its machine: ``gradcanary backup`` and ``migrate``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001 -- argparse has no public name for it


def add(commands: Commands) -> None:
    """Add the commands to a command line; their ``run`` takes the parsed arguments and returns the exit status."""
    text = "copy the SQLite store to a file, while the collector runs; for PostgreSQL, tell how"
    backup = _add(commands, "backup", text, _backup)
    backup.add_argument("file", type=Path, metavar="FILE", help="a new one, in a folder that is there")
    migrate = _add(
        commands, "migrate", "bring a store's tables to this version's shape, as 'up' does when it starts", _migrate
    )
    migrate.add_argument(
        "--citus", action="store_true", help="and spread the measurements over the nodes of a Citus cluster, by run"
    )


def _add(
    commands: Commands, name: str, text: str, run: Callable[[argparse.Namespace, str], str]
) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=text, description=text)
    store = command.add_mutually_exclusive_group()
    store.add_argument("--data", type=Path, help="folder of the SQLite database (default: the user's data folder)")
    store.add_argument("--db", metavar="URL", help="postgresql://USER@HOST/NAME, or sqlite:///FILE")
    command.set_defaults(run=lambda arguments: _run(run, arguments), command_name=name)
    return command


def _run(command: Callable[[argparse.Namespace, str], str], arguments: argparse.Namespace) -> int:
    """Carry out a command; return 2 where the store or what was typed does not allow it."""
    try:
        import platformdirs

        from gradcanary_server.errors import CollectorError
        from gradcanary_server.settings import address

        try:
            url = arguments.db or address(arguments.data or platformdirs.user_data_path("gradcanary"))
            print(command(arguments, url))  # noqa: T201 -- the answer
        except CollectorError as error:
            print(f"gradcanary: {error}", file=sys.stderr)  # noqa: T201 -- the command line speaks on stderr
            return 2
    except ModuleNotFoundError as error:
        from gradcanary.cli import NO_EXTRAS, UsageError

        raise UsageError(NO_EXTRAS.format(command=arguments.command_name, missing=error.name)) from error
    return 0


def _backup(arguments: argparse.Namespace, url: str) -> str:
    from gradcanary_server.backups import back_up

    made = back_up(url, arguments.file)
    runs = "1 run" if made.runs == 1 else f"{made.runs:,} runs"
    return f"{made.file} holds {runs} in {made.size / 1e6:,.1f} MB; its tables are of revision {made.revision}"


def _migrate(arguments: argparse.Namespace, url: str) -> str:
    from gradcanary_server import citus
    from gradcanary_server.database import Database

    database = Database(url)
    try:
        with database.claimed():
            before, now = database.migrate()
            said = f"the tables are of revision {now}" + ("" if before == now else f", and were of {before or 'none'}")
            if not arguments.citus:
                return said
            with database.set_up() as connection:
                spread = citus.distribute(connection)
            return f"{said}; spread over the cluster: {', '.join(spread) or 'nothing that was not before'}"
    finally:
        database.close()
