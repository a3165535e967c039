"""The folders of the dashboard: which may import which, how large one may be, and which do I/O."""

import ast
from collections.abc import Iterator
from pathlib import Path

DASHBOARD = Path(__file__).parents[3] / "dashboard" / "gradcanary_dashboard"

BELOW = {
    "text": "",
    "analysis": "text",
    "address": "text analysis",
    "figures": "text analysis address",
    "collector": "text analysis address",
    "components": "text analysis address figures",
    "exports": "text analysis address figures collector",
    "web": "collector",
    "pages.settings": "text analysis address figures collector components",
    "pages": "text analysis address figures collector components pages.settings",
    "routes": "text analysis address figures collector components exports web pages.settings pages",
    "actions": "text analysis address figures collector components web pages.settings",
    "shell": "components web",
    "callbacks": "collector components web pages actions",
    "app": "collector web pages routes actions shell callbacks",
    "__main__": "app",
    "process": "collector app",
}
"""What a folder, or a module beside the folders, may import: folders and modules further up in this table."""

UPWARD = {
    "components.banners imports collector.errors": "the banner of an outage differs by the kind of error; no question",
}
"""Imports that the table does not allow, each with its reason."""

DOES_IO = {"collector", "routes", "web", "actions"}
"""The collector is asked in the first; the others have clocks, files, threads and streams."""

IO_MODULES = {"asyncio", "concurrent", "fastapi", "httpx", "logging", "os", "pathlib", "socket", "ssl", "starlette"}
IO_MODULES |= {"subprocess", "threading", "time", "urllib.request", "uvicorn"}
IO_CALLS = {"open", "now", "read_bytes", "read_text", "write_bytes", "write_text"}

IO_ELSEWHERE = {
    "app uses fastapi": "composition: the pages are put onto a server",
    "app uses starlette": "as fastapi",
    "app uses ssl": "the type of an argument",
    "__main__ uses os": "the command line: token, CA file and hosts are in the environment",
    "__main__ uses ssl": "the CA file becomes a context",
    "__main__ uses starlette": "the command line names the hosts that are believed",
    "__main__ uses uvicorn": "the command line serves the app",
    "process uses os": "a process of its own is nice",
    "process uses socket": "it serves the socket that it inherits",
    "process uses threading": "it waits for the end of its collector",
    "process uses uvicorn": "it serves the app",
}
"""I/O of other modules, each with its reason."""

MOST_FILES = 21


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(DASHBOARD.rglob("*.py")):
        name = ".".join(path.relative_to(DASHBOARD).with_suffix("").parts)
        if name != "__init__":
            yield name.removesuffix(".__init__"), ast.parse(path.read_text("utf-8"))


def folder_of(module: str) -> str:
    """Return the folder of a module, or the module itself if it lies beside the folders."""
    first, *rest = module.split(".")
    return "pages.settings" if first == "pages" and rest[:1] == ["settings"] else first


def imported(tree: ast.Module) -> Iterator[str]:
    """Yield the full names of what a file imports: at its top, for annotations, and in functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def own_imports(tree: ast.Module) -> Iterator[str]:
    """Yield the modules of the dashboard that a file imports."""
    for name in imported(tree):
        package, _, rest = name.partition(".")
        if package == "gradcanary_dashboard":
            is_module = DASHBOARD.joinpath(*rest.split(".")).with_suffix(".py").exists()
            yield rest if is_module else rest.rpartition(".")[0]


def io_of(tree: ast.Module) -> Iterator[str]:
    """Yield the modules of I/O that a file imports, and the calls that read a clock or a file."""
    for name in imported(tree):
        yield from (each for each in IO_MODULES if name == each or name.startswith(f"{each}."))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if name in IO_CALLS:
                yield f"{name}()"


def test_the_table_of_folders_has_no_circle() -> None:
    above: set[str] = set()
    for folder, below in BELOW.items():
        assert set(below.split()) <= above, folder
        above.add(folder)


def test_imports_point_down() -> None:
    found = {
        f"{importer} imports {name}"
        for importer, tree in modules()
        for name in own_imports(tree)
        if folder_of(name) not in {folder_of(importer), *BELOW[folder_of(importer)].split()}
    }
    assert found - UPWARD.keys() == set()
    assert UPWARD.keys() - found == set(), "ended: remove them from the list"


def test_only_four_folders_do_io() -> None:
    found = {
        f"{module} uses {what}"
        for module, tree in modules()
        if folder_of(module) not in DOES_IO
        for what in io_of(tree)
    }
    assert found - IO_ELSEWHERE.keys() == set()
    assert IO_ELSEWHERE.keys() - found == set(), "ended: remove them from the list"


def test_a_folder_can_be_looked_through() -> None:
    counts: dict[str, int] = {}
    for path in DASHBOARD.rglob("*.py"):
        folder = str(path.parent.relative_to(DASHBOARD))
        counts[folder] = counts.get(folder, 0) + 1
    assert {name: count for name, count in counts.items() if count > MOST_FILES} == {}
