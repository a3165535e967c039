"""The table of training loops in docs/reference/training-loops.md, made from the ``loop`` marks of tests.

Of the marks with the same name one at most has more words than that; the others only add a test to the row.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from support.documents import between

TESTS = Path(__file__).parents[2]
FOLDERS = ("component/agent", "acceptance/trainings")
DOCUMENT = TESTS.parent / "docs" / "reference" / "training-loops.md"
BEGIN, END = "<!-- from here: make generated -->\n", "<!-- to here -->\n"


@dataclass
class Loop:
    """A row; ``phase`` is that of the values, ``late`` says which of them are ``post_clip`` instead."""

    name: str
    phase: str = "accumulated"
    late: str = ""
    k: str = "right"
    names: str = "model's"
    caveat: str = ""
    tests: list[str] = field(default_factory=list)

    @property
    def phases(self) -> set[str]:
        """The phases that a test of this loop may see."""
        return {each.strip() for each in self.phase.split(",")} | ({"post_clip"} if self.late else set())

    def row(self) -> str:
        phase = f"`{self.phase}`" + (f"; `post_clip`: {self.late}" if self.late else "")
        tests = ", ".join(f"`{each}`" for each in self.tests)
        return f"| {self.name} | {phase} | {self.k} | {self.names} | {self.caveat} | {tests} |\n"


def loops() -> dict[str, Loop]:
    """Return the loops by name, in alphabetical order; raises ValueError where one is described twice."""
    found: dict[str, Loop] = {}
    described: set[str] = set()
    for path in sorted(
        (path for folder in FOLDERS for path in (TESTS / folder).rglob("test_*.py")), key=lambda path: path.name
    ):
        for name, words in _marks(path):
            loop = found.setdefault(name, Loop(name))
            if words and name in described:
                raise ValueError(f"{path.name} describes {name!r} once more")
            described |= {name} if words else set()
            vars(loop).update(words)
            loop.tests += [] if path.stem in loop.tests else [path.stem]
    return dict(sorted(found.items(), key=lambda item: item[0].casefold()))


def table() -> str:
    """Return the table as Markdown."""
    head = "| loop | phase | K | names | what to know | verified by |\n|---|---|---|---|---|---|\n"
    return head + "".join(loop.row() for loop in loops().values())


def complete(text: str) -> str:
    """Return the document with the table between its two marks."""
    return between(text, BEGIN, END, table())


def _marks(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.loop":
            (name,) = map(ast.literal_eval, node.args)
            yield name, {word.arg or "": ast.literal_eval(word.value) for word in node.keywords}
