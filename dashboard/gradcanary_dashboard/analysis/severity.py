"""Severities, and the rules about the process."""

from __future__ import annotations

SEVERITIES = ("information", "warning", "critical")
"""The least first."""

ABSENCE_RULES = ("silent", "stalled")
"""Rules about missing requests or steps: the end of the run resolves them."""

PROCESS_RULES = (*ABSENCE_RULES, "crash")
"""Rules about the process, not about layers: what they report comes last in a headline."""
