"""Receivers of messages, for Alertmanager."""

from support.server.fixtures import receiver_factory

__all__ = ["receiver_factory"]
