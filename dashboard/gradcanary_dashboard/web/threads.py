"""Callbacks of Dash that run in a thread: the only way in which one is registered here."""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from dash import Dash, Input, Output, State, no_update

Contents = Mapping[str, Any]
Handler = Callable[..., Contents]
Answered = TypeVar("Answered")

PAGES = ThreadPoolExecutor(2, "gradcanary-pages")
"""Pages that are opened, and what is new of them (``routes.refresh``), at the same time: they share one interpreter
with ingest, so more at once are no quicker. Not one alone, which may wait for a collector that does not answer.
"""

CHANGES = ThreadPoolExecutor(4, "gradcanary-changes")
"""What people change. A test message waits 10 s for its receiver: meanwhile pages have their threads."""

QUESTIONS = ThreadPoolExecutor(4, "gradcanary-questions")
"""What else the browser asks past Dash: a metric, a cell, the pieces of a file."""


async def apart(pool: ThreadPoolExecutor, function: Callable[..., Answered], *values: object) -> Answered:
    """Return what a function returns in a thread of the pool, asked by the same reader.

    Starlette's own threads are those in which the collector takes batches and answers questions: pages that waited
    in them for its answers would in the end wait for each other.
    """
    asked = functools.partial(contextvars.copy_context().run, function, *values)
    return await asyncio.get_running_loop().run_in_executor(pool, asked)


def threaded(
    app: Dash,
    outputs: Mapping[str, Output],
    *inputs: Input | State,
    refreshes: bool = False,
    running: Sequence[tuple[Output, object, object]] = (),
    pool: ThreadPoolExecutor = PAGES,
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
            contents = await apart(pool, handler, *values)
            return {name: contents.get(name, no_update) for name in outputs}

        register_callback: Callable[[Callable[..., Coroutine[Any, Any, Any]]], Any] = app.callback(
            output=dict(outputs),
            inputs=list(inputs),
            prevent_initial_call=refreshes,
            **({"running": list(running)} if running else {}),
        )
        register_callback(callback)

    return decorate


def changing(
    app: Dash,
    outputs: Mapping[str, Output],
    *inputs: Input | State,
    running: Sequence[tuple[Output, object, object]] = (),
) -> Callable[[Handler], None]:
    """Register a callback that changes something at a click: like ``threaded``, in threads that no page waits for.

    Its buttons are disabled until it has answered. Those of lists that the browser draws tell a store and are no
    components: until then they do nothing, for the answer beside them is busy.
    """
    asks = [each for each in inputs if isinstance(each, Input)]
    pressed = [
        (Output(each.component_id, "disabled"), True, False) for each in asks if each.component_property == "n_clicks"
    ]
    is_told = any(each.component_property == "data" for each in asks)
    busy = [(Output(outputs["answer"].component_id, "aria-busy"), "true", "false")] if is_told else []
    return threaded(app, outputs, *inputs, refreshes=True, running=[*pressed, *busy, *running], pool=CHANGES)
