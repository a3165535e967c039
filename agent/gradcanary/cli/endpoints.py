"""``gradcanary endpoints``: the list of endpoints, their deliveries, and changes of both.

The commands come first, then the text that they print of the collector's JSON, which is pure.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gradcanary import terminal
from gradcanary.cli import console
from gradcanary.cli.console import SEVERITIES, minute

if TYPE_CHECKING:
    from gradcanary.cli.console import CollectorClient, Command, Commands

Json = Mapping[str, Any]

NOBODY = "Nobody is told of incidents: gradcanary endpoints add URL, or gradcanary up --webhook URL."


def add_commands(commands: Commands) -> None:
    """Add the command to a command line; without a word behind it, it lists."""
    text = "list who is told of incidents and how that goes, or change it"
    top = console.add_command(commands, "endpoints", text, _list)
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


def _add_making(words: Commands) -> None:
    command = _word(words, "add", "tell a webhook of incidents from now on; prints its secret once", _make, None)
    command.add_argument("address", metavar="URL", help="http://HOST[:PORT]/PATH of a receiver of Standard Webhooks")
    command.add_argument("--name", default="", help="for those who read the list")
    command.add_argument("--min-severity", choices=SEVERITIES, default="warning", help="default: %(default)s")


def _add_set(words: Commands) -> None:
    command = _word(words, "set", "change an endpoint", _set)
    command.add_argument("--name", help="for those who read the list")
    command.add_argument("--min-severity", choices=SEVERITIES)
    able = command.add_mutually_exclusive_group()
    able.add_argument("--enable", dest="enabled", action="store_true", default=None, help="tell it what is open")
    able.add_argument("--disable", dest="enabled", action="store_false", default=None, help="tell it nothing")


def _word(words: Commands, name: str, text: str, run: Command, endpoint: str | None = "ID") -> argparse.ArgumentParser:
    command = console.add_command(words, name, text, run, is_below=True)
    if endpoint is not None:
        command.add_argument("endpoint", type=int, metavar=endpoint, help="as 'gradcanary endpoints' lists it")
    return command


def _add_json(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="as the collector answers it")


def _list(arguments: argparse.Namespace, client: CollectorClient) -> None:
    found = client.request("GET", "/endpoints")
    if arguments.json:
        console.print_json(found)
    else:
        console.print_text(endpoint_table(found["endpoints"], terminal.width()))


def _make(arguments: argparse.Namespace, client: CollectorClient) -> None:
    body = {"url": arguments.address, "name": arguments.name, "min_severity": arguments.min_severity}
    made = client.request("POST", "/endpoints", body)
    console.print_text(f"Endpoint {made['id']}: {label(made)} is told of {made['min_severity']} and above.")
    console.print_text(f"secret (shown once): {made['secret']}")
    console.print_text(f"Try it: gradcanary endpoints test {made['id']}")


def _test(arguments: argparse.Namespace, client: CollectorClient) -> int:
    return _print_outcome("The test", client.request("POST", f"/endpoints/{arguments.endpoint}/test"))


def _rotate(arguments: argparse.Namespace, client: CollectorClient) -> None:
    made = client.request("POST", f"/endpoints/{arguments.endpoint}/rotate")
    console.print_text(f"secret (shown once): {made['secret']}")
    until = minute(made["old_secret_until"])
    console.print_text(f"Until {until} UTC messages are signed with the one before, too.")


def _set(arguments: argparse.Namespace, client: CollectorClient) -> None:
    names = ("name", "min_severity", "enabled")
    body = {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}
    if not body:
        raise ValueError("say what shall be otherwise: --name, --min-severity, --enable or --disable")
    found = client.request("PATCH", f"/endpoints/{arguments.endpoint}", body)
    console.print_text(endpoint_table([found], terminal.width()))


def _remove(arguments: argparse.Namespace, client: CollectorClient) -> None:
    client.request("DELETE", f"/endpoints/{arguments.endpoint}")
    console.print_text(f"Endpoint {arguments.endpoint} is removed; what it was told stays with the incidents.")


def _deliveries(arguments: argparse.Namespace, client: CollectorClient) -> None:
    found = client.request("GET", f"/endpoints/{arguments.endpoint}/deliveries", before=arguments.before)
    if arguments.json:
        console.print_json(found)
        return
    console.print_text(delivery_table(found["deliveries"], terminal.width()))
    if found["next"] is not None:
        console.print_text(f"Older ones: --before {found['next']}")


def _redeliver(arguments: argparse.Namespace, client: CollectorClient) -> int:
    return _print_outcome("The message", client.request("POST", f"/deliveries/{arguments.delivery}/redeliver"))


def _print_outcome(what: str, answer: Json) -> int:
    """Print the outcome of an attempt; return 1 if it failed."""
    if answer["is_delivered"]:
        status = "" if answer["status"] is None else f", answered {answer['status']}"
        console.print_text(f"{what} was delivered{status} after {answer['ms']} ms.")
        return 0
    console.print_text(f"{what} was not delivered: {answer['error']} ({answer['ms']} ms).")
    return 1


def endpoint_table(endpoints: Sequence[Json], width: int | None) -> str:
    """Return a table with a line per endpoint, and below it why some are disabled or fail."""
    if not endpoints:
        return NOBODY
    head = ("ID", "STATE", "SINCE (UTC)", "FROM", "TELLS", "LAST SUCCESS", "PENDING", "WHOM")
    rows = [
        (
            str(each["id"]),
            state_of(each),
            minute(each["since"]),
            "command line" if each["origin"] == "operator" else "api",
            each["min_severity"],
            "-" if each["last_success"] is None else minute(each["last_success"]),
            str(each["pending"]),
            label(each),
        )
        for each in endpoints
    ]
    return "\n".join([terminal.table(head, rows, width), *(line for each in endpoints for line in _trouble(each))])


def state_of(endpoint: Json) -> str:
    """Return ``enabled``, ``failing`` or ``disabled``."""
    return "failing" if endpoint["state"] == "enabled" and endpoint["failing_since"] else str(endpoint["state"])


def label(endpoint: Json) -> str:
    """Return who is told: a name, an address, or both."""
    return " ".join(part for part in (endpoint["name"], endpoint["url"]) if part) or endpoint["kind"]


def delivery_table(deliveries: Sequence[Json], width: int | None) -> str:
    """Return a table with a line per message."""
    if not deliveries:
        return "Nothing was sent to it so far."
    head = ("DELIVERY", "SEALED (UTC)", "RUN", "INCIDENT", "KIND", "STATE", "TRIES", "LAST ANSWER")
    rows = [
        (
            each["id"],
            minute(each["enqueued"]),
            each["run"],
            f"#{each['incident']}",
            each["kind"],
            each["state"],
            str(len(each["attempts"])),
            _answer(each),
        )
        for each in deliveries
    ]
    return terminal.table(head, rows, width)


def _trouble(endpoint: Json) -> list[str]:
    if endpoint["state"] == "disabled":
        return [f"{endpoint['id']} is disabled: {endpoint['reason']}."]
    if endpoint["failing_since"]:
        return [f"{endpoint['id']} fails since {minute(endpoint['failing_since'])} UTC: {endpoint['last_error']}."]
    return []


def _answer(delivery: Json) -> str:
    last = delivery["attempts"][-1] if delivery["attempts"] else None
    if last is None:
        return "-"
    return last["error"] or (f"{last['status']} after {last['ms']} ms" if last["status"] else f"after {last['ms']} ms")
