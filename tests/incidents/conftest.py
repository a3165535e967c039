"""A store with a run in it, on both databases, and receivers that end with their test."""

import pytest
from dialects import new_db, new_store_url
from receivers import Receiver
from stores import Store

__all__ = ["new_db", "new_store_url", "receiver_factory", "store"]


@pytest.fixture
def store(new_store_url):
    made = Store(new_store_url())
    yield made
    made.database.close()


@pytest.fixture
def receiver_factory():
    made = []

    def make(*answers):
        made.append(Receiver(*answers))
        return made[-1]

    yield make
    for receiver in made:
        receiver.close()
