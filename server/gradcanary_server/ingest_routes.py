"""Where sessions send: bodies are read on the event loop, bounded, and stored in a thread."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from email.utils import parsedate_to_datetime
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from fastapi.concurrency import run_in_threadpool

from gradcanary import wire
from gradcanary_server import bodies, meters, requests
from gradcanary_server.answer_shapes import Responses, answered
from gradcanary_server.answers import Refusal
from gradcanary_server.ingest import Ingest
from gradcanary_server.precedence import Precedence

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
"""What agents are told, beside what everybody is, and what they do."""

_OTHER_PROTOCOL: Responses = {426: {"model": Refusal, "description": "A protocol that is not spoken here: kept."}}

TAKERS = 16
"""Threads that store batches: on SQLite one works and the others wait for the disk, as many as share a flush; on
PostgreSQL the interpreter serves no more."""

Run = Annotated[str, Path(json_schema_extra={"pattern": requests.RUN})]
Session = Annotated[str, Path(json_schema_extra={"pattern": requests.ID})]

router = APIRouter(
    prefix="/api/v1/runs/{run}/sessions/{session}",
    responses={status: {"model": Refusal, "description": why} for status, why in _REFUSED.items()},
)


@router.put("", responses=answered("reply") | _OTHER_PROTOCOL)
async def hello(request: Request, run: Run, session: Session) -> Response:
    """Take a Hello."""
    requests.check_names(run, session)
    raw = await bodies.read(request, gzip=True)
    return await _answer(_ingest(request).hello, run, session, raw, _sent(request.headers.get("date")))


def takers() -> ThreadPoolExecutor:
    """Return threads of their own for batches: in those of all other requests they would wait behind questions."""
    return ThreadPoolExecutor(TAKERS, "gradcanary-ingest")


async def batch(request: Request) -> Response:
    """Take a Batch."""
    run, session, seq = (request.path_params[name] for name in ("run", "session", "seq"))
    requests.check_names(run, session)
    number = requests.seq(seq)
    with meters.Taking() as taking:
        raw = await bodies.read(request)
        precedence: Precedence = request.app.state.precedence
        with precedence.taken():
            taken = asyncio.get_running_loop().run_in_executor
            reply = await taken(request.app.state.takers, _ingest(request).batch, run, session, number, raw)
        taking.outcome = reply.status
    return _replied(reply)


# As a plain route: what FastAPI would do before it, for each batch, costs more than to read one.
router.add_route(f"{router.prefix}/batches/{{seq}}", batch, methods=["POST"])


@router.post("/heartbeat", responses=answered("reply"))
async def heartbeat(request: Request, run: Run, session: Session) -> Response:
    """Take a Heartbeat."""
    requests.check_names(run, session)
    raw = await bodies.read(request)
    return await _answer(_ingest(request).heartbeat, run, session, raw)


@router.post("/end", responses=answered("reply"))
async def end(request: Request, run: Run, session: Session) -> Response:
    """Take an End."""
    requests.check_names(run, session)
    raw = await bodies.read(request)
    return await _answer(_ingest(request).end, run, session, raw)


def _sent(date: str | None) -> float | None:
    """Return the unix time of a Date header, None where there is none that can be read."""
    try:
        return None if date is None else parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError):
        return None


def _ingest(request: Request) -> Ingest:
    ingest: Ingest = request.app.state.ingest
    return ingest


async def _answer(store: Callable[..., wire.Reply], *arguments: object) -> Response:
    return _replied(await run_in_threadpool(store, *arguments))


def _replied(reply: wire.Reply) -> Response:
    return Response(wire.dump(reply), media_type="application/json")
