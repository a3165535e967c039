"""Callbacks of Dash that run in a thread: the only way in which one is registered here."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from dash import Dash, Input, Output, State, no_update

Contents = Mapping[str, Any]
Handler = Callable[..., Contents]


def threaded(
    app: Dash, outputs: Mapping[str, Output], *inputs: Input | State, refreshes: bool = False
) -> Callable[[Handler], None]:
    """Register a callback that runs in a thread and returns ``{name: value}`` for some of the outputs.

    Dash runs a plain function on the event loop, where it would stall ingest, and deadlock when it asks the collector
    that is served by the same loop: every server-side callback goes through here. One that ``refreshes`` leaves alone
    what the page was opened with; so does one that waits for a click.
    """

    def decorate(handler: Handler) -> None:
        @functools.wraps(handler)
        async def callback(*values: object) -> dict[str, Any]:
            contents = await asyncio.to_thread(handler, *values)
            return {name: contents.get(name, no_update) for name in outputs}

        register_callback: Callable[[Callable[..., Coroutine[Any, Any, Any]]], Any] = app.callback(
            output=dict(outputs),
            inputs=list(inputs),
            prevent_initial_call=refreshes,
        )
        register_callback(callback)

    return decorate
