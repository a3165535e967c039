"""A store with a run in it, and receivers that end with their test."""

import pytest
from receivers import Receiver
from stores import Store


@pytest.fixture
def store(tmp_path):
    made = Store(tmp_path / "gradcanary.db")
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
