"""Collectors on both databases, and receivers of their messages."""

from support.dialects import dialect, new_db, new_store_url
from support.server.fixtures import receiver_factory

__all__ = ["dialect", "new_db", "new_store_url", "receiver_factory"]
