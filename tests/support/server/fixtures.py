"""Fixtures of tests on a store, on both databases; the conftest of a folder imports those that it has."""

import pytest

from gradcanary_server.incidents import text
from gradcanary_server.notify import dispatcher as dispatchers
from support.receivers import Receiver
from support.server import archives, stores
from support.server.clocks import Clocked


@pytest.fixture(scope="module")
def module_archive(new_store_url):
    """A collector without HTTP that the tests of a module share."""
    archive = archives.Store(new_store_url())
    yield archive
    archive.database.close()


@pytest.fixture
def archive(module_archive):
    """A collector without HTTP, with nothing in it."""
    module_archive.clear()
    return module_archive


@pytest.fixture(autouse=True)
def prompt_rounds(monkeypatch):
    """The dispatcher looks often, and composes all that is due, however slow the machine is."""
    monkeypatch.setattr(dispatchers, "WAKE_S", 0.1)
    monkeypatch.setattr(text, "COMPOSE_S", 3600.0)


@pytest.fixture
def store(new_store_url):
    """A migrated store with a run in it, without a collector."""
    made = stores.Store(new_store_url())
    yield made
    made.database.close()


@pytest.fixture
def new_store(new_store_url, prompt_rounds, monkeypatch):
    """Make stores whose clock can be moved on, under a dispatcher that looks at it often."""
    monkeypatch.setattr(dispatchers, "WAKE_S", 0.01)
    made = []

    def make(**options):
        made.append(stores.Store(new_store_url(), kind=Clocked, **options))
        return made[-1]

    yield make
    for store in made:
        store.database.close()


@pytest.fixture
def receiver_factory():
    """Make receivers that end with the test."""
    made = []

    def make(*answers):
        made.append(Receiver(*answers))
        return made[-1]

    yield make
    for receiver in made:
        receiver.close()
