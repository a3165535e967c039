"""Fixtures that several suites share."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from collectors import Collector


@pytest.fixture(autouse=True)
def spool_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing that a test leaves undelivered goes into the home of whoever runs it."""
    monkeypatch.setenv("GRADCANARY_SPOOL", str(tmp_path / "spool"))
    return tmp_path / "spool"


@pytest.fixture
def collector_factory(tmp_path: Path) -> Iterator[Callable[..., Collector]]:
    """Start collectors with more options; each call is one process on its own port and data folder."""
    started: list[Collector] = []

    def start(*arguments: str, env: Mapping[str, str] | None = None, data: Path | None = None) -> Collector:
        collector = Collector(data or tmp_path / f"collector-{len(started)}", arguments, env)
        started.append(collector)
        return collector.start()

    yield start
    for collector in started:
        collector.kill()


@pytest.fixture
def collector(collector_factory: Callable[..., Collector]) -> Collector:
    """A collector on an empty SQLite database."""
    return collector_factory()


@pytest.fixture(scope="module")
def module_collector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collector]:
    """A collector that all tests of a module share, each under its own run name."""
    collector = Collector(tmp_path_factory.mktemp("collector"))
    yield collector.start()
    collector.kill()
