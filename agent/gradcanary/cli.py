"""The command line: the one place that knows every part, and imports each only when it is asked for."""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from gradcanary import endpoint_commands, incident_words, launching, on_call, run_commands
from gradcanary.attach import commands as attaching
from gradcanary.settings import DEFAULT_URL
from gradcanary.version import __version__

DEFAULT_PORT = 8787

NO_EXTRAS = """\
gradcanary: {command} needs the collector and the dashboard, and {missing} is not installed.
Install them with, in a clone of gradcanary: pip install '.[all]'"""

SERVER_PYTHON = (3, 11)
NEWER_PYTHON = """\
gradcanary: {command} needs Python {needed} or newer, and this is {found}: install gradcanary[all] for a newer one. \
Trainings may stay with {found}."""

SCOPES = ("ingest", "read", "admin")


CLOSED_PIPE = 141
"""128 and the number of SIGPIPE, which ends most programs there; Python ignores that signal."""

FULL_DISK = (errno.ENOSPC, errno.EDQUOT)


class UsageError(Exception):
    """What was typed cannot work; the message says what would."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand and return its exit status: 0 fine, 1 failed, 2 wrong arguments, 141 for a closed pipe."""
    try:
        try:
            return _run_typed(argv)
        finally:
            _flush_output()
    except BrokenPipeError:
        _discard_unread_output()
        return CLOSED_PIPE
    except OSError as error:
        if error.errno not in FULL_DISK:
            raise
        with contextlib.suppress(OSError):
            print(f"gradcanary: {error}", file=sys.stderr)  # noqa: T201 -- the command line speaks on stderr
        _discard_unread_output()
        return 1


def _run_typed(argv: Sequence[str] | None) -> int:
    typed, command = launching.split(sys.argv[1:] if argv is None else argv)
    arguments = parser().parse_args(typed, argparse.Namespace(command=command))
    try:
        return int(arguments.run(arguments))
    except UsageError as error:
        print(error, file=sys.stderr)  # noqa: T201 -- the command line speaks on stderr
        return 2
    except KeyboardInterrupt:
        return 130


def _flush_output() -> None:
    """Write what is buffered while an error can still be caught; a stream that was closed is None."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.flush()


def _discard_unread_output() -> None:
    """Send to the null device what was not taken: Python flushes once more as it exits, and complains."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except OSError:  # noqa: PERF203 -- of two streams
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)


def parser() -> argparse.ArgumentParser:
    """Return the parser of all subcommands."""
    top = argparse.ArgumentParser(prog="gradcanary", description="Gradient health of PyTorch trainings, watched live.")
    top.add_argument("--version", action="version", version=f"gradcanary {__version__}")
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_up(commands)
    _add_token(commands)
    _add_run(commands)
    attaching.add(commands)
    _add_demo(commands)
    _add_sync(commands)
    on_call.add(commands)
    endpoint_commands.add(commands)
    run_commands.add(commands)
    _add_upkeep(commands)
    _add_test_rules(commands)
    return top


def _add_up(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser("up", help="serve the collector and the dashboard on one port")
    command.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    command.add_argument("--port", type=_port, default=DEFAULT_PORT, help="0 picks a free one (default: %(default)s)")
    _add_store(command)
    command.add_argument("--rules", type=Path, metavar="FILE", help="rules.yaml with other thresholds")
    text = "send incidents of warning, or SEVERITY, and above to this address; may be given several times"
    command.add_argument("--webhook", action="append", default=[], metavar="[SEVERITY=]URL", help=text)
    text = "tell Slack, e-mail, ntfy and others, by an address of apprise; safer in the file GRADCANARY_NOTIFY_FILE"
    command.add_argument("--notify", action="append", default=[], metavar="[SEVERITY=]URL", help=text)
    command.add_argument("--auth", action="store_true", help="ask for access tokens on loopback, too: behind a proxy")
    command.add_argument("--tls-cert", type=Path, metavar="FILE", help="speak TLS with this certificate chain, PEM")
    command.add_argument("--tls-key", type=Path, metavar="FILE", help="and this key")
    command.set_defaults(run=_up)


def _add_token(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "make, list and revoke access tokens, in the store itself; the collector may be running"
    actions = commands.add_parser("token", help=text, description=text).add_subparsers(required=True, metavar="ACTION")
    create = actions.add_parser("create", help="make a token and print it, once")
    create.add_argument("--scope", required=True, choices=SCOPES, help="send measurements; look; everything")
    create.add_argument("--name", required=True, help="where or by whom it is used")
    create.add_argument("--days", type=float, metavar="N", help="it holds for so long (default: until it is revoked)")
    listing = actions.add_parser("list", help="list tokens, without their secrets")
    revoke = actions.add_parser("revoke", help="end a token, and the visits of browsers that signed in with it")
    revoke.add_argument("token", type=int, metavar="ID", help="as 'gradcanary token list' says")
    for name, command in (("create", create), ("show", listing), ("revoke", revoke)):
        _add_store(command)
        command.set_defaults(run=_token, action=name)


def _add_store(command: argparse.ArgumentParser) -> None:
    store = command.add_mutually_exclusive_group()
    store.add_argument("--data", type=Path, help="folder of the SQLite database (default: the user's data folder)")
    store.add_argument("--db", metavar="URL", help="postgresql://USER@HOST/NAME, or sqlite:///FILE")


def _add_upkeep(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "copy the SQLite store to a file, while the collector runs; for PostgreSQL, tell how"
    backup = commands.add_parser("backup", help=text, description=text)
    backup.add_argument("file", type=Path, metavar="FILE", help="a new one, in a folder that is there")
    _add_store(backup)
    backup.set_defaults(run=_keep_up, upkeep="backup")
    text = "bring a store's tables to this version's shape, as 'up' does when it starts"
    migrate = commands.add_parser("migrate", help=text, description=text)
    _add_store(migrate)
    words = "and spread the measurements over the nodes of a Citus cluster, by run"
    migrate.add_argument("--citus", action="store_true", help=words)
    migrate.set_defaults(run=_keep_up, upkeep="migrate")


def _add_demo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser("demo", help="watch a real LoRA training collapse and be caught, here, in a minute")
    command.add_argument("--headless", action="store_true", help="end with status 0 only if the right thing was caught")
    command.add_argument("--port", type=_port, default=DEFAULT_PORT, help="port of the page (default: %(default)s)")
    command.add_argument("--data", type=Path, help="keep the collector's data in this folder")
    text = "play it into a collector that runs already (token: GRADCANARY_TOKEN), instead of one of its own"
    command.add_argument("--url", help=text)
    command.set_defaults(run=_demo)


def _add_run(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "start a training under watch, without a change to its code"
    command = commands.add_parser("run", help=text, description=text, usage=_wrapped_usage(), allow_abbrev=False)
    command.add_argument("--url", help=f"of the collector (default: GRADCANARY_URL, else {DEFAULT_URL})")
    command.add_argument("--run", dest="name", metavar="NAME", help="name of the run; a resumed job joins it by this")
    command.add_argument("--every", metavar="N", help="look at every Nth step: 1, 10, 100, 1000 (default: auto)")
    command.set_defaults(run=_run)


def _wrapped_usage() -> str:
    """Return the usage of ``run`` in lines of the terminal's width: argparse wraps only what it has made itself."""
    width = shutil.get_terminal_size().columns - len("usage: ")
    return textwrap.fill(launching.USAGE, max(width, 20), subsequent_indent=" " * 7, break_on_hyphens=False)


def _add_sync(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser("sync", help="send what trainings could not deliver before they ended")
    text = "spool files, or folders of them (default: where trainings put them)"
    command.add_argument("places", nargs="*", type=Path, metavar="PATH", help=text)
    command.add_argument("--url", help="address of the collector (default: the one that the training had)")
    command.add_argument("--token", help="for the collector (default: GRADCANARY_TOKEN)")
    command.set_defaults(run=_sync)


def _add_test_rules(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "tell what a rules.yaml would have found in a run, and how many messages it would have sent"
    status = "exit status: 0 no message, 1 at least one, 2 it could not be tried"
    command = commands.add_parser("test-rules", help=text, description=text, epilog=status)
    command.add_argument("rules", type=Path, metavar="rules.yaml")
    command.add_argument(
        "trace", nargs="?", type=Path, metavar="trace.csv", help="absmax of layers, as export.csv has it"
    )
    command.add_argument("--run", dest="name", metavar="R", help="a run that the collector has")
    command.add_argument("--url", help=f"of the collector (default: GRADCANARY_URL, else {DEFAULT_URL})")
    command.add_argument("--token", help="for the collector (default: GRADCANARY_TOKEN)")
    command.set_defaults(run=_test_rules)


def _check_python(command: str) -> None:
    """Raise UsageError where this Python is too old for the collector, whose imports would end in a traceback."""
    if sys.version_info[:2] < SERVER_PYTHON:
        needed, found = (".".join(map(str, version)) for version in (SERVER_PYTHON, sys.version_info[:3]))
        raise UsageError(NEWER_PYTHON.format(command=command, needed=needed, found=found))


def _port(text: str) -> int:
    port = int(text) if text.isascii() and text.isdigit() else -1
    if not 0 <= port <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: 0 to 65535")
    return port


def _demo(arguments: argparse.Namespace) -> int:
    _check_python("demo")
    from gradcanary import demo

    if arguments.url is not None:
        if arguments.headless or arguments.data is not None:
            raise UsageError("gradcanary demo: --headless and --data are for a collector of its own, without --url")
        return _demo_into(arguments.url)
    return demo.run(headless=arguments.headless, data=arguments.data, port=arguments.port)


def _demo_into(given: str) -> int:
    from gradcanary import demo
    from gradcanary.settings import Settings
    from gradcanary.transport import trusted

    try:
        url = Settings.resolve(os.environ, spelled="--{}", url=given).url
        tls = trusted(os.environ) if url.startswith("https:") else None
    except (ValueError, OSError) as error:
        raise UsageError(f"gradcanary demo: {error}") from error
    return demo.run_into(url, tls)


def _run(arguments: argparse.Namespace) -> int:
    try:
        launching.start(arguments.command, url=arguments.url, run=arguments.name, every=arguments.every)
    except (launching.LaunchError, ValueError) as error:
        raise UsageError(f"gradcanary run: {error}") from error


def _sync(arguments: argparse.Namespace) -> int:
    try:
        from gradcanary import spool, sync
        from gradcanary.settings import Settings

        places = arguments.places or [spool.folder(os.environ)]
        paths = sync.find(place for place in places if arguments.places or place.exists())
        settings = Settings.resolve({}, url=arguments.url, token=arguments.token or os.environ.get("GRADCANARY_TOKEN"))
    except ImportError as error:
        raise UsageError(f"gradcanary: this Python has no SQLite ({error}), so it left no spool files") from error
    except (RuntimeError, ValueError) as error:
        raise UsageError(f"gradcanary: {str(error).replace('watch(', '--').replace('=)', '')}") from error
    if not paths:
        print(f"nothing to send in {', '.join(map(str, places))}")  # noqa: T201 -- the answer
    return 0 if sync.sync(paths, settings.url if arguments.url else None, settings.token, print) else 1


def _test_rules(arguments: argparse.Namespace) -> int:
    _check_python("test-rules")
    if (arguments.name is None) == (arguments.trace is None):
        raise UsageError("gradcanary test-rules: give a run of the collector with --run, or a CSV file")
    try:
        from gradcanary.settings import Settings
        from gradcanary.transport import trusted
        from gradcanary_server.errors import CollectorError
        from gradcanary_server.ops import rules_command

        try:
            if arguments.trace is not None:
                return 0 if rules_command.try_on_file(arguments.rules, arguments.trace, print) else 1
            settings = Settings.resolve(os.environ, spelled="--{}", url=arguments.url, token=arguments.token)
            tls = trusted(os.environ) if settings.url.startswith("https:") else None
            asked = (arguments.rules, arguments.name, settings.url, settings.token, print, tls)
            return 0 if rules_command.try_on_run(*asked) else 1
        except (CollectorError, ValueError, OSError) as error:
            raise UsageError(f"gradcanary test-rules: {error}") from error
    except ModuleNotFoundError as error:
        raise UsageError(NO_EXTRAS.format(command="test-rules", missing=error.name)) from error


def _keep_up(arguments: argparse.Namespace) -> int:
    _check_python(arguments.upkeep)
    try:
        from gradcanary_server.errors import CollectorError
        from gradcanary_server.ops import commands
        from gradcanary_server.settings import address

        try:
            url = address(os.environ, data=_data(arguments), db=arguments.db)
            if arguments.upkeep == "backup":
                said = commands.backup_command(url, arguments.file)
            else:
                said = commands.migrate_command(url, with_citus=arguments.citus)
        except CollectorError as error:
            raise UsageError(f"gradcanary: {error}") from error
    except ModuleNotFoundError as error:
        raise UsageError(NO_EXTRAS.format(command=arguments.upkeep, missing=error.name)) from error
    print(said)  # noqa: T201 -- the answer
    return 0


def _up(arguments: argparse.Namespace) -> int:
    _check_python("up")
    try:
        return _serve(arguments)
    except ModuleNotFoundError as error:
        raise UsageError(NO_EXTRAS.format(command="up", missing=error.name)) from error


def _serve(arguments: argparse.Namespace) -> int:
    from gradcanary_dashboard.app import mount
    from gradcanary_server.app import create_app
    from gradcanary_server.errors import CollectorError
    from gradcanary_server.ops.process import Listener, Server, trust_only
    from gradcanary_server.settings import Settings

    try:
        with contextlib.closing(Listener(arguments.host, arguments.port, is_tls=bool(arguments.tls_cert))) as listener:
            settings = Settings.from_env(
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
            )
            app = create_app(settings)
            trusted = None if settings.tls is None else trust_only(settings.tls.chain)
            mount(app, listener.own_url, public_url=settings.public_url, signs_in=settings.auth, trusted=trusted)
            Server(app, listener.url).run([listener.socket])
    except CollectorError as error:
        raise UsageError(f"gradcanary: {error}") from error
    return 0


def _token(arguments: argparse.Namespace) -> int:
    _check_python("token")
    try:
        from gradcanary_server.errors import CollectorError
        from gradcanary_server.ops import commands
        from gradcanary_server.settings import address

        try:
            db = address(os.environ, data=_data(arguments), db=arguments.db)
            if arguments.action == "create":
                if not (arguments.data or arguments.db or commands.is_used(db)):
                    print(f"gradcanary token: {commands.explain_unused(db)}", file=sys.stderr)  # noqa: T201
                    return 1
                wish = (arguments.scope, arguments.name, arguments.days)
                commands.create_token(db, *wish, print, lambda line: print(f"gradcanary: {line}", file=sys.stderr))  # noqa: T201
            elif arguments.action == "revoke":
                commands.revoke_token(db, arguments.token, print)
            else:
                commands.list_tokens(db, _print_row)
        except CollectorError as error:
            raise UsageError(f"gradcanary token: {error}") from error
    except ModuleNotFoundError as error:
        raise UsageError(NO_EXTRAS.format(command="token", missing=error.name)) from error
    return 0


def _print_row(text: str) -> None:
    print(incident_words.wrapped(text, on_call.width(), "    "))  # noqa: T201 -- the answer


def _data(arguments: argparse.Namespace) -> Path:
    import platformdirs

    return arguments.data or platformdirs.user_data_path("gradcanary")


if __name__ == "__main__":
    raise SystemExit(main())
