"""Run the benchmarks, and write BENCHMARKS.md: each target with what was found, misses first, and all that they print.

python tests/benchmarks/publish.py [NAME ...] [--write] [--again]
Without a name all of them, one after the other, as `make benchmarks`; hours on two cores, on which nothing else should
run. What one prints is kept in build/benchmarks with the machine and the version of the code: the same command goes on
where it was ended, and runs only those again of which the code has changed since, or all with --again. --write makes
BENCHMARKS.md of all that is kept. Exit status 1 where a target is missed.
"""

import argparse
import ast
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parents[2]
KEPT = PROJECT / "build" / "benchmarks"
CODE = ("agent", "server", "dashboard", "migrations", "tests/benchmarks")

BENCHMARKS: Mapping[str, tuple[str, ...]] = {
    "agent_overhead": ("agent_overhead.py",),
    "agent_budget": ("agent_budget.py",),
    "precision": ("precision.py",),
    "endurance": ("endurance.py",),
    "ingest_cost": ("ingest_cost.py",),
    "fold_speed": ("fold_speed.py",),
    "big_run": ("big_run.py",),
    "heatmap_memory": ("heatmap_memory.py",),
    "pages": ("pages.py",),
    "team": ("team.py", "--seconds", "100"),
    "team on PostgreSQL": ("team.py", "--seconds", "100", "--database", "postgresql"),
    "workers": ("workers.py",),
    "growth": ("growth.py", "--only", "sessions", "launches", "shards"),
}
"""Those of the page: the command of each."""

_JUDGED = re.compile(r"^- (?P<what>.+): (?P<found>\S+), target (?P<target>.+): (?P<verdict>met|MISSED)$", re.MULTILINE)


def main() -> int:
    """Run what is not kept, write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(BENCHMARKS)}, or another file here")
    parser.add_argument("--write", action="store_true", help="BENCHMARKS.md, of all that is kept")
    parser.add_argument("--again", action="store_true", help="also what is kept of this code")
    given = parser.parse_args()
    names = given.names or [*BENCHMARKS]
    for name in names:
        if not Path(__file__).with_name(command_of(name)[0]).exists():
            parser.error(f"there is no benchmark {name!r}; there are {', '.join(BENCHMARKS)}, and the other files here")
    for name in names:
        if given.again or kept(name).get("code") != code_version():
            keep(name)
    if given.write:
        page = {name: kept(name) for name in BENCHMARKS if kept(name)}
        (PROJECT / "BENCHMARKS.md").write_text("\n".join(lines(page)))
    return int(any(kept(name)["status"] for name in names))


def keep(name: str) -> None:
    """Run a benchmark, print what it prints, and keep that."""
    command = command_of(name)
    print(f"\n# {' '.join(command)}\n", flush=True)
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    path = Path(__file__).with_name(command[0])
    ran = subprocess.Popen([sys.executable, path, *command[1:]], env=environ, stdout=subprocess.PIPE, text=True)
    assert ran.stdout is not None
    printed = []
    for line in ran.stdout:
        print(line, end="", flush=True)
        printed.append(line)
    found = {"status": ran.wait(), "printed": "".join(printed), "command": " ".join(command)}
    found |= {"code": code_version(), "revision": git("rev-parse", "--short", "HEAD"), "machine": machine()}
    found["day"] = datetime.now(timezone.utc).date().isoformat()
    KEPT.mkdir(parents=True, exist_ok=True)
    (KEPT / f"{name}.json").write_text(json.dumps(found, indent=1))


def command_of(name: str) -> tuple[str, ...]:
    """Return the file and the arguments of a benchmark."""
    return BENCHMARKS.get(name, (f"{name}.py",))


def kept(name: str) -> dict[str, Any]:
    """Return what is kept of a benchmark, nothing where it never ran."""
    path = KEPT / f"{name}.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def lines(page: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines of BENCHMARKS.md: the targets, misses first, then what each benchmark printed."""
    yield "# Benchmarks\n"
    yield "Made by `make benchmarks ARGS=--write`. What is compared ran together: ratios hold on other machines, times"
    yield "do not. What the numbers mean: [costs](docs/results/costs.md), [performance](docs/results/performance.md),"
    yield "[precision](docs/results/precision.md).\n"
    yield "| target | found | wanted | |\n|---|---|---|---|"
    yield from sorted(targets(page), key=lambda row: "**missed**" not in row)
    for name, found in page.items():
        yield f"\n## {name}\n\n{first_sentence(command_of(name)[0])}\n"
        yield f"`python tests/benchmarks/{found['command']}` at {found['revision']}, {found['day']},"
        yield f"{found['machine']}:\n"
        yield str(found["printed"]).strip()
    yield ""


def targets(page: Mapping[str, Mapping[str, Any]]) -> Iterable[str]:
    """Yield a row for each target."""
    for name, found in page.items():
        for each in _JUDGED.finditer(found["printed"]):
            verdict = "met" if each["verdict"] == "met" else "**missed**"
            yield f"| {name}: {each['what']} | {each['found']} | {each['target']} | {verdict} |"


def first_sentence(file: str) -> str:
    """Return what a benchmark says of itself."""
    about = ast.get_docstring(ast.parse(Path(__file__).with_name(file).read_text())) or ""
    return about.partition("\n\n")[0].replace("\n", " ")


def code_version() -> str:
    """Return a name of what is measured: the trees of the code in git, and what is changed and not committed."""
    trees = git("rev-parse", *(f"HEAD:{each}" for each in CODE))
    return f"{trees}\n{git('status', '--porcelain', '--', *CODE)}"


def machine() -> str:
    """Return what it ran on."""
    model = next((line.partition(":")[2].strip() for line in cpu_lines() if line.startswith("model name")), "")
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{os.cpu_count()} cores {model}, {memory_gib:.0f} GiB, {platform.system()}, Python {platform.python_version()}"
    )


def cpu_lines() -> list[str]:
    """Return what Linux tells of its processors, nothing elsewhere."""
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def git(*arguments: str) -> str:
    """Return what git prints."""
    return subprocess.run(
        ["git", *arguments], cwd=PROJECT, check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
