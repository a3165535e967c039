"""A benchmark of this tree beside that of an earlier version, in turns: the median of each number, and their ratios.

python tests/benchmarks/versions.py 939fafc [--rounds 5] team.py [--tabs 10 --seconds 60]
The earlier version is taken from git into a folder of its own. This tree's benchmark runs for both, so that the load is
the same; but what a tab asks (tabs.py) is of each version. Both use the packages of this environment. Each round runs
both, the one that began last second. What they print as tables is read: rows of the same name with as many numbers are
compared, other rows of one version are only told; the name of a row begins with its table's, if that has one.
"""

import argparse
import io
import os
import re
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import ratios

HERE = Path(__file__).parents[2]
PACKAGES = ("agent", "server", "dashboard", "migrations")
BENCHMARKS, OF_EACH = "tests/benchmarks", "tabs.py"
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
_MEASURED = re.compile(r", of [\d.]+ a second")
_ROW = re.compile(r"^\| *([^|]+?) *\| *(.*?) *\|$")

Found = dict[str, list[str]]
"""By the name of a row what it said in each round."""


def main() -> None:
    """Run both in turns, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", help="of git, as 939fafc")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("benchmark", help="a file of tests/benchmarks")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="for the benchmark")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gradcanary-version-") as folder:
        extract(given.revision, Path(folder))
        own = Path(folder) / BENCHMARKS
        shutil.copytree(Path(__file__).parent, own, dirs_exist_ok=True, ignore=lambda *_: [OF_EACH])
        trees = {given.revision: Path(folder), "now": HERE}
        found: dict[str, Found] = {name: defaultdict(list) for name in trees}
        for number in range(given.rounds):
            for name in trees if number % 2 == 0 else reversed(trees):
                for row, said in rows(printed(trees[name], given.benchmark, given.arguments)):
                    found[name][row].append(said)
                print(f"round {number + 1}, {name}: {[each[-1] for each in found[name].values()]}", flush=True)
    print(f"\n{given.benchmark} {' '.join(given.arguments)}, {given.rounds} rounds, medians\n")
    print("\n".join(table(found[given.revision], found["now"], given.revision)))


def extract(revision: str, folder: Path) -> None:
    """Put the files of a revision into a folder."""
    packed = subprocess.run(["git", "archive", revision], cwd=HERE, check=True, stdout=subprocess.PIPE).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")


def printed(tree: Path, benchmark: str, arguments: Iterable[str]) -> str:
    """Return what a benchmark prints of the packages of a tree; a missed target (1) is no error."""
    path = os.pathsep.join([*(str(tree / each) for each in PACKAGES), str(HERE / "tests")])
    command = [sys.executable, str(tree / BENCHMARKS / benchmark), *arguments]
    environ = {**os.environ, "PYTHONPATH": path}
    ended = subprocess.run(command, env=environ, cwd=tree, check=False, stdout=subprocess.PIPE, text=True)
    if ended.returncode not in (0, 1) or not any(rows(ended.stdout)):
        raise SystemExit(f"{ended.stdout}\n{benchmark} of {tree} ended with status {ended.returncode}: no round")
    return ended.stdout


def rows(text: str) -> Iterator[tuple[str, str]]:
    """Yield name and contents of each row of the tables, without what was measured in a name."""
    heading, is_first = "", True
    for line in text.splitlines():
        row = _ROW.match(line)
        if row and is_first:
            heading = "" if row[1] in ("what", "") else f"{row[1]}: "
        elif row and _NUMBER.search(row[2]) and not set(row[1]) <= set("-: "):
            yield heading + _MEASURED.sub("", row[1]), row[2]
        is_first = row is None


def table(before: Found, now: Found, revision: str) -> Iterator[str]:
    """Yield the lines of the table; ratios are those of each round, now by then."""
    yield f"| | {revision} | now | now by {revision} |\n|---|---|---|---|"
    for row in dict.fromkeys([*before, *now]):
        then, later = numbers(before.get(row, [])), numbers(now.get(row, []))
        is_same = len(then) == len(later) and len({len(each) for each in (*then, *later)}) == 1
        pairs = zip(zip(*then, strict=True), zip(*later, strict=True), strict=True) if is_same else ()
        told = [ratios.told([b / a for a, b in zip(*pair, strict=True)], ".2f") for pair in pairs if all(pair[0])]
        yield f"| {row} | {middle(before.get(row, []))} | {middle(now.get(row, []))} | {', '.join(told)} |"


def middle(said: list[str]) -> str:
    """Return one of the texts with the median of each number, nothing where they have different ones."""
    found = numbers(said)
    if not found or len({len(each) for each in found}) != 1:
        return ", ".join(dict.fromkeys(said))
    medians = iter([statistics.median(each) for each in zip(*found, strict=True)])
    return _NUMBER.sub(lambda each: f"{next(medians):,.{len(each[0].partition('.')[2])}f}", said[0])


def numbers(said: list[str]) -> list[list[float]]:
    """Return the numbers of each text."""
    return [[float(each.replace(",", "")) for each in _NUMBER.findall(text)] for text in said]


if __name__ == "__main__":
    main()
