"""docs/reference/cli.md, made from the parser."""

import argparse
from collections.abc import Iterator
from pathlib import Path

from gradcanary import cli

DOCUMENT = Path(__file__).parents[3] / "docs" / "reference" / "cli.md"

HEAD = """\
# The command line

`gradcanary COMMAND --help` prints the same. Commands that ask a collector take `--url` and `--token`, or
`GRADCANARY_URL` and `GRADCANARY_TOKEN` ([settings](environment.md)). Exit status: 0 fine, 1 failed, 2 wrong arguments.
Made from the parser by `make generated`.
"""


def page() -> str:
    """Return the whole document."""
    return "\n".join([HEAD, *_commands("gradcanary", cli.parser(), 2)])


def _commands(name: str, parser: argparse.ArgumentParser, level: int) -> Iterator[str]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for command, below in action.choices.items():
                yield from _command(f"{name} {command}", below, helps.get(command, ""), level)


def _command(name: str, parser: argparse.ArgumentParser, text: str, level: int) -> Iterator[str]:
    yield f"{'#' * level} `{name}`\n"
    yield f"{_sentence(text or parser.description or '')}\n"
    if rows := [row for action in parser._actions if (row := _row(action))]:
        yield "| argument | |\n|---|---|\n" + "\n".join(rows) + "\n"
    yield from _commands(name, parser, level + 1)


def _row(action: argparse.Action) -> str:
    kinds = argparse._HelpAction | argparse._SubParsersAction
    if isinstance(action, kinds) or action.help == argparse.SUPPRESS:
        return ""
    value = _value(action)
    named = ", ".join(action.option_strings)
    shown = f"{named} {value}".strip() if named else value
    text = _filled(action)
    return f"| `{shown}` | {text}{', needed' if action.required and named else ''} |"


def _value(action: argparse.Action) -> str:
    if action.nargs == 0:
        return ""
    if action.choices is not None:
        return "{" + ",".join(map(str, action.choices)) + "}"
    name = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    return {"?": f"[{name}]", "*": f"[{name} ...]", "+": f"{name} ..."}.get(str(action.nargs), name)


def _filled(action: argparse.Action) -> str:
    """Return the help with its default in it, as one cell of a table."""
    home = str(Path.home())
    words = {"default": action.default, "prog": "gradcanary"}
    text = " ".join((action.help or "").replace("%%", "%").split())
    for key, value in words.items():
        text = text.replace(f"%({key})s", str(value))
    return text.replace(home, "~").replace("|", "\\|")


def _sentence(text: str) -> str:
    text = f"{text[:1].upper()}{text[1:]}"
    return text if text.endswith((".", "?")) or not text else f"{text}."
