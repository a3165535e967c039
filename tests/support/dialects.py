"""Both databases, for suites whose tests hold on each; their conftest imports these fixtures."""

from collections.abc import Callable

import pytest

from support import blank_stores

one_store = pytest.mark.parametrize("dialect", ["sqlite"], indirect=True)
"""For long tests of rules, words and hours: their statements are run on both databases by other tests."""


@pytest.fixture(scope="session", params=["sqlite", "postgresql"])
def dialect(request: pytest.FixtureRequest) -> str:
    """Return which of them it is."""
    return str(request.param)


@pytest.fixture(scope="session")
def new_db(dialect: str, request: pytest.FixtureRequest) -> Callable[[], str | None]:
    """Return the ``--db`` of a new store; None is SQLite in the collector's folder."""
    if dialect == "sqlite":
        return lambda: None
    create_store: Callable[[], str] = request.getfixturevalue("postgres_server").create_store
    return create_store


@pytest.fixture(scope="session")
def new_store_url(new_db: Callable[[], str | None], tmp_path_factory: pytest.TempPathFactory) -> Callable[[], str]:
    """Return the address of a new store with nothing in it."""
    return lambda: new_db() or f"sqlite:///{blank_stores.lay(tmp_path_factory.mktemp('store'))}"


@pytest.fixture
def empty_url(dialect: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the address of a database without tables."""
    if dialect == "sqlite":
        return f"sqlite:///{tmp_path_factory.mktemp('empty') / blank_stores.FILE}"
    address: str = request.getfixturevalue("postgres_server").create_database()
    return address
