"""``gradcanary runs``: the list of runs, their notes, tags and names, the archive, deletion."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from gradcanary import terminal
from gradcanary.cli import console
from gradcanary.export.collector import run_path

if TYPE_CHECKING:
    from gradcanary.cli.console import Command, Commands
    from gradcanary.export.collector import CollectorClient

MOST_PAGES = 50
"""Of two hundred runs each, which is what one answer has."""


def add_commands(commands: Commands) -> None:
    """Add ``runs``, which prints the list, and its changes."""
    command = console.add_command(commands, "runs", "list runs, the last active one first; or change one", _list)
    command.add_argument("--named", metavar="TEXT", help="only runs whose name contains this")
    command.add_argument("--archived", action="store_true", help="list the archived runs instead")
    command.add_argument("--json", action="store_true", help="print the collector's JSON")
    changes = command.add_subparsers(title="changes", metavar="CHANGE")
    note = _add_change(changes, "note", "write a note on a run", _note)
    note.add_argument("text", metavar="TEXT", help="'' removes it")
    tag = _add_change(changes, "tag", "add tags to a run, or remove some", _tag)
    tag.add_argument("tags", nargs="*", metavar="TAG")
    tag.add_argument("--remove", action="append", default=[], metavar="TAG", help="may be given several times")
    archive = _add_change(changes, "archive", "take a run off the list; a new launch of it brings it back", _archive)
    archive.add_argument("--undo", action="store_true", help="put it back on the list")
    rename = _add_change(changes, "rename", "rename a run; requests under the old name still reach it", _rename)
    rename.add_argument("new", metavar="NEW")
    rename.add_argument(
        "--free", action="store_true", help="free its former names: a training that sends under one begins a new run"
    )
    delete = _add_change(changes, "delete", "delete a run, its measurements and its incidents, for ever", _delete)
    delete.add_argument("--yes", action="store_true", help="confirm the deletion")


def _add_change(changes: Commands, name: str, text: str, run: Command) -> argparse.ArgumentParser:
    command = console.add_command(changes, name, text, run, is_below=True)
    command.add_argument("name", metavar="RUN")
    return command


def _list(arguments: argparse.Namespace, client: CollectorClient) -> None:
    query = {"name_contains": arguments.named, "archived": "true" if arguments.archived else None}
    runs, after = client.pages("/runs", "runs", "after", MOST_PAGES, **query)
    if arguments.json:
        console.print_json({"runs": runs, "next": after})
        return
    console.print_rows(_table(runs))
    if after is not None:
        console.print_text("There are more runs: choose with --named.")


def _note(arguments: argparse.Namespace, client: CollectorClient) -> None:
    _change(arguments, client, note=arguments.text)


def _tag(arguments: argparse.Namespace, client: CollectorClient) -> None:
    if not arguments.tags and not arguments.remove:
        raise ValueError("give tags to add, or one to remove with --remove")
    tags = client.request("GET", run_path(arguments.name))["tags"]
    kept = [tag for tag in dict.fromkeys([*tags, *arguments.tags]) if tag not in arguments.remove]
    _change(arguments, client, tags=kept)


def _archive(arguments: argparse.Namespace, client: CollectorClient) -> None:
    _change(arguments, client, archived=not arguments.undo)


def _rename(arguments: argparse.Namespace, client: CollectorClient) -> None:
    _change(arguments, client, name=arguments.new, **({"aliases": []} if arguments.free else {}))


def _delete(arguments: argparse.Namespace, client: CollectorClient) -> None:
    if not arguments.yes:
        raise ValueError(f"this deletes {arguments.name} and all its measurements: add --yes to confirm")
    client.request("DELETE", run_path(arguments.name))
    console.print_text(f"{arguments.name} is deleted; a training that still sends to it will stop sending.")


def _change(arguments: argparse.Namespace, client: CollectorClient, **changes: object) -> None:
    console.print_text(_run_line(client.request("PATCH", run_path(arguments.name), changes)))


def _run_line(run: Any) -> str:  # noqa: ANN401 -- JSON
    parts = [run["run"]]
    if run["aliases"]:
        parts.append(f"also {', '.join(run['aliases'])}")
    if run["archived"]:
        parts.append("archived")
    parts += [f"[{tag}]" for tag in run["tags"]]
    parts.append(" ".join(run["note"].split()))
    return "  ".join(filter(None, parts))


def _table(runs: list[Any]) -> str:
    if not runs:
        return "No runs."
    head = ("RUN", "STATE", "STEP", "LAST SEEN (UTC)", "WORST", "TAGS", "NOTE")
    rows = [
        (
            each["run"],
            each["state"],
            "-" if each["step"] is None else f"{each['step']:,}",
            console.to_minute(each["last_seen"]),
            each["worst"] or ("-" if each["severity_at_end"] is None else f"{each['severity_at_end']} (ended)"),
            ", ".join(each["tags"]) or "-",
            " ".join(each["note"].split()),
        )
        for each in runs
    ]
    return terminal.table(head, rows)
