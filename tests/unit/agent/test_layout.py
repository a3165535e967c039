"""The folders of the agent: which may import which, how large one may be, and where torch's private API is named."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

AGENT = Path(__file__).parents[3] / "agent" / "gradcanary"

LEVELS = (
    "wire wording redaction remedies remedy_texts settings identity crash guard facts notices terminal environment",
    "check display knowledge",
    "model",
    "hooks",
    "stats",
    "tracking",
    "export",
    "client",
    "integrations",
    "session api training_watch fp32_sums fp32_copies training_config summary",
    "attach demo lightning transformers",
    "doctor sanity",
    "cli",
)
"""From the ground up: folders, and modules beside them. A module imports its own folder and lower lines; modules of one
line that lie beside the folders may import each other."""

RANKS = {name: rank for rank, names in enumerate(LEVELS) for name in names.split()}

MOST_FILES = 21

PRIVATE = {
    "_execution_engine",
    "_current_graph_task_id",
    "_post_accumulate_grad_hooks",
    "eval_frame",
    "_per_optimizer_states",
    "_get_default_store",
}
"""torch's: to be looked at with each new version of it, so in one folder only."""


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(AGENT.rglob("*.py")):
        name = ".".join(path.relative_to(AGENT).with_suffix("").parts)
        if name != "__init__" and not name.startswith("sitecustomize"):  # the package's own names are those of api
            yield name.removesuffix(".__init__"), ast.parse(path.read_text("utf-8"))


def place_of(name: str) -> str:
    """Return the folder of a module, or the module itself if it lies beside the folders."""
    return name.partition(".")[0]


def imports(tree: ast.Module) -> Iterator[str]:
    """Yield the modules of the agent that a file imports: at its top, for annotations, and in functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            package, _, rest = name.partition(".")
            if package == "gradcanary" and rest != "__version__":
                yield module_of(rest)


def module_of(dotted: str) -> str:
    """Return the module of ``module`` or ``module.name``; a name of the package itself is one of ``api``."""
    path = AGENT.joinpath(*dotted.split("."))
    if dotted and (path.with_suffix(".py").exists() or (path / "__init__.py").exists()):
        return dotted
    return dotted.rpartition(".")[0] or "api"


def points_down(importer: str, imported: str) -> bool:
    above, below = place_of(importer), place_of(imported)
    if above == below:
        return True
    is_beside = not (AGENT / above).is_dir() and not (AGENT / below).is_dir()
    return RANKS[below] < RANKS[above] or (is_beside and RANKS[below] == RANKS[above])


def test_imports_point_down() -> None:
    found = {
        f"{importer} imports {imported}"
        for importer, tree in modules()
        for imported in imports(tree)
        if not points_down(importer, imported)
    }
    assert found == set()


@pytest.mark.parametrize(
    "folder",
    [
        "hooks",
        "stats",
        "tracking",
        "export",
        "client",
        "integrations",
        "attach",
        "check",
        "cli",
        "demo",
        "display",
        "doctor",
        "sanity",
    ],
)
def test_modules_of_a_folder_import_each_other_one_way(folder: str) -> None:
    """Also for annotations: a circle of types is a circle of objects."""
    found = {
        importer: {each for each in imports(tree) if place_of(each) == folder} - {importer}
        for importer, tree in modules()
        if place_of(importer) == folder
    }
    while ready := {name for name, imported in found.items() if not imported & found.keys()}:
        found = {name: imported for name, imported in found.items() if name not in ready}
    assert found == {}, "these import each other"


def test_a_folder_can_be_looked_through() -> None:
    folders = [AGENT, *(path for path in AGENT.iterdir() if (path / "__init__.py").exists())]
    counts = {folder.name: len(list(folder.glob("*.py"))) for folder in folders}
    assert {name: count for name, count in counts.items() if count > MOST_FILES} == {}


def named_in(tree: ast.Module) -> set[str]:
    """Return the names, attributes and texts of a file."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return found


def test_private_api_of_torch_is_named_in_one_folder() -> None:
    found = {
        f"{name} names {private}"
        for name, tree in modules()
        if place_of(name) != "hooks"
        for private in PRIVATE & named_in(tree)
    }
    assert found == set()
