"""Makes the tree of modules in docs/contributing/server.md: ``python tests/support/server_tree.py --write``."""

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SERVER = ROOT / "server" / "gradcanary_server"
DOCUMENT = ROOT / "docs" / "contributing" / "server.md"
BEGIN, END = "<!-- tree: python tests/support/server_tree.py --write -->\n", "<!-- end of the tree -->\n"


def render_tree() -> str:
    """Return one line for each package and module, with the first line of its docstring."""
    folders = [SERVER, *sorted(path.parent for path in SERVER.rglob("*/__init__.py"))]
    return "```\n" + "\n".join(_folder(folder) for folder in folders) + "```\n"


def with_tree(text: str) -> str:
    """Return a document with the present tree between its two marks."""
    before, _, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    return before + BEGIN + render_tree() + end + after


def _folder(folder: Path) -> str:
    head = f"{folder.relative_to(SERVER.parent)}/"
    modules = sorted(path for path in folder.glob("*.py") if path.name != "__init__.py")
    lines = [f"{head:29} {_first_line(folder / '__init__.py')}".rstrip()]
    lines += [f"    {path.name:25} {_first_line(path)}".rstrip() for path in modules]
    return "\n".join(lines) + "\n"


def _first_line(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    return docstring.partition("\n")[0]


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    DOCUMENT.write_text(with_tree(DOCUMENT.read_text("utf-8")), "utf-8")
