"""Batches by the short way: a collector takes hundreds of them a second, and little else."""

from __future__ import annotations

from starlette.requests import Request
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gradcanary_server import answers


class Shortcut:
    """Answer what a route takes before any layer behind this one is asked: compression, pages, the search for a route.

    Those took more than half as much of the interpreter as storing the batch (DESIGN.md, 10). The route is still one of
    the app's, for whoever asks it by another method, and for the document.
    """

    def __init__(self, app: ASGIApp, route: Route) -> None:
        self.app = app
        self.route = route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match, found = self.route.matches(scope)
        if match is not Match.FULL:
            await self.app(scope, receive, send)
            return
        request = Request({**scope, **found}, receive, send)
        try:
            answer = await self.route.endpoint(request)
        except Exception as error:  # what nobody foresaw is answered and logged by the server's own layer
            refusal = answers.refusal(request, error)
            if refusal is None:
                raise
            answer = refusal
        await answer(scope, receive, send)
