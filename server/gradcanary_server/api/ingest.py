"""Routes of ingest: bodies are read on the event loop with a limit, and stored in a thread."""

import asyncio
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from email.utils import parsedate_to_datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request, Response, params
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from gradcanary import wire
from gradcanary_server import telemetry, validation
from gradcanary_server.api.errors import Refusal, error_response
from gradcanary_server.api.http import read_body
from gradcanary_server.api.services import get_services
from gradcanary_server.errors import RequestError, StoreUnavailable
from gradcanary_server.ingest import messages
from gradcanary_server.storage.citus_nodes import Nodes

_REFUSED = {
    400: "No JSON, no gzip, or cut short: set aside.",
    401: "No token that is known: kept, and sent again.",
    403: "A token that may not send, or a page of another site: kept, and sent again.",
    404: "`unknown_session`: a hello comes first.",
    409: "`unknown_layer_set`: a hello with it comes first. `conflict`, `superseded`: set aside.",
    410: "`run_deleted`: this session sends no more.",
    413: "Too large: sent again in halves.",
    415: "Something else than `application/json`, or compressed: set aside.",
    422: "It breaks a promise of the wire, which `field` names: set aside.",
}
"""Refusals of these routes only, and what the agent does with the message."""

_OTHER_PROTOCOL: dict[int | str, dict[str, Any]] = {
    426: {"model": Refusal, "description": "A protocol that is not spoken here: kept."}
}

STORE_THREADS = 16
"""Threads that store messages. SQLite: one works and the others wait for its flush, which they share. PostgreSQL: the
interpreter serves no more."""

NODE_THREADS = STORE_THREADS // 2
"""Of them at a time for runs of one node of a cluster: one that hangs leaves the other threads to other runs."""

ANSWER_S = 7.0
"""Less than the 10 s after which agents give up without a reason."""

Run = Annotated[str, Path(json_schema_extra={"pattern": validation.RUN})]
Session = Annotated[str, Path(json_schema_extra={"pattern": messages.ID})]
Seq = Annotated[str, Path(json_schema_extra={"type": "integer", "minimum": 0, "maximum": validation.MAX_STEP})]


class WireRoute(APIRoute):
    """A route that FastAPI documents and does not run: that would cost more than reading a batch does."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the route's function with the request and the texts of its path, and send the response."""
        if scope["method"] not in (self.methods or ()):
            await super().handle(scope, receive, send)  # 405
            return
        request = Request(scope, receive)
        messages.check_names(request.path_params["run"], request.path_params["session"])
        response: Response = await self.endpoint(request, **request.path_params)
        await response(scope, receive, send)


def documented_body(kind: type) -> params.Depends:
    """Return a dependency that documents the body of a route; WireRoute never calls it."""

    def document(message: object) -> None: ...

    document.__annotations__["message"] = kind
    dependency: params.Depends = Depends(document)
    return dependency


class StoreThreads:
    """Threads that store messages, apart from those of reads, behind which messages would wait."""

    def __init__(self, nodes: Nodes | None) -> None:
        self._nodes = nodes
        self._threads = ThreadPoolExecutor(STORE_THREADS, "gradcanary-ingest")
        self._turns: defaultdict[int, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(NODE_THREADS))

    def submit(self, store: Callable[..., wire.Reply], run: str, *arguments: object) -> Awaitable[wire.Reply]:
        """Store a message of a run in a thread, as soon as its node has less than ``NODE_THREADS``."""
        node = None if self._nodes is None else self._nodes.node_of(run)
        if node is None:
            return asyncio.get_running_loop().run_in_executor(self._threads, store, run, *arguments)
        return self._take_turn(node, store, run, *arguments)

    async def _take_turn(self, node: int, store: Callable[..., wire.Reply], *arguments: object) -> wire.Reply:
        async with self._turns[node]:
            return await asyncio.get_running_loop().run_in_executor(self._threads, store, *arguments)

    def shutdown(self) -> None:
        """End the threads, after what they store."""
        self._threads.shutdown()


router = APIRouter(
    prefix="/api/v1/runs/{run}/sessions/{session}",
    responses={status: {"model": Refusal, "description": why} for status, why in _REFUSED.items()},
    route_class=WireRoute,
)


@router.put("", response_model=wire.Reply, responses=_OTHER_PROTOCOL, dependencies=[documented_body(wire.Hello)])
async def hello(request: Request, run: Run, session: Session) -> Response:
    """Store a Hello."""
    raw = await read_body(request, gzip=True)
    services = await get_services(request)
    return _to_json(await _store(request, services.ingest.hello, run, session, raw, _sent_at(request)))


@router.post("/batches/{seq}", response_model=wire.Reply, dependencies=[documented_body(wire.Batch)])
async def batch(request: Request, run: Run, session: Session, seq: Seq) -> Response:
    """Store a Batch."""
    number = messages.parse_seq(seq)
    with telemetry.BatchTimer() as timer:
        raw = await read_body(request)
        services = await get_services(request)
        with services.priority.track():
            reply = await _store(request, services.ingest.batch, run, session, number, raw)
        timer.outcome = reply.status
    return _to_json(reply)


class BatchShortcut:
    """ASGI middleware behind access control, which stores batches: the router and what it passes through take longer.

    Its replies are not compressed.
    """

    _PATH = re.compile(r"/api/v1/runs/(?P<run>[^/]+)/sessions/(?P<session>[^/]+)/batches/(?P<seq>[^/]+)", re.DOTALL)

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_post = scope["type"] == "http" and scope["method"] == "POST"
        match = self._PATH.fullmatch(scope["path"]) if is_post else None
        if match is None:
            await self.app(scope, receive, send)
            return
        response: Response
        try:
            messages.check_names(match["run"], match["session"])
            response = await batch(Request(scope, receive), **match.groupdict())
        except RequestError as error:
            response = error_response(error)
        await response(scope, receive, send)


@router.post("/heartbeat", response_model=wire.Reply, dependencies=[documented_body(wire.Heartbeat)])
async def heartbeat(request: Request, run: Run, session: Session) -> Response:
    """Store a Heartbeat."""
    raw = await read_body(request)
    services = await get_services(request)
    return _to_json(await _store(request, services.ingest.heartbeat, run, session, raw))


@router.post("/end", response_model=wire.Reply, dependencies=[documented_body(wire.End)])
async def end(request: Request, run: Run, session: Session) -> Response:
    """Store an End."""
    raw = await read_body(request)
    services = await get_services(request)
    return _to_json(await _store(request, services.ingest.end, run, session, raw))


def _sent_at(request: Request) -> float | None:
    """Return the unix time of the Date header, None if it is missing or invalid."""
    date = request.headers.get("date")
    try:
        return None if date is None else parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError):
        return None


async def _store(request: Request, store: Callable[..., wire.Reply], run: str, *arguments: object) -> wire.Reply:
    """Store a message in a thread; after a 503 a transaction still ends, and the repeated message is a duplicate."""
    threads: StoreThreads = request.app.state.ingest_threads
    try:
        return await asyncio.wait_for(threads.submit(store, run, *arguments), ANSWER_S)
    except asyncio.TimeoutError as error:
        raise StoreUnavailable("The database did not answer in time.") from error


def _to_json(reply: wire.Reply) -> Response:
    return Response(wire.dump(reply), media_type="application/json")
