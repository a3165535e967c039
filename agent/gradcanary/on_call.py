"""The commands of somebody who was woken up: what is wrong, who knows, and quiet until morning."""

from __future__ import annotations

import argparse
import getpass
import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from gradcanary import incident_words
from gradcanary.settings import DEFAULT_URL, Settings

if TYPE_CHECKING:
    from gradcanary.collector import Collector

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001 -- argparse has no public name for it
    Command = Callable[[argparse.Namespace, Collector], int]

MOST_PAGES = 10
"""Of a hundred incidents each; who has more says --run, --state or --since."""

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def add(commands: Commands) -> None:
    """Add the commands to a command line; their ``run`` takes the parsed arguments and returns the exit status."""
    _add_incidents(commands)
    _add_ack(commands)
    _add_silence(commands)
    command = add_command(commands, "silences", "list the silences in force", _silences)
    command.add_argument("--json", action="store_true", help="as the collector answers it")
    command = add_command(commands, "unsilence", "end a silence now: what is still true is told", _unsilence)
    command.add_argument("silence", type=int, metavar="ID", help="of a silence, as 'gradcanary silences' lists it")


def _add_incidents(commands: Commands) -> None:
    command = add_command(commands, "incidents", "list incidents, the worst first, or tell one in full", _incidents)
    command.add_argument("incident", type=int, nargs="?", metavar="ID", help="tell this one in full")
    command.add_argument("--run", dest="name", metavar="NAME", help="of this run only")
    command.add_argument("--state", choices=("open", "resolved"), help="of this state only")
    command.add_argument("--since", type=_since, metavar="TIME", help="opened since: 2h, 3d, or 2030-01-31T12:00:00Z")
    command.add_argument("--json", action="store_true", help="as the collector answers it")


def _add_ack(commands: Commands) -> None:
    command = add_command(commands, "ack", "say that somebody knows of an incident: no reminders, no growth", _ack)
    command.add_argument("incident", type=int, metavar="ID")
    command.add_argument("--note", default="", help="for those who read it later")
    command.add_argument("--by", default=None, help="who knows (default: your user name)")
    command.add_argument(
        "--new-baseline", action="store_true", help="this is how it shall be: its layers learn a new baseline"
    )


def _add_silence(commands: Commands) -> None:
    command = add_command(commands, "silence", "tell nobody of an incident, or of some layers, for a while", _silence)
    command.add_argument("incident", type=int, nargs="?", metavar="ID", help="its rule, in its run")
    command.add_argument("--run", dest="name", metavar="NAME", help="a run, or several by * and ?; '*' is every run")
    command.add_argument("--rule", help="of this rule only")
    command.add_argument("--match", metavar="REGEX", help="only layers in whose name this is found")
    ends = command.add_mutually_exclusive_group()
    ends.add_argument("--for", dest="until", type=_in, metavar="TIME", help="30m, 8h, 3d; this or --until is needed")
    ends.add_argument("--until", metavar="TIME", help="2030-01-31T12:00:00Z")
    command.add_argument("--note", default="", help="for those who read it later")
    command.add_argument("--by", default=None, help="who asks for it (default: your user name)")


def add_command(
    commands: Commands, name: str, text: str, run: Command, *, is_below: bool = False
) -> argparse.ArgumentParser:
    """Add a command that asks a collector, and return its parser; ``is_below`` one that asks, too."""
    command = commands.add_parser(name, help=text, description=text)
    default = argparse.SUPPRESS if is_below else None  # else None would replace what was given above
    words = f"of the collector (default: GRADCANARY_URL, else {DEFAULT_URL})"
    command.add_argument("--url", default=default, help=words)
    command.add_argument("--token", default=default, help="for the collector (default: GRADCANARY_TOKEN)")
    command.set_defaults(run=lambda arguments: run_command(run, arguments))
    return command


def run_command(command: Command, arguments: argparse.Namespace) -> int:
    """Carry out a command; return 1 where the collector fails, 2 where it refuses what was typed."""
    from gradcanary.collector import Collector, CollectorError  # not for each command, a training's start among them

    known = {name: os.environ[name] for name in ("GRADCANARY_URL", "GRADCANARY_TOKEN") if name in os.environ}
    try:
        settings = Settings.resolve(known, spelled="--{}", url=arguments.url, token=arguments.token)
        return command(arguments, Collector(settings.url, settings.token))
    except CollectorError as error:
        print(f"gradcanary: {error}", file=sys.stderr)  # noqa: T201 -- the command line speaks on stderr
        return 2 if error.is_refusal else 1
    except ValueError as error:
        print(f"gradcanary: {error}", file=sys.stderr)  # noqa: T201 -- likewise
        return 2


def _incidents(arguments: argparse.Namespace, collector: Collector) -> int:
    if arguments.incident is not None:
        found = collector.ask("GET", f"/incidents/{arguments.incident}")
        return say(as_json(found) if arguments.json else incident_words.told(found), is_json=arguments.json)
    listed: list[Any] = []
    before: str | None = None
    for _ in range(MOST_PAGES):
        asked = {"run": arguments.name, "state": arguments.state, "since": arguments.since, "before": before}
        page = collector.ask("GET", "/incidents", **asked)
        listed += page["incidents"]
        before = page["next"]
        if before is None:
            break
    worst = incident_words.worst_first(listed)
    if arguments.json:
        return say(as_json({"incidents": worst, "next": before}), is_json=True)
    say(incident_words.listed(worst, width()))
    if before is not None:
        say("There are older ones: choose with --run, --state or --since.")
    return 0


def _ack(arguments: argparse.Namespace, collector: Collector) -> int:
    body = {"by": _by(arguments), "note": arguments.note, "new_baseline": arguments.new_baseline}
    found = collector.ask("POST", f"/incidents/{arguments.incident}/ack", body)
    said = f"#{found['id']} {found['rule']} in {found['run']}: {incident_words.state(found)}"
    return say(f"{said}. {found['summary']}")


def _silence(arguments: argparse.Namespace, collector: Collector) -> int:
    name, rule = arguments.name, arguments.rule
    if (arguments.incident is None) == (name is None):
        raise ValueError("name an incident by its ID, or runs by --run, '*' for every one")
    if arguments.until is None:
        raise ValueError("say until when, with --for 8h or --until 2030-01-31T12:00:00Z: each silence ends")
    hint = ""
    if arguments.incident is not None:
        if rule is not None:
            raise ValueError("--rule goes with --run: an incident has one rule")
        found = collector.ask("GET", f"/incidents/{arguments.incident}")
        name, rule = found["run"], found["rule"]
        hint = incident_words.over(found)
    body = {"run": name, "rule": rule, "match": arguments.match, "until": arguments.until}
    made = collector.ask("POST", "/silences", {**body, "by": _by(arguments), "note": arguments.note})
    hides = incident_words.hides(made) or "no incident that is open now"
    until = incident_words.minute(made["until"])
    said = f"Silence {made['id']} until {until} UTC hides {hides}."
    return say(f"{said}{hint} End it: gradcanary unsilence {made['id']}")


def _silences(arguments: argparse.Namespace, collector: Collector) -> int:
    found = collector.ask("GET", "/silences")
    said = as_json(found) if arguments.json else incident_words.silences(found["silences"], width())
    return say(said, is_json=arguments.json)


def _unsilence(arguments: argparse.Namespace, collector: Collector) -> int:
    collector.ask("DELETE", f"/silences/{arguments.silence}")
    return say(f"Silence {arguments.silence} is over.")


def _by(arguments: argparse.Namespace) -> str:
    if arguments.by is not None:
        return str(arguments.by)
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError) as error:  # a container's user may have no name
        raise ValueError("say who you are with --by: this user has no name") from error


def _in(text: str) -> str:
    """Return the moment in so much time, RFC 3339."""
    return _rfc3339(datetime.now(timezone.utc) + _duration(text))


def _since(text: str) -> str:
    """Return the moment so long ago; a time goes to the collector as it is."""
    if re.fullmatch(r"[0-9]+[a-z]", text):
        return _rfc3339(datetime.now(timezone.utc) - _duration(text))
    return text


def _duration(text: str) -> timedelta:
    matched = re.fullmatch(r"([0-9]{1,5})([smhd])", text)
    if matched is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no time span: 30m, 8h, 3d")
    return timedelta(**{_UNITS[matched[2]]: int(matched[1])})


def _rfc3339(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def width() -> int | None:
    """Return how wide lines may be; in a file or a pipe they are whole."""
    return shutil.get_terminal_size().columns if sys.stdout is not None and sys.stdout.isatty() else None


def as_json(found: object) -> str:
    """Return an answer as it is printed where ``--json`` asks for it."""
    return json.dumps(found, indent=2)


def say(text: str, *, is_json: bool = False) -> int:
    """Print a text, whatever the terminal can write, and return the status of success; JSON is not wrapped."""
    text = text if is_json else incident_words.wrapped(text, width())
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"  # there may be no stdout
    print(text.encode(encoding, "backslashreplace").decode(encoding))  # noqa: T201 -- the answer
    return 0
