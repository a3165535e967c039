"""Collectors on both databases, and receivers that end with their test."""

from support.dialects import dialect, empty_url, new_db, new_store_url
from support.server.fixtures import receiver_factory, store

__all__ = ["dialect", "empty_url", "new_db", "new_store_url", "receiver_factory", "store"]
