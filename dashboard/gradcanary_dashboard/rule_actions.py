"""What a click on the page of rules does: tries other rules on the last runs."""

from __future__ import annotations

from typing import Any, cast

from dash import Dash, Input, Output, State

from gradcanary_dashboard import forms, rules_page
from gradcanary_dashboard.client import Collector
from gradcanary_dashboard.settings_frame import answered
from gradcanary_dashboard.threads import Contents, changing


def register(app: Dash, collector: Collector) -> None:
    """Register the callback of the page of rules."""
    outputs = {"answer": Output("rules-tried", "children"), "search": Output(f"{rules_page.PAGE}-url", "search")}

    @changing(app, outputs, Input("rules-try-do", "n_clicks"), State("rules-text", "value"))
    def try_rules(clicks: object, text: str | None) -> Contents:
        moved: dict[str, str] = {}

        def ask() -> list[Any]:
            tried = cast(dict[str, Any], collector.change("POST", "/rules/trials", {"text": text or ""}))
            moved["search"] = f"?trial={tried['id']}"
            return forms.done("They can be tried; what they would have said comes below.")

        return {"answer": answered(clicks, ask), **moved}
