"""Endpoints that get no messages because they fail: no message can report that."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from gradcanary_dashboard.collector.client import Collector
from gradcanary_dashboard.text.deliveries import failure

FAILS_AFTER_S = 600.0
"""Longer than the restart of a receiver."""


def load(collector: Collector) -> list[Mapping[str, Any]]:
    """Return the endpoints that failures disabled, and those that fail now."""
    return [each for each in collector.endpoints().body["endpoints"] if _is_failing(each)]


def version(collector: Collector) -> str:
    """Return the version of :func:`load`."""
    sentences = json.dumps([failure(each) for each in load(collector)])
    return hashlib.sha256(sentences.encode()).hexdigest()[:16]


def _is_failing(endpoint: Mapping[str, Any]) -> bool:
    if endpoint["state"] == "disabled" or endpoint["failing_since"] is None:
        return bool(endpoint["disabled_by"] == "failures")
    since, last = (datetime.fromisoformat(endpoint[key]) for key in ("failing_since", "last_failure"))
    return (last - since).total_seconds() >= FAILS_AFTER_S
