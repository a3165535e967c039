"""A store with a run in it, on both databases, and receivers that end with their test."""

import pytest
from clocks import Clocked
from dialects import dialect, new_db, new_store_url
from receivers import Receiver
from stores import Store

from gradcanary_server.notify import dispatcher as dispatchers

__all__ = ["dialect", "new_db", "new_store", "new_store_url", "receiver_factory", "store"]


@pytest.fixture
def store(new_store_url):
    made = Store(new_store_url())
    yield made
    made.database.close()


@pytest.fixture
def new_store(new_store_url, monkeypatch):
    """Make stores whose clock can be moved on, under a dispatcher that looks at it often."""
    monkeypatch.setattr(dispatchers, "WAKE_S", 0.01)
    made = []

    def make(**options):
        made.append(Store(new_store_url(), kind=Clocked, **options))
        return made[-1]

    yield make
    for store in made:
        store.database.close()


@pytest.fixture
def receiver_factory():
    made = []

    def make(*answers):
        made.append(Receiver(*answers))
        return made[-1]

    yield make
    for receiver in made:
        receiver.close()
