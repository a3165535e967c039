"""Callbacks of Dash that run in a thread: every server-side callback is registered here."""

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
Result = TypeVar("Result")

PAGES = ThreadPoolExecutor(2, "gradcanary-pages")
"""Threads that open and refresh pages, their metrics and cells. They share one interpreter with ingest: more of them
are no faster, and batches wait longer (docs/results/performance.md, "A team"). One alone could wait for a collector
that does not answer.
"""

CHANGES = ThreadPoolExecutor(4, "gradcanary-changes")
"""Threads of changes. A test message waits 10 s for its receiver, which must not hold up pages."""

FILES = ThreadPoolExecutor(2, "gradcanary-files")
"""Threads of what takes long and is awaited by nobody else: the pieces of a download, packed assets."""


async def in_thread(pool: ThreadPoolExecutor, function: Callable[..., Result], *values: object) -> Result:
    """Call a function in a thread of the pool, with the credentials of the same reader.

    Starlette's own threads take batches and answer requests of the API. Pages that waited in them for such answers
    would wait for each other.
    """
    call = functools.partial(contextvars.copy_context().run, function, *values)
    return await asyncio.get_running_loop().run_in_executor(pool, call)


def threaded(
    app: Dash,
    outputs: Mapping[str, Output],
    *inputs: Input | State,
    refreshes: bool = False,
    running: Sequence[tuple[Output, object, object]] = (),
    pool: ThreadPoolExecutor = PAGES,
) -> Callable[[Handler], None]:
    """Register a callback that runs in a thread and returns ``{name: value}`` for some of the outputs.

    Dash runs a plain function on the event loop. There it would stall ingest, and deadlock when it requests the
    collector that the same loop serves. One that ``refreshes`` is not called when the page opens. ``running`` are
    properties with their values until the callback has answered, and afterwards: a button that must not be pressed
    twice is disabled.
    """

    def decorate(handler: Handler) -> None:
        @functools.wraps(handler)
        async def callback(*values: object) -> dict[str, Any]:
            contents = await in_thread(pool, handler, *values)
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

    Its buttons are disabled until it has answered. Buttons in lists that the browser draws are not components: they
    write into a store, and do nothing while the answer beside them is busy.
    """
    asks = [each for each in inputs if isinstance(each, Input)]
    pressed = [
        (Output(each.component_id, "disabled"), True, False) for each in asks if each.component_property == "n_clicks"
    ]
    is_told = any(each.component_property == "data" for each in asks)
    busy = [(Output(outputs["answer"].component_id, "aria-busy"), "true", "false")] if is_told else []
    return threaded(app, outputs, *inputs, refreshes=True, running=[*pressed, *busy, *running], pool=CHANGES)
