"""What looks after a collector asks: does it live, can it work, how much does it do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder

from gradcanary_server.answer_shapes import answered
from gradcanary_server.database import Database
from gradcanary_server.gauges import Gauges
from gradcanary_server.loops import Loop
from gradcanary_server.outages import unavailable
from gradcanary_server.revisions import newest_revision, revision
from gradcanary_server.rules import Rules

OK = "ok"

router = APIRouter()


def registry(database: Database, rules: Rules, loops: Sequence[Loop]) -> CollectorRegistry:
    """Return what ``/metrics`` of one app answers from; ``loops`` may be filled later."""
    made = CollectorRegistry()
    made.register(Gauges(database, rules, lambda: loops))
    ProcessCollector(registry=made)
    return made


@router.get("/healthz", responses=answered("health"))
async def healthz() -> JSONResponse:
    """Answer as long as the process serves requests, also where all threads wait for the store."""
    return JSONResponse({"status": OK})


@router.get("/readyz", response_model=None, responses=answered("readiness", 200, 503))
def readyz(request: Request) -> JSONResponse:
    """Answer 200 where everything works, else 503 and what does not: the database, its tables, each loop."""
    state = request.app.state
    checks = {**_store(state.database), **{loop.name: loop.trouble() or OK for loop in state.loops}}
    is_ready = set(checks.values()) == {OK}
    status = "ready" if is_ready else "not ready"
    headers = {} if is_ready else {"Retry-After": "2"}
    return JSONResponse({"status": status, "checks": checks}, 200 if is_ready else 503, headers)


_AS_ASKED: dict[int | str, dict[str, Any]] = {200: {"content": {"application/openmetrics-text": {}}}}


@router.get("/metrics", response_class=PlainTextResponse, response_model=None, responses=_AS_ASKED)
def metrics(request: Request) -> Response:
    """Answer what Prometheus scrapes, as OpenMetrics where it asks for that."""
    encode, media_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(request.app.state.registry), media_type=media_type)


def _store(database: Database) -> dict[str, str]:
    try:
        with database.read() as connection:
            found = revision(connection)
    except Exception as error:
        known = unavailable(error)
        if known is None:
            raise
        return {"database": known.message}
    expected = newest_revision()
    trouble = database.trouble()
    if trouble is not None:
        return {"database": trouble}
    said = OK if found == expected else f"They are of revision {found}, this collector works with {expected}."
    return {"database": OK, "tables": said}
