"""``explain`` and ``runbook``: pages of docs/knowledge and docs/runbooks in the terminal.

``explain`` finds a page by its name, by a rule, or by a code of ``check``.

A code of ``check`` names its page itself.
"""

from __future__ import annotations

import difflib
import re
from itertools import chain
from typing import TYPE_CHECKING

from gradcanary import terminal
from gradcanary.cli import console
from gradcanary.cli.console import UsageError
from gradcanary.knowledge import FIX, Page, pages, runbook, runbooks

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Mapping, Sequence

    from gradcanary.cli.console import Commands


def names_of(found: Iterable[Page]) -> Mapping[str, list[str]]:
    """Return by page what ``explain`` takes for it: its own name, rules, and codes of ``check``."""
    from gradcanary.check.rules import RULES

    checks = [(rule.page, rule.code) for rule in RULES]
    return {
        page.name: list(dict.fromkeys([page.name, *page.rules, *(code for name, code in checks if name == page.name)]))
        for page in found
    }


def add_commands(commands: Commands) -> None:
    """Add ``explain`` and ``runbook``."""
    text = "a short page about a mistake, by its name, by a rule or by a code of check"
    command = commands.add_parser("explain", help=text, description=text)
    command.add_argument("name", nargs="?", metavar="NAME", help="without it: the list of pages")
    command.add_argument("--page", action="store_true", help="the whole page, with its script, in Markdown")
    command.set_defaults(run=_explain)
    text = "what to do about incidents of a rule: checks, causes, fixes by framework"
    command = commands.add_parser("runbook", help=text, description=text)
    command.add_argument("rule", nargs="?", metavar="RULE", help="without it: the list of rules")
    command.set_defaults(run=_print_runbook)


def _explain(arguments: argparse.Namespace) -> int:
    found = pages()
    names = names_of(found)
    if arguments.name is None:
        console.print_rows(page_table(found, names))
        return 0
    page = next((each for each in found if arguments.name in names[each.name]), None)
    if page is None:
        raise UsageError(f"gradcanary explain: {_refusal(arguments.name, [*chain.from_iterable(names.values())])}")
    if arguments.page:
        console.print_unwrapped(page.text.rstrip("\n"))
    else:
        console.print_text(page_text(page))
    return 0


def _print_runbook(arguments: argparse.Namespace) -> int:
    names = [page.name for page in runbooks()]
    if arguments.rule is None:
        console.print_text("\n".join([*names, "", "One of them: gradcanary runbook RULE"]))
        return 0
    page = runbook(arguments.rule)
    if page is None:
        raise UsageError(f"gradcanary runbook: {_refusal(arguments.rule, names, 'runbook')}")
    console.print_unwrapped(re.sub(r"<!--.*?-->\n", "", page.text).rstrip("\n"))
    return 0


def page_table(found: Iterable[Page], names: Mapping[str, Sequence[str]]) -> str:
    """Return a line for each page, with what else leads to it."""
    rows = [(page.name, page.title, ", ".join(names[page.name][1:])) for page in found]
    table = terminal.table(("NAME", "PAGE", "RULES AND CHECKS"), rows)
    return f"{table}\n\nOne of them: gradcanary explain NAME"


def page_text(page: Page) -> str:
    """Return title, summary, what to do, and where the page is."""
    fix = [f"  {line}" for line in page.fix.splitlines()]
    return "\n".join([page.title, "", page.summary, "", f"{FIX}:", *fix, "", f"Page: {page.path} (or add --page)"])


def _refusal(name: str, names: Sequence[str], command: str = "explain") -> str:
    close = difflib.get_close_matches(name, names, n=3)
    near = f" Close to it: {', '.join(close)}." if close else ""
    return f"there is no page about {name!r}.{near} 'gradcanary {command}' lists all"
