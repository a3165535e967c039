"""Everything that needs a store is tested on both databases."""

import pytest
from archives import Store
from dialects import dialect, empty_url, new_db, new_store_url

__all__ = ["dialect", "empty_url", "new_db", "new_store_url"]


@pytest.fixture(scope="module")
def module_store(new_store_url):
    store = Store(new_store_url())
    yield store
    store.database.close()


@pytest.fixture
def store(module_store):
    module_store.clear()
    return module_store
