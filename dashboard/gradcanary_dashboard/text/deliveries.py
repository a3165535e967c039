"""Deliveries and failing endpoints as text. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

WHY = {"expired": "not delivered in time", "disabled": "its endpoint was disabled"}
"""The reason why a message did not arrive, by the API's state."""


def whom(told: Mapping[str, Any]) -> str:
    """Return the name of an endpoint, or its host."""
    name = str(told["name"])
    return urlsplit(name).netloc or name if "://" in name else name or "webhook"


def message(told: Mapping[str, Any]) -> str:
    """Return kind and state of a message: ``opened, delivered``."""
    return f"{told['kind']}, {fate(told['state'])}"


def fate(state: str) -> str:
    """Return the state of a message: ``delivered``, ``pending``, ``expired: not delivered in time``."""
    return f"{state}: {WHY[state]}" if state in WHY else state


def failure(endpoint: Mapping[str, Any]) -> str:
    """Return the sentence about a failing endpoint: its name, the time and the reason."""
    whom = " ".join(part for part in (endpoint["name"], endpoint["url"]) if part)
    if endpoint["state"] == "disabled":
        again = f"gradcanary endpoints set {endpoint['id']} --enable"
        return f"{whom} is disabled since {_moment(endpoint['since'])}: {endpoint['reason']}. Enable it: {again}"
    return f"{whom} fails since {_moment(endpoint['failing_since'])}: {endpoint['last_error']}"


def _moment(text: str) -> str:
    return f"{text[:16].replace('T', ' ')} UTC"
