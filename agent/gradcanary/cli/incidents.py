"""``incidents``, ``ack``, ``silence``, ``silences``, ``unsilence``: what is wrong, and quiet until morning.

The commands come first, then the text that they print of the collector's JSON, which is pure.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from gradcanary import terminal
from gradcanary.cli import console
from gradcanary.display.verdict import SEVERITIES
from gradcanary.export.collector import CollectorError
from gradcanary.knowledge import page_of
from gradcanary.wording import number

if TYPE_CHECKING:
    from gradcanary.cli.console import Commands
    from gradcanary.export.collector import CollectorClient

Json = Mapping[str, Any]

MOST_PAGES = 10
"""With a hundred incidents each."""

SHOWN_LAYERS = 20

RESOLUTIONS = {
    "recovered": "recovered",
    "run_finished": "run ended",
    "run_deleted": "run deleted",
    "rule_changed": "rule changed",
    "layer_gone": "parameter gone",
    "resumed": "resumed",
    "rebaselined": "new baseline",
}


def add_commands(commands: Commands) -> None:
    """Add ``incidents``, ``ack``, ``silence``, ``silences`` and ``unsilence``."""
    _add_incidents(commands)
    _add_ack(commands)
    _add_silence(commands)
    command = console.add_command(commands, "silences", "list the silences in force", _print_silences)
    command.add_argument("--json", action="store_true", help="print the collector's JSON")
    command = console.add_command(commands, "unsilence", "end a silence now; what still fires is sent then", _unsilence)
    command.add_argument("silence", type=int, metavar="ID", help="as 'gradcanary silences' lists it")


def _add_incidents(commands: Commands) -> None:
    command = console.add_command(
        commands, "incidents", "list incidents, the worst first, or show one in full", _print_incidents
    )
    command.add_argument("incident", type=int, nargs="?", metavar="ID", help="show this one in full")
    command.add_argument("--run", dest="name", metavar="NAME", help="only this run")
    command.add_argument("--state", choices=("open", "resolved", "ended"), help="only this state")
    command.add_argument(
        "--since", type=_start_of_span, metavar="TIME", help="opened since: 2h, 3d, or 2030-01-31T12:00:00Z"
    )
    command.add_argument("--json", action="store_true", help="print the collector's JSON")


def _add_ack(commands: Commands) -> None:
    command = console.add_command(
        commands, "ack", "acknowledge an incident: no reminders, no messages when it grows", _ack
    )
    command.add_argument("incident", type=int, metavar="ID")
    command.add_argument("--note", help="shown with it (default: the note that it has)")
    command.add_argument("--by", default=None, help="your name (default: that of the token, else of your user)")
    command.add_argument(
        "--new-baseline",
        action="store_true",
        help="accept the present values as normal (a new baseline)",
    )


def _add_silence(commands: Commands) -> None:
    command = console.add_command(
        commands, "silence", "send nothing about an incident, or about some parameters, for a while", _silence
    )
    command.add_argument("incident", type=int, nargs="?", metavar="ID", help="silence its rule in its run")
    command.add_argument("--run", dest="name", metavar="NAME", help="a run, or several with * and ?; '*' is every run")
    command.add_argument("--rule", help="only this rule")
    command.add_argument("--match", metavar="REGEX", help="only parameters whose name contains a match")
    ends = command.add_mutually_exclusive_group()
    ends.add_argument(
        "--for", dest="until", type=_end_of_span, metavar="TIME", help="30m, 8h, 3d; this or --until is needed"
    )
    ends.add_argument("--until", metavar="TIME", help="2030-01-31T12:00:00Z")
    command.add_argument("--note", default="", help="shown with it")
    command.add_argument("--by", default=None, help="your name (default: that of the token, else of your user)")


def _print_incidents(arguments: argparse.Namespace, client: CollectorClient) -> None:
    if arguments.incident is not None:
        _print_incident(arguments, client)
    else:
        _print_list(arguments, client)


def _print_incident(arguments: argparse.Namespace, client: CollectorClient) -> None:
    incident = client.request("GET", f"/incidents/{arguments.incident}")
    if arguments.json:
        console.print_json(incident)
    else:
        console.print_text(incident_text(incident))


def _print_list(arguments: argparse.Namespace, client: CollectorClient) -> None:
    query = {"run": arguments.name, "state": arguments.state, "since": arguments.since}
    with client.nearest_names(arguments.name, console.LISTS_RUNS):
        incidents, before = client.pages("/incidents", "incidents", "before", MOST_PAGES, **query)
    incidents = worst_first(incidents)
    if arguments.json:
        console.print_json({"incidents": incidents, "next": before})
        return
    console.print_rows(incident_table(incidents))
    if before is not None:
        console.print_text("There are older incidents: choose with --run, --state or --since.")


def _ack(arguments: argparse.Namespace, client: CollectorClient) -> None:
    body = {"note": arguments.note, "new_baseline": arguments.new_baseline}
    found = client.change(f"/incidents/{arguments.incident}/ack", body, arguments.by)
    what = f"{found['rule']} in {found['run']}, {state_of({**found, 'acked': None})}"
    console.print_text(f"#{found['id']} is acked by {found['acked']['by']}: {what}. {found['summary']}")


def _silence(arguments: argparse.Namespace, client: CollectorClient) -> None:
    name, rule = arguments.name, arguments.rule
    if arguments.incident is None and name is None:
        raise ValueError("give the ID of an incident, or runs with --run ('*' for every one)")
    if arguments.incident is not None and name is not None:
        both = (f"gradcanary silence {what} --for 8h" for what in (arguments.incident, f"--run {shlex.quote(name)}"))
        raise ValueError(f"give either the ID or --run, for an incident has one run: {', or '.join(both)}")
    if arguments.until is None:
        raise ValueError("give its end with --for 8h or --until 2030-01-31T12:00:00Z: each silence ends")
    hint = ""
    if arguments.incident is not None:
        if rule is not None:
            raise ValueError("--rule goes with --run: an incident has one rule")
        found = client.request("GET", f"/incidents/{arguments.incident}")
        name, rule = found["run"], found["rule"]
        hint = hint_if_resolved(found)
    body = {"run": name, "rule": rule, "match": arguments.match, "until": arguments.until, "note": arguments.note}
    try:
        made = client.change("/silences", body, arguments.by)
    except CollectorError as error:
        raise _explained(error, arguments) from error
    hides = hidden_incidents(made) or "no incident that is open now"
    silence = f"Silence {made['id']} until {console.to_minute(made['until'])} UTC hides {hides}."
    console.print_text(f"{silence}{hint} End it: gradcanary unsilence {made['id']}")


def _explained(error: CollectorError, arguments: argparse.Namespace) -> Exception:
    """Return the refusal of a silence in terms of the command's options, with what would work."""
    if error.field == "rule":
        names = ", ".join(re.findall(r"'(\w+)'", str(error)))
        return ValueError(f"there is no rule {arguments.rule!r}: --rule takes one of {names}")
    if error.field == "match":
        return ValueError(f"--match {arguments.match!r}: {error} An expression that works: --match 'lora_[AB]'")
    return error


def _print_silences(arguments: argparse.Namespace, client: CollectorClient) -> None:
    found = client.request("GET", "/silences")
    if arguments.json:
        console.print_json(found)
    else:
        console.print_rows(silence_table(found["silences"]))


def _unsilence(arguments: argparse.Namespace, client: CollectorClient) -> None:
    client.request("DELETE", f"/silences/{arguments.silence}")
    console.print_text(f"Silence {arguments.silence} is over.")


def _end_of_span(text: str) -> str:
    """Return the end of a time span that begins now, RFC 3339."""
    return _rfc3339(datetime.now(timezone.utc) + console.parse_time_span(text))


def _start_of_span(text: str) -> str:
    """Return the beginning of a time span that ends now, RFC 3339; a time is returned as it is."""
    if re.fullmatch(r"[0-9]+[a-z]", text):
        return _rfc3339(datetime.now(timezone.utc) - console.parse_time_span(text))
    try:
        datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time: 2h, 3d, or 2030-01-31T12:00:00Z") from error
    return text


def _rfc3339(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def worst_first(incidents: Sequence[Json]) -> list[Json]:
    """Return the open incidents first, then by severity, then the newest first."""

    def badness(each: Json) -> tuple[bool, int, int]:
        return each["state"] == "open", SEVERITIES.index(each["severity"]), each["id"]

    return sorted(incidents, key=badness, reverse=True)


def incident_table(incidents: Sequence[Json]) -> str:
    """Return a table with a line per incident, and the numbers of open and resolved ones."""
    if not incidents:
        return "No incidents."
    head = ("ID", "SEVERITY", "STATE", "RUN", "RULE", "PARAMETERS", "OPENED (UTC)", "WHAT")
    rows = [
        (
            str(each["id"]),
            each["severity"],
            state_of(each),
            each["run"],
            each["rule"],
            layer_count(each),
            console.to_minute(each["opened"]),
            each["summary"],
        )
        for each in incidents
    ]
    return f"{terminal.table(head, rows)}\n\n{_count_line(incidents)} One of them in full: gradcanary incidents ID"


def _count_line(incidents: Sequence[Json]) -> str:
    opened = sum(each["state"] == "open" for each in incidents)
    ended = sum(each["state"] == "ended" for each in incidents)
    by_end = f", {ended} ended" if ended else ""
    return f"{opened} open, {len(incidents) - opened - ended} resolved{by_end}."


def state_of(incident: Json) -> str:
    """Return ``open``, ``open, acked``, ``open, silenced``, ``ended``, ``resolved``, ``resolved: rule changed``."""
    if incident["state"] != "open":
        how = RESOLUTIONS.get(incident["resolution"], incident["resolution"])
        is_plain = incident["state"] == "ended" or how in (None, "recovered")
        return str(incident["state"]) if is_plain else f"resolved: {how}"
    silenced = incident.get("silenced")
    marks = ["acked"] if incident["acked"] else []
    if silenced:
        marks.append("silenced" if silenced["members"] == silenced["firing"] else "partly silenced")
    return ", ".join(["open", *marks])


def hint_if_resolved(incident: Json) -> str:
    """Return the effect of a silence for an incident that is not open; empty for an open one."""
    if incident["state"] == "open":
        return ""
    return f" #{incident['id']} is {state_of(incident)}: this holds for what its rule finds from now on."


def layer_count(incident: Json) -> str:
    """Return ``18/300``: firing layers (those that ever fired, if it is over) of all in the run.

    ``all`` for an incident of the whole run, ``1/12 series`` for one of a metric.
    """
    counts = incident["counts"]
    if not counts["ever"]:
        return "all"
    noun = " series" if incident["rule"] == "metric" else ""
    return f"{counts['firing' if incident['state'] == 'open' else 'ever']}/{counts['layers']}{noun}"


def incident_text(incident: Json) -> str:
    """Return all of one incident: the parts of its explanation in order, then layers and deliveries."""
    parts, fix = incident["explanation"], incident["fix"]
    lines = [
        f"#{incident['id']} {incident['rule']} in {incident['run']}: {incident['severity']}, {state_of(incident)}",
        parts["what"],
        _since_line(incident),
        *_related_lines(incident),
        *_ack_and_silence_lines(incident),
        "",
        f"Do first{' (' + fix['framework'] + ')' if fix['framework'] else ''}: {parts['do_first']}",
        *(f"    {line}" for line in fix["code"].splitlines()),
        "",
        f"Why: {parts['why']}",
        *(f"  - {text}" for text in parts["evidence"][1:]),  # why begins with the first
        *_frame_lines(incident.get("crash")),
        *_more_lines(parts["more"].removesuffix(fix["code"]).strip()),
        *([f"About this: gradcanary explain {incident['rule']}"] if page_of(incident["rule"]) else []),
        f"Runbook: gradcanary runbook {incident['rule']}",
        *_layer_lines([each for each in incident["layers"] if each["layer"] is not None or each.get("metric")]),
        *_delivery_lines(incident["deliveries"]),
        "",
        incident["url"],
    ]
    return "\n".join(lines)


def silence_table(silences: Sequence[Json]) -> str:
    """Return a table of silences."""
    if not silences:
        return "No silences: all notifications are sent."
    head = ("ID", "RUN", "RULE", "PARAMETERS", "UNTIL (UTC)", "BY", "HIDES", "NOTE")
    rows = [
        (
            str(each["id"]),
            each["run"],
            each["rule"] or "all",
            each["match"] or "all",
            console.to_minute(each["until"]),
            each["by"],
            hidden_incidents(each) or "-",
            " ".join(each["note"].split()),
        )
        for each in silences
    ]
    return terminal.table(head, rows)


def hidden_incidents(silence: Json) -> str:
    """Return ``#31, #32``: the open incidents that a silence hides."""
    return ", ".join(f"#{number}" for number in silence["incidents"])


def _more_lines(text: str) -> list[str]:
    return ["", f"More: {text}"] if text else []


def _related_lines(incident: Json) -> list[str]:
    cause, others = incident["caused_by"], incident["also"]
    lines = [] if cause is None else [f"Caused by #{cause}."]
    return [*lines, *([f"Same fault: {', '.join(f'#{number}' for number in others)}."] if others else [])]


def _since_line(incident: Json) -> str:
    text = f"Since {incident['explanation']['since']}"
    if incident["reopened"]:
        text += f", reopened {incident['reopened']} times" if incident["reopened"] > 1 else ", reopened once"
    if incident["resolved_step"] is not None:
        text += f"; {incident['state']} at step {incident['resolved_step']:,}"
    return f"{text}."


def _ack_and_silence_lines(incident: Json) -> list[str]:
    ack, silenced = incident["acked"], incident.get("silenced")
    lines = []
    if ack:
        note = " ".join(ack["note"].split())
        lines.append(f"Acked by {ack['by']}, {console.to_minute(ack['at'])} UTC{': ' + note if note else '.'}")
    if silenced:
        noun = "series" if incident["rule"] == "metric" else "parameters"
        some = f", {silenced['members']} of {silenced['firing']} {noun}"
        part = "" if silenced["members"] == silenced["firing"] else some
        lines.append(f"Silenced until {console.to_minute(silenced['until'])} UTC{part}.")
    return lines


def _frame_lines(crash: Json | None) -> list[str]:
    """Return the frames of the exception that ended the training, the innermost first."""
    return [f"    {frame}" for frame in crash["frames"]] if crash else []


def _layer_lines(members: Sequence[Json]) -> list[str]:
    if not members:
        return []
    rows = [(each["name"], *_levels(each), _step_span(each)) for each in members[:SHOWN_LAYERS]]
    more = len(members) - len(rows)
    shown = terminal.table(("SERIES" if members[0].get("metric") else "PARAMETER", "BASELINE", "VALUE", "STEPS"), rows)
    return ["", shown, *([f"and {more} more"] if more else [])]


def _levels(member: Json) -> tuple[str, str]:
    """Return the baseline and the value of a layer; of one that seldom has a gradient they are counts of samples."""
    if member["evidence"] == "sporadic" and member["value"] is not None:
        return f"every {member['baseline']:,.0f} samples", f"none in {member['value']:,.0f}"
    return number(member["baseline"]), number(member["value"])


def _step_span(member: Json) -> str:
    until = member["until_step"]
    return f"since {member['since_step']:,}" if until is None else f"{member['since_step']:,} to {until:,}"


def _delivery_lines(deliveries: Sequence[Json]) -> list[str]:
    latest = {each["endpoint"]: each for each in deliveries}
    lines = []
    for each in latest.values():
        trouble = next((tried["error"] for tried in reversed(each["attempts"]) if tried["error"]), None)
        why = f" ({trouble})" if trouble and each["state"] != "delivered" else ""
        name = f" ({each['name']})" if each["name"] else ""
        lines.append(f"Endpoint {each['endpoint']}{name}: {each['kind']} {each['state']}{why}")
    return ["", *(lines or ["Nothing was sent about it so far."])]
