"""``gradcanary endpoints``: the list of endpoints, their deliveries, and changes of both.

The commands come first, then the text that they print of the collector's JSON, which is pure.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gradcanary import terminal
from gradcanary.cli import console
from gradcanary.cli.console import to_minute
from gradcanary.display.verdict import SEVERITIES

if TYPE_CHECKING:
    from gradcanary.cli.console import Command, Commands
    from gradcanary.export.collector import CollectorClient

Json = Mapping[str, Any]

NO_ENDPOINTS = "No endpoints: add one with gradcanary endpoints add URL, or gradcanary up --webhook URL."


def add_commands(commands: Commands) -> None:
    """Add ``endpoints``, which prints the list, and its actions."""
    text = "list endpoints and their state, or change them"
    top = console.add_command(commands, "endpoints", text, _list)
    top.add_argument("--json", action="store_true", help="print the collector's JSON")
    actions = top.add_subparsers(title="actions", metavar="ACTION")
    _add_json(_add_action(actions, "list", "list endpoints, as without an action", _list, None))
    _add_add(actions)
    _add_action(actions, "test", "send a test message now, and print the outcome", _test)
    _add_action(actions, "rotate", "make a new secret, shown once; for a day messages are signed with both", _rotate)
    _add_set(actions)
    _add_action(actions, "remove", "send it nothing more, and delete its address and secret", _remove)
    log = _add_action(actions, "deliveries", "list what was sent to it, the newest first", _deliveries)
    log.add_argument("--before", metavar="CURSOR", help="older ones, by the cursor that the last list ended with")
    _add_json(log)
    again = _add_action(actions, "redeliver", "send a message again: the same bytes, the same id", _redeliver, None)
    again.add_argument("delivery", metavar="DELIVERY", help="as 'gradcanary endpoints deliveries ID' lists it")


def _add_add(actions: Commands) -> None:
    command = _add_action(actions, "add", "send incidents to a webhook from now on; prints its secret once", _add, None)
    command.add_argument("address", metavar="URL", help="http://HOST[:PORT]/PATH of a receiver of Standard Webhooks")
    command.add_argument("--name", default="", help="shown in the list")
    command.add_argument("--min-severity", choices=SEVERITIES, default="warning", help="default: %(default)s")
    command.add_argument("--ended", action="store_true", help="send also that a run ended on an incident it knows")


def _add_set(actions: Commands) -> None:
    command = _add_action(actions, "set", "change an endpoint", _set)
    command.add_argument("--name", help="shown in the list")
    command.add_argument("--min-severity", choices=SEVERITIES)
    help_text = "send also that a run ended on an incident it knows; --no-ended: not any more"
    command.add_argument("--ended", dest="sends_ended", action=argparse.BooleanOptionalAction, help=help_text)
    state = command.add_mutually_exclusive_group()
    state.add_argument(
        "--enable",
        dest="enabled",
        action="store_true",
        default=None,
        help="send it the open incidents and all later ones",
    )
    state.add_argument("--disable", dest="enabled", action="store_false", default=None, help="send it nothing")


def _add_action(
    actions: Commands, name: str, text: str, run: Command, endpoint: str | None = "ID"
) -> argparse.ArgumentParser:
    command = console.add_command(actions, name, text, run, is_below=True)
    if endpoint is not None:
        command.add_argument("endpoint", type=int, metavar=endpoint, help="as 'gradcanary endpoints' lists it")
    return command


def _add_json(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print the collector's JSON")


def _list(arguments: argparse.Namespace, client: CollectorClient) -> None:
    found = client.request("GET", "/endpoints")
    if arguments.json:
        console.print_json(found)
    else:
        console.print_rows(endpoint_table(found["endpoints"]))


def _add(arguments: argparse.Namespace, client: CollectorClient) -> None:
    body = {"url": arguments.address, "name": arguments.name, "min_severity": arguments.min_severity}
    body["sends_ended"] = arguments.ended
    made = client.request("POST", "/endpoints", body)
    console.print_text(f"Endpoint {made['id']}: {endpoint_label(made)} gets {made['min_severity']} and above.")
    console.print_text(f"secret (shown once): {made['secret']}")
    console.print_text(f"Try it: gradcanary endpoints test {made['id']}")


def _test(arguments: argparse.Namespace, client: CollectorClient) -> int:
    return _print_outcome("The test", client.request("POST", f"/endpoints/{arguments.endpoint}/test"))


def _rotate(arguments: argparse.Namespace, client: CollectorClient) -> None:
    made = client.request("POST", f"/endpoints/{arguments.endpoint}/rotate")
    console.print_text(f"secret (shown once): {made['secret']}")
    until = to_minute(made["old_secret_until"])
    console.print_text(f"Until {until} UTC messages are signed with the old one, too.")


def _set(arguments: argparse.Namespace, client: CollectorClient) -> None:
    names = ("name", "min_severity", "sends_ended", "enabled")
    body = {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}
    if not body:
        raise ValueError("give what to change: --name, --min-severity, --ended, --enable or --disable")
    found = client.request("PATCH", f"/endpoints/{arguments.endpoint}", body)
    console.print_rows(endpoint_table([found]))


def _remove(arguments: argparse.Namespace, client: CollectorClient) -> None:
    client.request("DELETE", f"/endpoints/{arguments.endpoint}")
    console.print_text(f"Endpoint {arguments.endpoint} is removed; its deliveries stay with the incidents.")


def _deliveries(arguments: argparse.Namespace, client: CollectorClient) -> None:
    found = client.request("GET", f"/endpoints/{arguments.endpoint}/deliveries", before=arguments.before)
    if arguments.json:
        console.print_json(found)
        return
    console.print_rows(delivery_table(found["deliveries"]))
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


def endpoint_table(endpoints: Sequence[Json]) -> str:
    """Return a table with a line per endpoint, then the reason of each that is disabled or fails."""
    if not endpoints:
        return NO_ENDPOINTS
    head = ("ID", "STATE", "SINCE (UTC)", "ORIGIN", "SEVERITY", "LAST SUCCESS", "PENDING", "ENDPOINT")
    rows = [
        (
            str(each["id"]),
            state_of(each),
            to_minute(each["since"]),
            "command line" if each["origin"] == "operator" else "api",
            each["min_severity"],
            "-" if each["last_success"] is None else to_minute(each["last_success"]),
            str(each["pending"]),
            endpoint_label(each),
        )
        for each in endpoints
    ]
    return "\n".join([terminal.table(head, rows), *(line for each in endpoints for line in _trouble_lines(each))])


def state_of(endpoint: Json) -> str:
    """Return ``enabled``, ``failing`` or ``disabled``."""
    return "failing" if endpoint["state"] == "enabled" and endpoint["failing_since"] else str(endpoint["state"])


def endpoint_label(endpoint: Json) -> str:
    """Return the name of an endpoint, its address, or both."""
    return " ".join(part for part in (endpoint["name"], endpoint["url"]) if part) or endpoint["kind"]


def delivery_table(deliveries: Sequence[Json]) -> str:
    """Return a table with a line per delivery."""
    if not deliveries:
        return "Nothing was sent to it so far."
    head = ("DELIVERY", "QUEUED (UTC)", "RUN", "INCIDENT", "KIND", "STATE", "ATTEMPTS", "LAST ANSWER")
    rows = [
        (
            each["id"],
            to_minute(each["enqueued"]),
            each["run"],
            f"#{each['incident']}",
            each["kind"],
            each["state"],
            str(len(each["attempts"])),
            _last_answer(each),
        )
        for each in deliveries
    ]
    return terminal.table(head, rows)


def _trouble_lines(endpoint: Json) -> list[str]:
    if endpoint["state"] == "disabled":
        return [f"{endpoint['id']} is disabled: {endpoint['reason']}."]
    if endpoint["failing_since"]:
        return [
            f"{endpoint['id']} has failed since {to_minute(endpoint['failing_since'])} UTC: {endpoint['last_error']}."
        ]
    return []


def _last_answer(delivery: Json) -> str:
    last = delivery["attempts"][-1] if delivery["attempts"] else None
    if last is None:
        return "-"
    return last["error"] or (f"{last['status']} after {last['ms']} ms" if last["status"] else f"after {last['ms']} ms")
