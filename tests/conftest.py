"""Fixtures that several suites share."""

import gc
import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from gradcanary import cli
from support import citus, postgres, warm
from support.collectors import Collector
from support.effort import EFFORT

# A shell that starts the suite in the background has Ctrl-C ignored, and what the tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Before torch is imported: a forked child cannot use the threads that its parent's OpenMP has, and waits for them.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Nothing that a test keeps lies in somebody's home, and what lies there is nobody's to tell a test of.
_STATE = tempfile.TemporaryDirectory(prefix="gradcanary-state-")
os.environ["XDG_STATE_HOME"] = _STATE.name

# A machine that does other things is slow now and then, which is not what these tests are about.
settings.register_profile(
    "patient", max_examples=40 * EFFORT, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("patient")

TESTS = Path(__file__).parent

NewDb = Callable[[], str | None]


def pytest_configure(config: pytest.Config) -> None:
    """What is forked for the tests is forked from the same processes, whichever worker asks."""
    if not hasattr(config, "workerinput") and config.getoption("numprocesses", None):
        warm.share(warm.COLLECTOR, warm.TRAINING)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by their folder, and those that need a PostgreSQL server."""
    for item in items:
        item.add_marker(item.path.relative_to(TESTS).parts[0])
        if "postgres_server" in item.fixturenames or _dialect(item) == "postgresql":
            item.add_marker(pytest.mark.postgres)


def _dialect(item: pytest.Item) -> str | None:
    return item.callspec.params.get("dialect") if hasattr(item, "callspec") else None


def pytest_collection_finish() -> None:
    _keep()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Keep what the tests of a file leave: a search for models took seconds after some thousand tests."""
    yield
    if nextitem is None or nextitem.path != item.path:
        _keep()


def _keep() -> None:
    """What is there stays: nobody looks through it again, neither Python for garbage nor the agent for models."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[postgres.Server]:
    """A PostgreSQL server that all tests share, each with databases of its own; ``CITUS_URL`` names a cluster."""
    with citus.using(os.environ["CITUS_URL"]) if "CITUS_URL" in os.environ else postgres.running() as server:
        yield server


@pytest.fixture(scope="session")
def new_db() -> NewDb:
    """Return the ``--db`` of a new database; None is SQLite in the collector's folder. Suites of the server override
    it by ``dialects.new_db``, for both dialects."""
    return lambda: None


@pytest.fixture(autouse=True)
def spool_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing that a test leaves undelivered goes into the home of whoever runs it."""
    monkeypatch.setenv("GRADCANARY_SPOOL", str(tmp_path / "spool"))
    return tmp_path / "spool"


@pytest.fixture
def collector_factory(tmp_path: Path, new_db: NewDb) -> Iterator[Callable[..., Collector]]:
    """Start collectors with more options; each call is one process on its own port and an empty database."""
    started: list[Collector] = []

    def start(*arguments: str, env: Mapping[str, str] | None = None) -> Collector:
        collector = Collector(tmp_path / f"collector-{len(started)}", arguments, env, new_db())
        started.append(collector)
        return collector.start()

    yield start
    for collector in started:
        collector.kill()


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Type a command; return its exit status, and what it said on stdout and on stderr."""

    def run(*words: object) -> tuple[int, str, str]:
        flat = [str(part) for word in words for part in (word if isinstance(word, list) else [word])]
        try:
            status = cli.main(flat)
        except SystemExit as end:  # argparse's own way
            status = int(end.code or 0)
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return status, said.out, said.err

    return run


@pytest.fixture
def collector(collector_factory: Callable[..., Collector]) -> Collector:
    """A collector on an empty database."""
    return collector_factory()


@pytest.fixture(scope="module")
def module_collector(tmp_path_factory: pytest.TempPathFactory, new_db: NewDb) -> Iterator[Collector]:
    """A collector that all tests of a module share, each under its own run name."""
    collector = Collector(tmp_path_factory.mktemp("collector"), db=new_db())
    yield collector.start()
    collector.kill()
