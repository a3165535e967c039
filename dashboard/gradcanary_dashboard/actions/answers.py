"""The answer to a click, and the name of its author."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dash.exceptions import PreventUpdate

from gradcanary_dashboard.collector.client import Collector
from gradcanary_dashboard.collector.errors import DashboardError
from gradcanary_dashboard.components import forms


def signature(collector: Collector, by: str | None) -> str | None:
    """Return the typed name, None after a sign-in: the token has a name. Raises ValueError with a sentence."""
    given = (by or "").strip()
    if not given and not collector.as_reader:
        raise ValueError("Say who you are: the others will see it.")
    return None if collector.as_reader else given


def answer_click(clicks: object, act: Callable[[], list[Any]]) -> list[Any]:
    """Return the result of ``act``, or the message of its DashboardError or ValueError.

    A new button has no clicks, and does nothing.
    """
    if not clicks:
        raise PreventUpdate
    try:
        return act()
    except (DashboardError, ValueError) as error:
        return forms.wrong(str(error))
