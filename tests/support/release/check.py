"""Builds a release and uses it as its users do: ``make release``; docs/contributing/releasing.md explains it.

The archives are built from the commit, so a file that is not committed is in none of them. Each environment is empty
before the wheel is installed, and its processes do not see this folder. The exit status is 1 if an attempt failed.
"""

import argparse
import hashlib
import json
import re
import resource
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from support.pythons import VERSIONS, find_pythons
from support.release import archives, environments
from support.release.environments import LONG_S, Collector, Environment, ReleaseError

ROOT = Path(__file__).parents[3]
DIST, WORK = ROOT / "dist", ROOT / "build" / "release"
SOURCE = WORK / "source"
TRAINING = Path(__file__).with_name("training.py")

IMPORT_LIMIT_MS = 60
"""CPU time that ``import gradcanary`` may take, more than an empty program."""

IMPORTS = 15
"""Number of processes whose median is taken."""

OK, FAILED, NOT_TRIED = "ok", "FAILED", "not tried"


@dataclass
class Report:
    """The attempts in their order: a subject, a result and a sentence each."""

    rows: list[tuple[str, str, str]] = field(default_factory=list)

    def attempt(self, subject: str, action: Callable[[], str]) -> bool:
        """Call an action that returns its sentence; return False if it raised an error."""
        try:
            return self._add(subject, OK, action())
        except (ReleaseError, OSError, LookupError, ValueError) as error:
            return self._add(subject, FAILED, str(error) or repr(error))

    def leave_out(self, subject: str, reason: str) -> None:
        """Record an attempt that is not made."""
        self._add(subject, NOT_TRIED, reason)

    def has_failed(self) -> bool:
        """Return True if an attempt failed."""
        return any(result == FAILED for _, result, _ in self.rows)

    def table(self) -> str:
        """Return the attempts as lines of three columns."""
        width = max(len(subject) for subject, _, _ in self.rows)
        return "\n".join(f"{subject:{width}}  {result:9}  {sentence}" for subject, result, sentence in self.rows)

    def _add(self, subject: str, result: str, sentence: str) -> bool:
        self.rows.append((subject, result, sentence))
        print(f"{time.strftime('%H:%M:%S')}  {subject}: {result}, {sentence}", flush=True)
        return result == OK


def main() -> None:
    """Build and try a release, print the table, and leave the archives in ``dist`` if nothing failed."""
    options = _read_options()
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    report = Report()
    if report.attempt("build", build):
        try_archives(report)
        try_installations(report, options)
    print(f"\n{report.table()}\n")
    if report.has_failed():
        sys.exit("An attempt failed: do not release this commit.")
    DIST.mkdir(exist_ok=True)
    for path in built():
        shutil.copy(path, DIST)
        print(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {DIST.name}/{path.name}")
    shutil.rmtree(WORK)


def build() -> str:
    """Build both archives from a clone of the commit, the wheel from the source archive; raises ReleaseError."""
    _run("git", "clone", "--quiet", str(ROOT), str(SOURCE))
    _run(sys.executable, "-m", "build", "--outdir", str(WORK / "dist"), str(SOURCE), timeout_s=LONG_S)
    commit, here = (_run("git", "-C", str(each), "rev-parse", "--short", "HEAD").strip() for each in (SOURCE, ROOT))
    if commit != here:
        raise ReleaseError(f"the clone is at {commit}, not at {here}")
    changed = _run("git", "-C", str(ROOT), "status", "--porcelain").splitlines()
    without = f" without {len(changed)} changed files, which are not committed" if changed else ""
    sizes = ", ".join(f"{path.name} of {path.stat().st_size / 1e6:.1f} MB" for path in built())
    return f"commit {commit}{without}: {sizes}"


def built() -> list[Path]:
    """Return the source archive and the wheel; raises ReleaseError."""
    found = sorted((WORK / "dist").iterdir(), key=lambda path: path.suffix)
    if [path.suffix for path in found] != [".gz", ".whl"]:
        raise ReleaseError(f"the build made {', '.join(path.name for path in found)}")
    return found


def try_archives(report: Report) -> None:
    """Read both archives, and the changelog of their version."""
    sdist, wheel = built()
    tracked = _run("git", "-C", str(SOURCE), "ls-files").splitlines()
    twine = (sys.executable, "-m", "twine", "check", "--strict", str(sdist), str(wheel))

    def check_changelog() -> str:
        version = archives.read_version(SOURCE)
        first = re.findall(r"^## (.+)$", (SOURCE / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)[0]
        if not re.fullmatch(re.escape(version) + r" - \d{4}-\d\d-\d\d", first):
            raise ReleaseError(f"its first section is {first!r}, not '{version} - DATE'")
        return first

    def check_files(faults: list[str], sentence: str) -> str:
        if faults:
            raise ReleaseError(", ".join(faults))
        return sentence

    report.attempt("changelog", check_changelog)
    report.attempt(
        "source archive",
        lambda: check_files(archives.sdist_faults(sdist, SOURCE, tracked), f"the {len(tracked)} files of the commit"),
    )
    report.attempt(
        "wheel",
        lambda: check_files(
            archives.wheel_faults(wheel, SOURCE), "packages, pages, licence, typed marker, command; no other file"
        ),
    )
    report.attempt("twine check", lambda: f"{_run(*twine).count('PASSED')} archives passed")


def try_installations(report: Report, options: argparse.Namespace) -> None:
    """Install a collector, and the agent on each Python, whose trainings send to the collector."""
    collector = Collector(Environment(WORK / "collector"))
    try:
        try_collector(report, collector)
        try_agents(report, collector, options)
        if collector.url:
            report.attempt("collector: stop", collector.stop)
    finally:
        collector.kill()


def try_collector(report: Report, collector: Collector) -> None:
    """Install the wheel with its extras on the Python of this process, and start it."""

    def install() -> str:
        environment = collector.environment
        environment.create(sys.executable)
        environment.install(f"{built()[1]}[all]")
        count = len(environment.packages())
        return f"{print_version(environment)} with [all] is {count} packages on Python {environment.python_version()}"

    if report.attempt("collector: install", install) and report.attempt("collector: start", collector.start):
        report.attempt("collector: page", collector.read_page)


def try_agents(report: Report, collector: Collector, options: argparse.Namespace) -> None:
    """Install the agent alone on each Python that this machine has, and train; the oldest has the oldest torch, too."""
    found = find_pythons()
    for version in VERSIONS:
        if version not in found:
            report.leave_out(f"Python {version}", "this machine does not have it")
        elif version not in options.python:
            report.leave_out(f"Python {version}", "--python leaves it out")
        else:
            try_agent(report, found[version], f"Python {version}", options.torch, collector)
    oldest = next(version for version in VERSIONS if version in found)
    subject = f"Python {oldest}, oldest torch"
    if oldest in options.python and options.oldest_torch:
        try_agent(report, found[oldest], subject, options.oldest_torch, collector)
    else:
        report.leave_out(subject, "--python or --oldest-torch leaves it out")


def try_agent(report: Report, python: str, subject: str, torch: str, collector: Collector) -> None:
    """Install the agent alone in an empty environment, then torch, and train."""
    environment = Environment(WORK / subject.replace(" ", "-").replace(",", ""))

    def install() -> str:
        environment.create(python)
        environment.install(str(built()[1]))
        others = environment.packages().keys() - {"gradcanary", "pip", "setuptools"}
        if others:
            raise ReleaseError(f"it installs {', '.join(others)}, too")
        environment.run("gradcanary", "runbook", "collapse")
        return f"{print_version(environment)} alone on Python {environment.python_version()}"

    def train() -> str:
        environment.install("--no-compile", torch)
        run = environment.folder.name
        facts = json.loads(environment.run("python", str(TRAINING), collector.url, run))
        arrived = collector.check_run(run, facts["steps"], facts["layers"])
        return f"torch {facts['torch']}: the same parameters as without, {arrived}"

    try:
        if report.attempt(f"{subject}: install", install):
            report.attempt(f"{subject}: import", lambda: measure_import(environment))
            if collector.url:
                report.attempt(f"{subject}: train", train)
            else:
                report.leave_out(f"{subject}: train", "no collector started")
    finally:
        environment.remove()


def print_version(environment: Environment) -> str:
    """Return the answer of ``gradcanary --version``; raises ReleaseError if it is another version."""
    answer = environment.run("gradcanary", "--version").strip()
    if answer != f"gradcanary {archives.read_version(SOURCE)}":
        raise ReleaseError(f"gradcanary --version prints {answer!r}")
    return answer


def measure_import(environment: Environment) -> str:
    """Return the median CPU time of an import, beside that of an empty program; raises ReleaseError over the limit."""

    def cpu_ms(statement: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        environment.run("python", "-c", statement)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e3

    pairs = [(cpu_ms("pass"), cpu_ms("import gradcanary")) for _ in range(IMPORTS)]
    empty, imported = (statistics.median(column) for column in zip(*pairs, strict=True))
    sentence = (
        f"python -c pass {empty:.0f} ms, import gradcanary {imported - empty:.0f} ms more (CPU, median of {IMPORTS})"
    )
    if imported - empty > IMPORT_LIMIT_MS:
        raise ReleaseError(f"{sentence}: over {IMPORT_LIMIT_MS} ms")
    return sentence


def _run(*command: str, timeout_s: float = environments.SHORT_S) -> str:
    return environments.run(*command, folder=WORK, timeout_s=timeout_s)


def _read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make release", description="Builds a release and tries it.")
    parser.add_argument("--python", action="append", choices=VERSIONS, help="only on this version; can be repeated")
    parser.add_argument("--torch", required=True, help="the requirement of the trainings")
    parser.add_argument("--oldest-torch", default="", help="that of one more training, on the oldest Python")
    options = parser.parse_args()
    options.python = options.python or VERSIONS
    return options


if __name__ == "__main__":
    main()
