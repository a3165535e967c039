"""The folders of the agent: which may import which, and how large one may be."""

import ast
from pathlib import Path

AGENT = Path(__file__).parent.parent / "agent" / "gradcanary"
MOST_FILES = 21
EDGES = {"cli": {"cli"}, "attach": {"attach", "cli", "session"}}
"""The packages at the edge of the agent, and the packages and top modules that may import each."""


def imports(path: Path) -> list[str]:
    """Return what a file imports, the agent's own modules without ``gradcanary.``."""
    found = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return [name.removeprefix("gradcanary.") for name in found if name.startswith("gradcanary.")]


def package_of(path: Path) -> str:
    """Return the package of a file, the module itself for one beside the packages."""
    return path.relative_to(AGENT).with_suffix("").parts[0]


def test_cli_and_attach_are_the_edge() -> None:
    found = [
        f"{path.relative_to(AGENT)} imports {name}"
        for path in sorted(AGENT.rglob("*.py"))
        for name in imports(path)
        if package_of(path) not in EDGES.get(name.partition(".")[0], {package_of(path)})
    ]
    assert found == []


def test_a_folder_can_be_looked_through() -> None:
    """The top folder is not checked yet: most of its modules still move into packages."""
    folders = [path for path in AGENT.iterdir() if path.is_dir() and path.name != "__pycache__"]
    counts = {folder.name: len(list(folder.glob("*.py"))) for folder in folders}
    assert {name: count for name, count in counts.items() if count > MOST_FILES} == {}
