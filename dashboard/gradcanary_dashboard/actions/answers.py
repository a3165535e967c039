"""How a click is answered, and by whom it was made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dash.exceptions import PreventUpdate

from gradcanary_dashboard.collector.client import Collector
from gradcanary_dashboard.collector.errors import DashboardError
from gradcanary_dashboard.components import forms


def signature(collector: Collector, by: str | None) -> str | None:
    """Return the name that was put in, None where the collector knows who signed in; raises ValueError in words."""
    given = (by or "").strip()
    if not given and not collector.as_reader:
        raise ValueError("Say who you are: the others will see it.")
    return None if collector.as_reader else given


def answered(clicks: object, act: Callable[[], list[Any]]) -> list[Any]:
    """Return the answer to a click: what ``act`` returns, or why not: the collector's words, or those of a ValueError.

    A button that was just drawn has no clicks, and does nothing.
    """
    if not clicks:
        raise PreventUpdate
    try:
        return act()
    except (DashboardError, ValueError) as error:
        return forms.wrong(str(error))
