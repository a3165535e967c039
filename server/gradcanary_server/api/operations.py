"""Routes for operators: health, readiness, metrics of the collector, and what the store takes on disk."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from sqlalchemy import select
from typing_extensions import TypedDict

from gradcanary_server.api.http import Json
from gradcanary_server.api.models import Count
from gradcanary_server.api.services import Services, ServicesDep
from gradcanary_server.background import BackgroundLoop
from gradcanary_server.clock import UnixTime
from gradcanary_server.errors import StoreUnavailable
from gradcanary_server.ops.store_metrics import ProcessMetrics, StoreMetrics
from gradcanary_server.ops.workers import WorkerBoard, WorkerMetrics
from gradcanary_server.rules.config import Rules
from gradcanary_server.storage.database import Database
from gradcanary_server.storage.maintenance import head_revision, revision
from gradcanary_server.storage.schema import run
from gradcanary_server.tsdb import retention
from gradcanary_server.validation import Step

OK = "ok"

_METRICS: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {}, "application/openmetrics-text": {}}}}

router = APIRouter()


class Health(TypedDict):
    """The health of the process."""

    status: str


class Readiness(TypedDict):
    """The result of each check."""

    status: str
    checks: dict[str, str]


class RunSize(TypedDict):
    """A run and the size of its measurements; ``bytes`` is null if they were not counted yet."""

    run: str
    bytes: Count | None
    step: Step | None
    last_seen: UnixTime
    archived: bool


class OtherRuns(TypedDict):
    """The runs that are not listed."""

    runs: Count
    bytes: Count


class StorageShape(TypedDict):
    """The size of a store, at the time ``counted``; ``raw_days``: retention of single samples, null for ever.

    ``raw_until``: no sample is deleted before, because the clock is not trusted yet (:mod:`retention`).
    """

    raw_days: float | None
    raw_until: UnixTime | None
    bytes: Count
    counted: UnixTime
    runs: list[RunSize]
    others: OtherRuns


@router.get("/healthz")
async def healthz() -> Health:
    """Answer as long as the process serves requests, also while all threads wait for the store."""
    return {"status": OK}


@router.get("/readyz", response_model=Readiness, responses={503: {"model": Readiness}})
def readyz(services: ServicesDep) -> JSONResponse:
    """Answer 200 if the database, its tables and each loop work, else 503 with the reasons.

    Of several workers the one that answers has to work. The others are told only: connections reach those that live.
    A node of a cluster that is away is named, and the others are served.
    """
    board = services.board
    parts = {loop.name: loop.health() or OK for loop in services.loops} if board is None else board.checks()
    checks = {**_check_store(services.database), **parts}
    others = () if board is None else board.others()
    is_ready = {said for name, said in checks.items() if name not in others} == {OK}
    status = "ready" if is_ready else "not ready"
    if (missing := services.database.missing()) is not None:  # the runs of the other nodes are served
        checks["nodes"] = missing
    headers = {} if is_ready else {"Retry-After": "2"}
    return JSONResponse({"status": status, "checks": checks}, 200 if is_ready else 503, headers)


@router.get("/metrics", response_class=Response, responses=_METRICS)
def metrics(request: Request, services: ServicesDep) -> Response:
    """Answer the metrics for Prometheus, as OpenMetrics if the client accepts it."""
    encode, media_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(services.registry), media_type=media_type)


@router.get("/api/v1/openapi.json", include_in_schema=False)
def openapi(request: Request) -> JSONResponse:
    """Answer the OpenAPI document; in a thread, because the first call takes half a second."""
    return JSONResponse(request.app.openapi())


@router.get("/api/v1/storage", response_model=StorageShape)
def show_storage(services: ServicesDep, limit: Annotated[int, Query(ge=1, le=1_000)] = 100) -> Json:
    """Answer the size of the store on disk, and of the measurements of each run, the largest first."""
    use, raw_days, database = services.disk_usage.use(), services.settings.raw_days, services.database
    with database.read() as connection:
        query = select(run.c.run_id, run.c.name.label("run"), run.c.step, run.c.last_seen, run.c.archived)
        rows = connection.execute(query).mappings().all()
        doubted_until = retention.doubted_until(connection, database.now(connection))
    rows = sorted(rows, key=lambda row: (-use.runs.get(row["run_id"], 0), row["run"]))
    return {
        "raw_days": raw_days,
        "raw_until": None if raw_days is None else doubted_until,
        "bytes": use.store,
        "counted": use.at,
        "runs": [{**row, "bytes": use.runs.get(row["run_id"])} for row in rows[:limit]],
        "others": {"runs": len(rows[limit:]), "bytes": sum(use.runs.get(row["run_id"], 0) for row in rows[limit:])},
    }


def create_registry(
    database: Database, rules: Rules, loops: Sequence[BackgroundLoop], board: WorkerBoard | None = None
) -> CollectorRegistry:
    """Return the registry behind ``/metrics`` of one app, or of all workers; ``loops`` may be filled later."""
    registry = _process_registry(loops) if board is None else CollectorRegistry()
    registry.register(StoreMetrics(database, rules))
    if board is not None:
        registry.register(WorkerMetrics(board))
    return registry


def _process_registry(loops: Sequence[BackgroundLoop]) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(ProcessMetrics(lambda: loops))
    ProcessCollector(registry=registry)
    return registry


def begin_reports(services: Services) -> asyncio.Task[None] | None:
    """Start to report the health and the metrics of this process, if it is one of several workers."""
    if services.board is None:
        return None
    reports = services.board.keep_publishing(services.loops, _process_registry(services.loops))
    return asyncio.create_task(reports)


def _check_store(database: Database) -> dict[str, str]:
    try:
        with database.read() as connection:
            current = revision(connection)
    except StoreUnavailable as error:
        return {"database": error.message}
    reason = database.health()
    if reason is not None:
        return {"database": reason}
    head = head_revision()
    tables = OK if current == head else f"They are of revision {current}, this collector works with {head}."
    return {"database": OK, "tables": tables}
