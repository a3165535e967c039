"""Everything that needs a store is tested on both databases."""

from dialects import new_db, new_store_url

__all__ = ["new_db", "new_store_url"]
