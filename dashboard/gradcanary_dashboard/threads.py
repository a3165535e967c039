"""Callbacks of Dash that run in a thread: the only way in which one is registered here."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from dash import Dash, Input, Output, State, no_update

Contents = Mapping[str, Any]
Handler = Callable[..., Contents]

_TURNS = threading.BoundedSemaphore(2)
"""Callbacks at the same time: they share one interpreter with ingest, so more at once are no quicker. Not one alone,
which may wait for a collector that does not answer.
"""


def _in_turn(handler: Handler, *values: object) -> Contents:
    with _TURNS:
        return handler(*values)


def threaded(
    app: Dash,
    outputs: Mapping[str, Output],
    *inputs: Input | State,
    refreshes: bool = False,
    running: Sequence[tuple[Output, object, object]] = (),
) -> Callable[[Handler], None]:
    """Register a callback that runs in a thread and returns ``{name: value}`` for some of the outputs.

    Dash runs a plain function on the event loop, where it would stall ingest, and deadlock when it asks the collector
    that is served by the same loop: every server-side callback goes through here. One that ``refreshes`` leaves alone
    what the page was opened with; so does one that waits for a click. ``running`` says what
    is so until it has answered, and what afterwards: a button that must not be pressed twice is disabled.
    """

    def decorate(handler: Handler) -> None:
        @functools.wraps(handler)
        async def callback(*values: object) -> dict[str, Any]:
            contents = await asyncio.to_thread(_in_turn, handler, *values)
            return {name: contents.get(name, no_update) for name in outputs}

        register_callback: Callable[[Callable[..., Coroutine[Any, Any, Any]]], Any] = app.callback(
            output=dict(outputs),
            inputs=list(inputs),
            prevent_initial_call=refreshes,
            **({"running": list(running)} if running else {}),
        )
        register_callback(callback)

    return decorate
