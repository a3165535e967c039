"""Collectors on both databases."""

from support.dialects import dialect, new_db, new_store_url

__all__ = ["dialect", "new_db", "new_store_url"]
