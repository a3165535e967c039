"""Writes all that documents take from the code: ``make generated``."""

from collections.abc import Iterator
from pathlib import Path

from support.agent import loop_table
from support.documents import cli_reference, rules_table, runbooks, server_tree, settings_table

COMPLETED = (loop_table, rules_table, server_tree)
"""Each makes a part of its document; the rest is written by hand."""

WHOLE = (cli_reference, settings_table)


def documents() -> Iterator[tuple[Path, str]]:
    """Yield each document and its text as it should be; raises ValueError where a mark of its part is missing."""
    for each in WHOLE:
        yield each.DOCUMENT, each.page()
    for part in COMPLETED:
        yield part.DOCUMENT, part.complete(part.DOCUMENT.read_text("utf-8"))
    for rule in runbooks.CAUSES_OF_RULES:
        path = runbooks.FOLDER / f"{rule}.md"
        yield path, runbooks.complete(rule, path.read_text("utf-8"))


if __name__ == "__main__":
    for document, text in documents():
        if document.read_text("utf-8") != text:
            document.write_text(text, "utf-8")
            print(f"written: {document.name}")
