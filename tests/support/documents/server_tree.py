"""The tree of modules in docs/contributing/server.md."""

import ast
from pathlib import Path

from support.documents import between

ROOT = Path(__file__).parents[3]
SERVER = ROOT / "server" / "gradcanary_server"
DOCUMENT = ROOT / "docs" / "contributing" / "server.md"
BEGIN, END = "<!-- tree: make generated -->\n", "<!-- end of the tree -->\n"


def render_tree() -> str:
    """Return one line for each package and module, with the first line of its docstring."""
    folders = [SERVER, *sorted(path.parent for path in SERVER.rglob("*/__init__.py"))]
    return "```\n" + "\n".join(_folder(folder) for folder in folders) + "```\n"


def complete(text: str) -> str:
    """Return a document with the present tree between its two marks."""
    return between(text, BEGIN, END, render_tree())


def _folder(folder: Path) -> str:
    head = f"{folder.relative_to(SERVER.parent)}/"
    modules = sorted(path for path in folder.glob("*.py") if path.name != "__init__.py")
    lines = [f"{head:29} {_first_line(folder / '__init__.py')}".rstrip()]
    lines += [f"    {path.name:25} {_first_line(path)}".rstrip() for path in modules]
    return "\n".join(lines) + "\n"


def _first_line(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    return docstring.partition("\n")[0]
