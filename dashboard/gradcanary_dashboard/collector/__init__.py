"""Reads and changes over the collector's HTTP API."""
