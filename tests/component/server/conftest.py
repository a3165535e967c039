"""Everything that needs a store is tested on both databases."""

from support.dialects import dialect, empty_url, new_db, new_store_url
from support.server.fixtures import archive, module_archive, new_store, prompt_rounds, receiver_factory, store

__all__ = [
    "archive",
    "dialect",
    "empty_url",
    "module_archive",
    "new_db",
    "new_store",
    "new_store_url",
    "prompt_rounds",
    "receiver_factory",
    "store",
]
