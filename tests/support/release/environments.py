"""Virtual environments that are empty at first, the commands in them, and a collector that one of them serves."""

import json
import os
import re
import shlex
import shutil
import subprocess
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

SHORT_S, LONG_S = 120, 1_800
"""Time limits: of a command, and of a build or an installation."""

OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Requests to this machine, past the proxy that reaches a package index."""


class ReleaseError(Exception):
    """An attempt failed; the message is for the table."""


def run(*command: str, folder: Path, timeout_s: float = SHORT_S) -> str:
    """Return the output of a command that is started in a folder; raises ReleaseError if it fails."""
    try:
        done = subprocess.run(
            command, cwd=folder, env=variables(folder), capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise ReleaseError(f"{shlex.join(command)} took more than {timeout_s:.0f} s") from None
    if done.returncode != 0:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()[-3:]
        raise ReleaseError(f"{shlex.join(command)} ended with status {done.returncode}: {' | '.join(lines)}")
    return done.stdout


def variables(folder: Path) -> dict[str, str]:
    """Return the environment of a process: no path to this source, and no setting of gradcanary."""
    others = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "GRADCANARY_"))}
    return others | {"GRADCANARY_SPOOL": str(folder / "spool"), "OMP_NUM_THREADS": "1"}


def fetch(url: str) -> bytes:
    """Return the body of a page; raises OSError if its status is not 200."""
    with OPENER.open(url, timeout=SHORT_S) as answer:
        body: bytes = answer.read()
    return body


@dataclass(frozen=True)
class Environment:
    """A virtual environment, in a folder that need not exist yet."""

    folder: Path

    def create(self, python: str) -> None:
        """Make the environment; it has pip and no other package. Raises ReleaseError."""
        run(python, "-m", "venv", str(self.folder), folder=self.folder.parent)

    def install(self, *requirements: str) -> None:
        """Install packages; raises ReleaseError."""
        self.run("python", "-m", "pip", "install", "--quiet", *requirements, timeout_s=LONG_S)

    def run(self, program: str, *arguments: str, timeout_s: float = SHORT_S) -> str:
        """Return the output of a program of this environment; raises ReleaseError."""
        return run(self.program(program), *arguments, folder=self.folder.parent, timeout_s=timeout_s)

    def program(self, name: str) -> str:
        """Return the path of a program of this environment."""
        return str(self.folder / "bin" / name)

    def packages(self) -> dict[str, str]:
        """Return the versions of the installed packages."""
        listing = json.loads(self.run("python", "-m", "pip", "list", "--format", "json"))
        return {package["name"]: package["version"] for package in listing}

    def python_version(self) -> str:
        """Return the version of Python, such as 3.12.1."""
        return self.run("python", "--version").split()[1]

    def remove(self) -> None:
        """Delete the environment: one with a torch for CUDA has several GB."""
        shutil.rmtree(self.folder, ignore_errors=True)


class Collector:
    """A collector process on an SQLite file and a free port; :meth:`start` sets its ``url``."""

    url = ""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self._log = environment.folder.with_suffix(".log")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> str:
        """Start the process, and return the parts that are ready; raises ReleaseError."""
        folder = self.environment.folder.parent
        command = [self.environment.program("gradcanary"), "up", "--port", "0", "--data", str(folder / "data")]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, cwd=folder, env=variables(folder), stdout=log, stderr=log)
        end = time.monotonic() + SHORT_S
        while not (found := re.search(r"listening on (http://\S+)", self._log.read_text("utf-8"))):
            if self._process.poll() is not None or time.monotonic() > end:
                raise ReleaseError(f"it does not listen: {self._log.read_text('utf-8')[-500:]}")
            time.sleep(0.1)
        self.url = found[1]
        checks: dict[str, str] = json.loads(fetch(f"{self.url}/readyz"))["checks"]
        return f"/readyz: {', '.join(checks)}"

    def read_page(self) -> str:
        """Return the size of the first page with the scripts and style sheets that it names; raises ReleaseError."""
        page = fetch(self.url).decode()
        names = [name.replace("&amp;", "&") for name in re.findall(r'(?:src|href)="(/[^"]+)"', page)]
        if "<title>" not in page or not any(".js" in name for name in names):
            raise ReleaseError(f"this is not the page: {page[:200]}")
        size = sum(len(fetch(self.url + name)) for name in names)
        return f"the first page and its {len(names)} files, {size / 1e6:.1f} MB"

    def check_run(self, name: str, steps: int, layers: int) -> str:
        """Return what arrived of a training; raises ReleaseError if it is not all."""
        shape = json.loads(fetch(f"{self.url}/api/v1/runs/{name}"))
        expected = {"state": "finished", "step": steps - 1, "layers": layers, "gaps": [], "open_incidents": []}
        found = {key: shape[key] for key in expected}
        if found != expected:
            raise ReleaseError(f"the run is {found}, not {expected}")
        samples = fetch(f"{self.url}/api/v1/runs/{name}/samples").splitlines()
        if not samples:
            raise ReleaseError("the run has no samples")
        return f"{steps} steps of {layers} layers arrived"

    def stop(self) -> str:
        """End the process as a service manager does; raises ReleaseError if its status is not 0."""
        assert self._process is not None
        self._process.terminate()
        try:
            status = self._process.wait(SHORT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise ReleaseError(f"it did not stop in {SHORT_S} s") from None
        if status != 0:
            raise ReleaseError(f"it ended with status {status}: {self._log.read_text('utf-8')[-500:]}")
        return "status 0 after SIGTERM"

    def kill(self) -> None:
        """End the process if it runs still."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
