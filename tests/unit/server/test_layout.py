"""The folders of the collector: which may import which, and how large one may be (docs/contributing/server.md)."""

import ast
from pathlib import Path

SERVER = Path(__file__).parents[3] / "server" / "gradcanary_server"
PACKAGES = ("", "rules", "storage", "tsdb auth", "incidents", "ingest notify", "ops", "api", "mcp", "app")
"""From the ground up, "" for the modules beside the packages; those of one line do not know each other."""

RANKS = {name: rank for rank, names in enumerate(PACKAGES) for name in (names.split() or [""])}
MOST_FILES = 21
STRANGERS_OF_RULES = {"sqlalchemy", "fastapi", "starlette", "time", "datetime", "logging", "os", "threading"}


def package_of(dotted: str) -> str:
    """Return the package of a module, the module itself for ``app``, "" for the other modules beside the packages."""
    first, _, rest = dotted.partition(".")
    return first if rest or first == "app" else ""


def imports(path: Path) -> list[str]:
    """Return what a file imports, the collector's own modules without ``gradcanary_server.``."""
    found = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return [name.removeprefix("gradcanary_server.") for name in found]


def own(name: str) -> bool:
    """Return True if this is a name in the collector, as :func:`imports` gives it."""
    first = name.partition(".")[0]
    return (SERVER / first).is_dir() or (SERVER / f"{first}.py").exists()


def test_imports_point_down() -> None:
    found = []
    for path in sorted(SERVER.rglob("*.py")):
        module = ".".join(path.relative_to(SERVER).with_suffix("").parts)
        package = package_of(module)
        for name in filter(own, imports(path)):
            first = name.partition(".")[0]
            target = first if (SERVER / first).is_dir() or first == "app" else ""
            if target != package and RANKS[target] >= RANKS[package]:
                found.append(f"{module} imports {name}")
    assert found == []


def test_rules_are_pure() -> None:
    for path in (SERVER / "rules").glob("*.py"):
        roots = {name.partition(".")[0] for name in imports(path)}
        assert not roots & STRANGERS_OF_RULES, path.name


def test_a_folder_can_be_looked_through() -> None:
    folders = [SERVER, *(path for path in SERVER.iterdir() if path.is_dir() and path.name != "__pycache__")]
    counts = {folder.name: len(list(folder.glob("*.py"))) for folder in folders}
    assert {name: count for name, count in counts.items() if count > MOST_FILES} == {}
