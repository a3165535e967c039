"""Callbacks of clicks that send a change to the collector."""
