"""``gradcanary runs``: the list of runs, their notes, tags and names, the archive, deletion."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from gradcanary import terminal
from gradcanary.cli import console

if TYPE_CHECKING:
    from gradcanary.cli.console import CollectorClient, Command, Commands

MOST_PAGES = 50
"""Of two hundred runs each, which is what one answer has."""


def add_commands(commands: Commands) -> None:
    """Add the command and those below it; their ``run`` takes the parsed arguments and returns the exit status."""
    command = console.add_command(commands, "runs", "list runs, the one heard of last first; or change one", _list)
    command.add_argument("--named", metavar="TEXT", help="only those with this in their name")
    command.add_argument("--archived", action="store_true", help="those in the archive instead")
    command.add_argument("--json", action="store_true", help="as the collector answers it")
    below = command.add_subparsers(title="changes", metavar="CHANGE")
    note = _below(below, "note", "write a note on a run, for those who read it later", _note)
    note.add_argument("text", metavar="TEXT", help="'' takes it away")
    tag = _below(below, "tag", "add tags to a run, or take some away", _tag)
    tag.add_argument("tags", nargs="*", metavar="TAG")
    tag.add_argument("--remove", action="append", default=[], metavar="TAG", help="may be given several times")
    archive = _below(below, "archive", "take a run off the list; a new launch of it brings it back", _archive)
    archive.add_argument("--undo", action="store_true", help="put it back on the list")
    rename = _below(
        below, "rename", "give a run another name; what sends or asks under the old one reaches it", _rename
    )
    rename.add_argument("new", metavar="NEW")
    rename.add_argument(
        "--free", action="store_true", help="free its former names: who sends under one begins a new run"
    )
    delete = _below(below, "delete", "delete a run, its measurements and its incidents, for ever", _delete)
    delete.add_argument("--yes", action="store_true", help="that is meant")


def _below(below: Commands, name: str, text: str, run: Command) -> argparse.ArgumentParser:
    command = console.add_command(below, name, text, run, is_below=True)
    command.add_argument("name", metavar="RUN")
    return command


def _list(arguments: argparse.Namespace, client: CollectorClient) -> None:
    query = {"name_contains": arguments.named, "archived": "true" if arguments.archived else None}
    runs, after = client.pages("/runs", "runs", "after", MOST_PAGES, **query)
    if arguments.json:
        console.print_json({"runs": runs, "next": after})
        return
    console.print_text(_table(runs, terminal.width()))
    if after is not None:
        console.print_text("There are more: choose with --named.")


def _note(arguments: argparse.Namespace, client: CollectorClient) -> None:
    _change(arguments, client, note=arguments.text)


def _tag(arguments: argparse.Namespace, client: CollectorClient) -> None:
    if not arguments.tags and not arguments.remove:
        raise ValueError("name tags to add, or one to take away with --remove")
    known = client.request("GET", _path(arguments.name))["tags"]
    kept = [tag for tag in dict.fromkeys([*known, *arguments.tags]) if tag not in arguments.remove]
    _change(arguments, client, tags=kept)


def _archive(arguments: argparse.Namespace, client: CollectorClient) -> None:
    _change(arguments, client, archived=not arguments.undo)


def _rename(arguments: argparse.Namespace, client: CollectorClient) -> None:
    _change(arguments, client, name=arguments.new, **({"aliases": []} if arguments.free else {}))


def _delete(arguments: argparse.Namespace, client: CollectorClient) -> None:
    if not arguments.yes:
        raise ValueError(f"this deletes {arguments.name} with all that was measured of it: say --yes if that is meant")
    client.request("DELETE", _path(arguments.name))
    console.print_text(f"{arguments.name} is deleted; what still sends to it is told to stop.")


def _change(arguments: argparse.Namespace, client: CollectorClient, **wish: object) -> None:
    console.print_text(_sentence(client.request("PATCH", _path(arguments.name), wish)))


def _path(name: str) -> str:
    return f"/runs/{quote(name, safe='')}"


def _sentence(run: Any) -> str:  # noqa: ANN401 -- JSON
    said = [run["run"], *([f"also {', '.join(run['aliases'])}"] if run["aliases"] else [])]
    said += [*(["archived"] if run["archived"] else []), *(f"[{tag}]" for tag in run["tags"])]
    note = " ".join(run["note"].split())
    return f"{'  '.join(said)}{'  ' + note if note else ''}"


def _table(runs: list[Any], width: int | None) -> str:
    if not runs:
        return "No runs."
    head = ("RUN", "STATE", "STEP", "LAST HEARD (UTC)", "WORST", "TAGS", "NOTE")
    rows = [
        (
            each["run"],
            each["state"],
            "-" if each["step"] is None else f"{each['step']:,}",
            console.minute(each["last_seen"]),
            each["worst"] or ("-" if each["severity_at_end"] is None else f"{each['severity_at_end']} (ended)"),
            ", ".join(each["tags"]) or "-",
            " ".join(each["note"].split()),
        )
        for each in runs
    ]
    return terminal.table(head, rows, width)
