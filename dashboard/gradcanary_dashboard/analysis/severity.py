"""Severities, and rules of what did not come."""

from __future__ import annotations

SEVERITIES = ("information", "warning", "critical")
"""The least first."""

OF_THE_CLOCK = ("silent", "stalled")
"""Rules of what did not come: the end of a run is the answer to them."""
