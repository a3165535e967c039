"""The commands that need the collector's package: ``up``, ``demo``, ``token``, ``backup``, ``migrate``, ``test-rules``,
``whatif``.

The one module of the agent that imports server and dashboard, each only when a command runs.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gradcanary import terminal
from gradcanary.cli import console
from gradcanary.cli.console import UsageError, print_error
from gradcanary.export import collector
from gradcanary.settings import Settings

if TYPE_CHECKING:
    from gradcanary.cli.console import Commands
    from gradcanary_server.ops.process import Listener
    from gradcanary_server.settings import Settings as ServerSettings

DEFAULT_PORT = 8787
MAX_WORKERS = 64

NO_EXTRAS = """\
gradcanary: {command} needs the collector and the dashboard, and {missing} is not installed.
Install them with, in a clone of gradcanary: pip install '.[all]'"""

SERVER_PYTHON = (3, 11)
NEWER_PYTHON = """\
gradcanary: {command} needs Python {needed} or newer, and this is {found}: install gradcanary[all] for a newer one. \
Trainings may keep {found}."""

PAGES_OF_WORKERS = "gradcanary up: --workers N shares out the pages, too: leave out --pages-apart, or --workers"

SCOPES = ("ingest", "read", "admin")


def add_up(commands: Commands) -> None:
    """Add ``up``."""
    command = commands.add_parser("up", help="serve the collector and the dashboard on one port")
    command.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    command.add_argument("--port", type=_port, default=DEFAULT_PORT, help="0 picks a free one (default: %(default)s)")
    _add_store(command)
    command.add_argument("--rules", type=Path, metavar="FILE", help="rules.yaml with other thresholds")
    text = "send incidents of warning, or SEVERITY, and above to this address, with ended also the end of their run; "
    text += "may be given several times"
    command.add_argument("--webhook", action="append", default=[], metavar="[SEVERITY][,ended]=URL", help=text)
    text = "send to Slack, e-mail, ntfy and others by an apprise address; safer in the file GRADCANARY_NOTIFY_FILE"
    command.add_argument("--notify", action="append", default=[], metavar="[SEVERITY][,ended]=URL", help=text)
    command.add_argument("--auth", action="store_true", help="require access tokens on loopback, too: behind a proxy")
    command.add_argument("--tls-cert", type=Path, metavar="FILE", help="serve TLS with this certificate chain, PEM")
    command.add_argument("--tls-key", type=Path, metavar="FILE", help="and this key")
    text = "processes that share the port, one for each core to use; PostgreSQL only (default: %(default)s)"
    command.add_argument("--workers", type=_workers, default=1, metavar="N", help=text)
    text = "draw the pages in a process of their own: batches wait less for pages, and pages for batches"
    command.add_argument("--pages-apart", action="store_true", help=text)
    command.set_defaults(run=_up)


def add_token(commands: Commands) -> None:
    """Add ``token create``, ``token list`` and ``token revoke``."""
    text = "make, list and revoke access tokens, directly in the store; the collector may be running"
    actions = commands.add_parser("token", help=text, description=text).add_subparsers(required=True, metavar="ACTION")
    create = actions.add_parser("create", help="make a token and print it, once")
    create.add_argument(
        "--scope", required=True, choices=SCOPES, help="ingest: send measurements; read: look; admin: everything"
    )
    create.add_argument("--name", required=True, help="its user or its place")
    create.add_argument("--days", type=float, metavar="N", help="valid for N days (default: until it is revoked)")
    listing = actions.add_parser("list", help="list tokens, without their secrets")
    revoke = actions.add_parser("revoke", help="revoke a token, and sign out the browsers that signed in with it")
    revoke.add_argument("token", type=int, metavar="ID", help="as 'gradcanary token list' shows it")
    for command, run in ((create, _create_token), (listing, _list_tokens), (revoke, _revoke_token)):
        _add_store(command)
        command.set_defaults(run=run)


def _add_store(command: argparse.ArgumentParser) -> None:
    store = command.add_mutually_exclusive_group()
    store.add_argument("--data", type=Path, help="folder of the SQLite database (default: the user's data folder)")
    store.add_argument("--db", metavar="URL", help="postgresql://USER@HOST/NAME, or sqlite:///FILE")


def add_backup_and_migrate(commands: Commands) -> None:
    """Add ``backup`` and ``migrate``."""
    text = "copy the SQLite store to a file, while the collector runs; for PostgreSQL, print the command"
    backup = commands.add_parser("backup", help=text, description=text)
    backup.add_argument("file", type=Path, metavar="FILE", help="a new file in an existing folder")
    _add_store(backup)
    backup.set_defaults(run=_backup)
    text = "migrate a store to the tables of this version, as 'up' does when it starts"
    migrate = commands.add_parser("migrate", help=text, description=text)
    _add_store(migrate)
    text = "and distribute the tables of runs over the nodes of a Citus cluster"
    migrate.add_argument("--citus", action="store_true", help=text)
    migrate.set_defaults(run=_migrate)


def add_demo(commands: Commands) -> None:
    """Add ``demo``, which starts a collector."""
    command = commands.add_parser("demo", help="watch a real LoRA training collapse and be caught, here, in a minute")
    command.add_argument("--headless", action="store_true", help="end with status 0 only if the right thing was caught")
    command.add_argument("--port", type=_port, default=DEFAULT_PORT, help="port of the page (default: %(default)s)")
    command.add_argument("--data", type=Path, help="keep the collector's data in this folder")
    text = "send it to a running collector instead of starting one; GRADCANARY_TOKEN of the scope admin, or ingest"
    command.add_argument("--url", help=text)
    command.set_defaults(run=_demo)


def add_test_rules(commands: Commands) -> None:
    """Add ``test-rules``."""
    text = "show what a rules.yaml would have found in a run, and how many messages it would have sent"
    status = "exit status: 0 no message, 1 at least one, 2 it could not run"
    command = commands.add_parser("test-rules", help=text, description=text, epilog=status)
    command.add_argument("rules", type=Path, metavar="rules.yaml")
    command.add_argument(
        "trace", nargs="?", type=Path, metavar="trace.csv", help="absmax of parameters, as export.csv has it"
    )
    command.add_argument("--run", dest="name", metavar="R", help="a run in the collector")
    console.add_collector_options(command)
    command.set_defaults(run=_test_rules)


def add_whatif(commands: Commands) -> None:
    """Add ``whatif``."""
    text = "foretell which weights would stop moving, and which gradients would come under the threshold, if the "
    text += "learning rate followed another schedule"
    status = "exit status: 0 nothing would happen (--backtest: all as foretold), 1 something would, 2 it could not run"
    command = commands.add_parser("whatif", help=text, description=text, epilog=status)
    command.add_argument("name", metavar="RUN", help="a run in the collector")
    schedule = command.add_mutually_exclusive_group(required=True)
    text = "a .csv with step,lr, a .json or .yaml with [[0, 1e-4], [5000, 1e-5]], or an expression: "
    text += "'cosine(3e-4, 1e-6, 20000)', 'lr * 0.1 if step > 5000 else lr'"
    schedule.add_argument("--schedule", metavar="FILE", help=text)
    text = "hold the forecast before step N (default: where the rate changed) against what happened"
    schedule.add_argument("--backtest", nargs="?", const=-1, type=_step, metavar="N", help=text)
    command.add_argument("--from", dest="first", type=_step, metavar="STEP", help="where it begins (default: the end)")
    text = "where it ends (default: as many steps again as the run has, at least 10,000)"
    command.add_argument("--to", dest="last", type=_step, metavar="STEP", help=text)
    command.add_argument(
        "--group", type=_step, metavar="N", help="the only parameter group that it is of (default: all)"
    )
    text = "gradients under it, as absmax, are low (default: %(default)s)"
    command.add_argument("--threshold", type=_threshold, default=1e-4, metavar="X", help=text)
    command.add_argument("--json", action="store_true", help="print the forecast as JSON, with all parameters")
    console.add_collector_options(command)
    command.set_defaults(run=_whatif)


def _step(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return int(text)


def _threshold(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number over 0")
    return value


def _port(text: str) -> int:
    port = int(text) if text.isascii() and text.isdigit() else -1
    if not 0 <= port <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: 0 to 65535")
    return port


def _workers(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MAX_WORKERS):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of processes: 1 to {MAX_WORKERS}")
    return int(text)


def _data(arguments: argparse.Namespace) -> Path:
    import platformdirs

    return arguments.data or platformdirs.user_data_path("gradcanary")


def _database(arguments: argparse.Namespace) -> str:
    from gradcanary_server.settings import address

    return address(os.environ, data=_data(arguments), db=arguments.db)


def _check_python(command: str) -> None:
    """Raise UsageError if this Python is too old for the collector, whose imports would end in a traceback."""
    if sys.version_info[:2] < SERVER_PYTHON:
        needed, found = (".".join(map(str, version)) for version in (SERVER_PYTHON, sys.version_info[:3]))
        raise UsageError(NEWER_PYTHON.format(command=command, needed=needed, found=found))


@contextlib.contextmanager
def _collector_errors(command: str) -> Iterator[None]:
    """Turn errors of the collector's package, and a package that is missing, into a UsageError."""
    _check_python(command)
    try:
        from gradcanary_server.errors import CollectorError

        try:
            yield
        except CollectorError as error:
            raise UsageError(f"gradcanary {command}: {error}") from error
    except ModuleNotFoundError as error:
        raise UsageError(NO_EXTRAS.format(command=command, missing=error.name)) from error


def _up(arguments: argparse.Namespace) -> int:
    with _collector_errors("up"):
        _serve(arguments)
    return 0


def _serve(arguments: argparse.Namespace) -> None:
    from gradcanary_dashboard.collector.client import trust_only
    from gradcanary_server.app import create_app, prepare_store
    from gradcanary_server.ops.process import Listener, Server, announce_start, configure_logging
    from gradcanary_server.ops.workers import Supervisor, WorkerBoard
    from gradcanary_server.settings import Settings as ServerSettings

    with contextlib.closing(Listener(arguments.host, arguments.port, is_tls=bool(arguments.tls_cert))) as listener:
        settings = ServerSettings.from_env(
            os.environ,
            data=_data(arguments),
            db=arguments.db,
            rules=arguments.rules,
            webhooks=arguments.webhook,
            notify=arguments.notify,
            url=listener.public_url,
            auth=arguments.auth,
            reached_by_others=not listener.is_loopback,
            tls_cert=arguments.tls_cert,
            tls_key=arguments.tls_key,
            workers=arguments.workers,
        )
        if arguments.pages_apart:
            _serve_apart(settings, listener)
            return
        from gradcanary_dashboard.app import mount  # not where another process draws the pages

        def serve(board: WorkerBoard | None = None) -> None:
            app = create_app(settings, board)
            mount(
                app,
                listener.own_url,
                public_url=settings.public_url,
                signs_in=settings.auth,
                trusted=None if settings.tls is None else trust_only(settings.tls.chain),
                framed_by=settings.framed_by,
            )
            Server(app, listener.url, is_worker=board is not None).run([listener.socket])

        if settings.workers == 1:
            serve()
            return
        configure_logging(settings.log)
        services = create_app(settings).state.services
        prepare_store(services)
        services.database.close()
        with tempfile.TemporaryDirectory(prefix="gradcanary-workers-") as folder:
            board = WorkerBoard(Path(folder), settings.workers)
            Supervisor(
                board,
                serve=lambda number: serve(replace(board, own=number)),
                announce=lambda: announce_start(settings, services.endpoint_lines, services.new_tokens, listener.url),
            ).run()


def _serve_apart(settings: ServerSettings, listener: Listener) -> None:
    from gradcanary_server.app import create_app
    from gradcanary_server.ops.pages_process import PagesProcess
    from gradcanary_server.ops.process import Server

    if settings.workers > 1:
        raise UsageError(PAGES_OF_WORKERS)
    app = create_app(settings)
    told = {
        "collector_url": listener.own_url,
        "public_url": settings.public_url,
        "signs_in": settings.auth,
        "chain": None if settings.tls is None else str(settings.tls.chain.absolute()),
        "framed_by": list(settings.framed_by),
    }
    with PagesProcess("gradcanary_dashboard.process", told) as app.router.default:
        Server(app, listener.url).run([listener.socket])


def _demo(arguments: argparse.Namespace) -> int:
    _check_python("demo")
    from gradcanary import demo

    if arguments.url is None:
        return demo.run(headless=arguments.headless, data=arguments.data, port=arguments.port)
    if arguments.data is not None:
        raise UsageError("gradcanary demo: --data is for the collector that the demo starts: leave out --data or --url")
    try:
        url = Settings.resolve(os.environ, spelled="--{}", url=arguments.url).url
        tls = collector.tls_context(url)
    except (ValueError, OSError) as error:
        raise UsageError(f"gradcanary demo: {error}") from error
    return demo.run_with_collector(url, tls, headless=arguments.headless)


def _create_token(arguments: argparse.Namespace) -> int:
    with _collector_errors("token"):
        from gradcanary_server.ops import commands

        db = _database(arguments)
        if not (arguments.data or arguments.db or commands.is_used(db)):
            print_error(f"gradcanary token: {commands.explain_unused(db)}")
            return 1
        wish = (arguments.scope, arguments.name, arguments.days)
        commands.create_token(db, *wish, print, lambda line: print_error(f"gradcanary: {line}"))
    return 0


def _list_tokens(arguments: argparse.Namespace) -> int:
    with _collector_errors("token"):
        from gradcanary_server.ops import commands

        commands.list_tokens(_database(arguments), console.print_rows)
    return 0


def _revoke_token(arguments: argparse.Namespace) -> int:
    with _collector_errors("token"):
        from gradcanary_server.ops import commands

        commands.revoke_token(_database(arguments), arguments.token, console.print_text)
    return 0


def _backup(arguments: argparse.Namespace) -> int:
    with _collector_errors("backup"):
        from gradcanary_server.ops import commands

        console.print_text(commands.backup_command(_database(arguments), arguments.file))
    return 0


def _migrate(arguments: argparse.Namespace) -> int:
    with _collector_errors("migrate"):
        from gradcanary_server.ops import commands

        console.print_text(commands.migrate_command(_database(arguments), with_citus=arguments.citus))
    return 0


def _test_rules(arguments: argparse.Namespace) -> int:
    if (arguments.name is None) == (arguments.trace is None):
        raise UsageError("gradcanary test-rules: give a run in the collector with --run, or a CSV file")
    with _collector_errors("test-rules"):
        from gradcanary_server.ops import rules_command

        try:
            if arguments.trace is not None:
                is_silent = rules_command.try_on_file(arguments.rules, arguments.trace, console.print_text)
            else:
                settings = Settings.resolve(os.environ, spelled="--{}", url=arguments.url, token=arguments.token)
                given = (arguments.rules, arguments.name, settings.url, settings.token, console.print_text)
                is_silent = rules_command.try_on_run(*given, collector.tls_context(settings.url))
        except (ValueError, OSError) as error:
            raise UsageError(f"gradcanary test-rules: {error}") from error
    return 0 if is_silent else 1


def _whatif(arguments: argparse.Namespace) -> int:
    is_test, first = arguments.backtest is not None, arguments.first
    if is_test and (first, arguments.last, arguments.group) != (None, None, None):
        raise UsageError(
            "gradcanary whatif: --from, --to and --group are of a schedule: leave them out with --backtest"
        )
    if is_test:
        first = None if arguments.backtest < 0 else arguments.backtest
    with _collector_errors("whatif"):
        from gradcanary_server.ops import whatif_command

        given = (arguments.name, arguments.schedule, first, arguments.last, arguments.group, arguments.threshold)
        try:
            settings = Settings.resolve(os.environ, spelled="--{}", url=arguments.url, token=arguments.token)
            trusted = collector.tls_context(settings.url)
        except (ValueError, OSError) as error:
            raise UsageError(f"gradcanary whatif: {error}") from error
        reply = whatif_command.ask(whatif_command.Question(*given), settings.url, settings.token, trusted)
    if arguments.json:
        console.print_json(reply.content)
    for part in () if arguments.json else reply.report:
        if isinstance(part, str):
            console.print_text(part)
        else:
            console.print_rows(terminal.table(part.head, part.rows))
    return 0 if reply.is_quiet else 1
