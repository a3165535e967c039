"""Both databases, for suites whose tests hold on each; their conftest imports ``new_db`` and ``new_store_url``."""

from collections.abc import Callable

import pytest


@pytest.fixture(scope="session", params=["sqlite", "postgresql"])
def new_db(request: pytest.FixtureRequest) -> Callable[[], str | None]:
    """Return the ``--db`` of a new database; None is SQLite in the collector's folder."""
    if request.param == "sqlite":
        return lambda: None
    create_database: Callable[[], str] = request.getfixturevalue("postgres_server").create_database
    return create_database


@pytest.fixture(scope="session")
def new_store_url(new_db: Callable[[], str | None], tmp_path_factory: pytest.TempPathFactory) -> Callable[[], str]:
    """Return the address of a new, empty store."""
    return lambda: new_db() or f"sqlite:///{tmp_path_factory.mktemp('store') / 'gradcanary.db'}"
