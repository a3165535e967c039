"""Imports point one way: the agent brings nothing, server and dashboard do not know each other."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
ROOTS = {"gradcanary": "agent", "gradcanary_server": "server", "gradcanary_dashboard": "dashboard"}

IMPORT_ALL = """
import importlib, pkgutil, sys
import {package}
for module in pkgutil.walk_packages({package}.__path__, "{package}."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
print(*sys.modules)
"""


def loaded_by(code: str) -> set[str]:
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    return set(ended.stdout.split())


def roots_of(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


def test_import_gradcanary_loads_the_standard_library_only() -> None:
    loaded = roots_of(loaded_by("import sys; before = set(sys.modules); import gradcanary; print(*sys.modules)"))
    started_with = roots_of(loaded_by("import sys; print(*sys.modules)"))
    assert loaded - started_with - set(sys.stdlib_module_names) == {"gradcanary"}


def test_what_the_collector_takes_from_the_agent_needs_no_torch() -> None:
    loaded = roots_of(
        loaded_by(
            "import sys, gradcanary.wire, gradcanary.remedies, gradcanary.wording, gradcanary.knowledge\n"
            "print(*sys.modules)"
        )
    )
    assert "torch" not in loaded
    assert "pydantic" not in loaded


def test_the_command_line_needs_no_torch() -> None:
    """``gradcanary ps`` and ``attach`` work where only the agent is installed; the training has torch."""
    loaded = loaded_by(
        "import sys, gradcanary.cli, gradcanary.attach.actions, gradcanary.export.sync; print(*sys.modules)"
    )
    assert "gradcanary.attach.actions" in loaded
    assert "torch" not in roots_of(loaded)


NAMES = ("__version__", "wire", "remedies", "wording", "knowledge", "display", "display.rule_values", "display.verdict")
SHARED = {f"gradcanary.{name}" for name in NAMES}


@pytest.mark.parametrize(
    ("package", "stranger"),
    [("gradcanary_server", "gradcanary_dashboard"), ("gradcanary_dashboard", "gradcanary_server")],
)
def test_server_and_dashboard_know_only_what_all_share(package: str, stranger: str) -> None:
    assert imported_from_agent(package) <= SHARED
    assert not {stranger, "torch"} & roots_of(loaded_by(IMPORT_ALL.format(package=package)))


def test_a_collector_on_sqlite_loads_no_psycopg_and_no_mcp_at_its_start() -> None:
    loaded = roots_of(loaded_by("import sys, gradcanary_server.app; print(*sys.modules)"))
    assert "sqlalchemy" in loaded
    assert not {"psycopg", "mcp"} & loaded


ELSEWHERE = """
import builtins, os, signal
brought = builtins.__import__
def bring(name, globals=None, *rest, **named):
    is_ours = str((globals or {}).get("__name__")).startswith("gradcanary")
    if is_ours and name in ("resource", "fcntl", "pwd", "grp", "termios", "tty", "pty", "syslog"):
        raise ModuleNotFoundError(f"No module named {name!r}")
    return brought(name, globals, *rest, **named)
builtins.__import__ = bring
for name in ("register_at_fork", "fork", "killpg", "sched_getaffinity", "EX_IOERR"):
    delattr(os, name)
del signal.SIGHUP
"""
"""What Windows has not. torch, asyncio and the like are loaded before that: theirs are others there."""


@pytest.mark.parametrize(
    ("package", "libraries"),
    [
        ("gradcanary", "torch._dynamo, multiprocessing.util, tempfile, lightning"),
        ("gradcanary_server", "asyncio, uvicorn, fastapi, sqlalchemy, numpy, concurrent.futures.process"),
        ("gradcanary_dashboard", "dash, plotly, numpy, concurrent.futures.process"),
    ],
)
def test_all_but_attach_is_imported_where_there_is_no_posix(package: str, libraries: str) -> None:
    code = IMPORT_ALL.format(package=package).replace(
        "if not", 'if not module.name.startswith("gradcanary.attach.") and not'
    )
    assert package in loaded_by(f"import {libraries}{ELSEWHERE}{code}")


WITHOUT_POSIX = """
import gradcanary
from gradcanary import cli
model = torch.nn.Linear(2, 1)
with gradcanary.watch(model, url="http://127.0.0.1:9") as watch:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2)).backward()
    optimizer.step()
assert watch._session.guard.caught == 0, watch._session.guard.facts
try:
    cli.main(["--help"])
except SystemExit as ended:
    raise SystemExit(ended.code)
"""


def test_a_training_is_watched_where_there_is_no_posix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADCANARY_SPOOL", str(tmp_path))
    assert "usage:" in loaded_by(f"import torch._dynamo, multiprocessing.util, tempfile{ELSEWHERE}{WITHOUT_POSIX}")


def test_the_collector_brings_what_numpy_imports_late() -> None:
    late = "before = set(sys.modules); numpy.unique([1]); print(*set(sys.modules) - before)"
    assert not loaded_by(f"import sys, numpy, gradcanary_server.app; {late}"), "in the middle of somebody's answer"


def imported_from_agent(package: str) -> set[str]:
    """Return the modules of the agent that the sources of a package name."""
    found: set[str] = set()
    for path in (PROJECT / ROOTS[package] / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module == "gradcanary":
                found |= {f"gradcanary.{alias.name}" for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add(node.module or "")
    return {name for name in found if name.partition(".")[0] == "gradcanary"}


def test_the_agent_knows_the_others_in_its_composition_root_only() -> None:
    package = PROJECT / ROOTS["gradcanary"] / "gradcanary"
    knowing = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if any(other in path.read_text() for other in ("import gradcanary_", "from gradcanary_"))
    }
    assert knowing <= {"cli/serve.py"}
