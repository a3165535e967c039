"""Severities, and the rules about absence."""

from __future__ import annotations

SEVERITIES = ("information", "warning", "critical")
"""The least first."""

ABSENCE_RULES = ("silent", "stalled")
"""Rules about missing requests or steps: the end of the run resolves them."""
