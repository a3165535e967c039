"""The table of docs/reference/rules.md: the words of ``GET /rules``, with the default numbers."""

from pathlib import Path

from gradcanary_server.rules.config import Rules
from gradcanary_server.rules.descriptions import describe
from support.documents import between

DOCUMENT = Path(__file__).parents[3] / "docs" / "reference" / "rules.md"
BEGIN, END = "<!-- what each rule looks for: make generated -->\n", "<!-- end of the table -->\n"


def complete(text: str) -> str:
    """Return the document with the present table between its two marks; the first case of a rule has its name."""
    lines = ["| rule | fires when | severity |", "|---|---|---|"]
    for name, described in describe(Rules()).items():
        for place, case in enumerate(described["cases"]):
            head = f"{name}<br>{described['means']}" if place == 0 else ""
            lines.append(f"| {head} | {case['when']} | {case['severity']} |")
    return between(text, BEGIN, END, "\n".join(lines) + "\n")
