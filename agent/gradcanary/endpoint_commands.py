"""``gradcanary endpoints``: who is told of incidents, how that went, and what shall be sent once more."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from gradcanary import endpoint_words, on_call

if TYPE_CHECKING:
    from gradcanary.collector import Collector

SEVERITIES = ("information", "warning", "critical")

Command = Callable[[argparse.Namespace, "Collector"], int]


def add(commands: on_call.Commands) -> None:
    """Add the command to a command line; without a word behind it, it lists."""
    text = "list who is told of incidents and how that goes, or change it"
    top = on_call.add_command(commands, "endpoints", text, _list)
    top.add_argument("--json", action="store_true", help="as the collector answers it")
    words = top.add_subparsers(title="what to do", metavar="WORD")
    _add_json(_word(words, "list", "list them, as without a word", _list, None))
    _add_making(words)
    _word(words, "test", "send a test message now, and say how that went", _test)
    _word(words, "rotate", "make another secret, shown once; for a day messages are signed with both", _rotate)
    _add_set(words)
    _word(words, "remove", "tell it nothing any more, and forget its address and secret", _remove)
    log = _word(words, "deliveries", "list what was sent to it, newest first", _deliveries)
    log.add_argument("--before", metavar="CURSOR", help="older ones: what the list before says at its end")
    _add_json(log)
    again = _word(words, "redeliver", "send a message once more, the same bytes under the same id", _redeliver, None)
    again.add_argument("delivery", metavar="DELIVERY", help="as 'gradcanary endpoints deliveries ID' lists it")


def _add_making(words: on_call.Commands) -> None:
    command = _word(words, "add", "tell a webhook of incidents from now on; prints its secret once", _make, None)
    command.add_argument("address", metavar="URL", help="http://HOST[:PORT]/PATH of a receiver of Standard Webhooks")
    command.add_argument("--name", default="", help="for those who read the list")
    command.add_argument("--min-severity", choices=SEVERITIES, default="warning", help="default: %(default)s")


def _add_set(words: on_call.Commands) -> None:
    command = _word(words, "set", "change an endpoint", _set)
    command.add_argument("--name", help="for those who read the list")
    command.add_argument("--min-severity", choices=SEVERITIES)
    able = command.add_mutually_exclusive_group()
    able.add_argument("--enable", dest="enabled", action="store_true", default=None, help="tell it what is open")
    able.add_argument("--disable", dest="enabled", action="store_false", default=None, help="tell it nothing")


def _word(
    words: on_call.Commands, name: str, text: str, run: Command, endpoint: str | None = "ID"
) -> argparse.ArgumentParser:
    command = on_call.add_command(words, name, text, run, is_below=True)
    if endpoint is not None:
        command.add_argument("endpoint", type=int, metavar=endpoint, help="as 'gradcanary endpoints' lists it")
    return command


def _add_json(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="as the collector answers it")


def _list(arguments: argparse.Namespace, collector: Collector) -> int:
    found = collector.ask("GET", "/endpoints")
    said = endpoint_words.listed(found["endpoints"], on_call.width())
    return on_call.say(on_call.as_json(found) if arguments.json else said, is_json=arguments.json)


def _make(arguments: argparse.Namespace, collector: Collector) -> int:
    body = {"url": arguments.address, "name": arguments.name, "min_severity": arguments.min_severity}
    made = collector.ask("POST", "/endpoints", body)
    on_call.say(f"Endpoint {made['id']}: {endpoint_words.told_of(made)} is told of {made['min_severity']} and above.")
    on_call.say(f"secret (shown once): {made['secret']}")
    return on_call.say(f"Try it: gradcanary endpoints test {made['id']}")


def _test(arguments: argparse.Namespace, collector: Collector) -> int:
    return _outcome("The test", collector.ask("POST", f"/endpoints/{arguments.endpoint}/test"))


def _rotate(arguments: argparse.Namespace, collector: Collector) -> int:
    made = collector.ask("POST", f"/endpoints/{arguments.endpoint}/rotate")
    on_call.say(f"secret (shown once): {made['secret']}")
    until = endpoint_words.minute(made["old_secret_until"])
    return on_call.say(f"Until {until} UTC messages are signed with the one before, too.")


def _set(arguments: argparse.Namespace, collector: Collector) -> int:
    names = ("name", "min_severity", "enabled")
    body = {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}
    if not body:
        raise ValueError("say what shall be otherwise: --name, --min-severity, --enable or --disable")
    found = collector.ask("PATCH", f"/endpoints/{arguments.endpoint}", body)
    return on_call.say(endpoint_words.listed([found], on_call.width()))


def _remove(arguments: argparse.Namespace, collector: Collector) -> int:
    collector.ask("DELETE", f"/endpoints/{arguments.endpoint}")
    return on_call.say(f"Endpoint {arguments.endpoint} is removed; what it was told stays with the incidents.")


def _deliveries(arguments: argparse.Namespace, collector: Collector) -> int:
    found = collector.ask("GET", f"/endpoints/{arguments.endpoint}/deliveries", before=arguments.before)
    if arguments.json:
        return on_call.say(on_call.as_json(found), is_json=True)
    on_call.say(endpoint_words.log(found["deliveries"], on_call.width()))
    if found["next"] is not None:
        on_call.say(f"Older ones: --before {found['next']}")
    return 0


def _redeliver(arguments: argparse.Namespace, collector: Collector) -> int:
    return _outcome("The message", collector.ask("POST", f"/deliveries/{arguments.delivery}/redeliver"))


def _outcome(what: str, answer: Mapping[str, Any]) -> int:
    """Say how an attempt went; 1 where it failed."""
    if answer["is_delivered"]:
        status = "" if answer["status"] is None else f", answered {answer['status']}"
        return on_call.say(f"{what} was delivered{status} after {answer['ms']} ms.")
    on_call.say(f"{what} was not delivered: {answer['error']} ({answer['ms']} ms).")
    return 1
