"""The collector as one FastAPI application: its parts, routes, middleware and background loops."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import numpy.ma  # noqa: F401 -- np.unique imports it at its first call: 20 ms in the middle of a first answer
from anyio import to_thread
from fastapi import FastAPI
from fastapi.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.routing import Route

from gradcanary import __version__
from gradcanary_server import background, caches, telemetry
from gradcanary_server.api import (
    endpoints,
    errors,
    incidents,
    ingest,
    measurements,
    operations,
    rules,
    runs,
    sign_in,
    silences,
)
from gradcanary_server.api import tokens as api_tokens
from gradcanary_server.api.middleware import Access, SecurityHeaders
from gradcanary_server.api.services import Services
from gradcanary_server.auth import tokens as auth_tokens
from gradcanary_server.auth.gate import AccessControl
from gradcanary_server.incidents.picture_data import PictureReader
from gradcanary_server.incidents.watchdog import Watchdog
from gradcanary_server.ingest.admission import (
    MAX_BATCHES,
    MAX_CLUSTER_BATCHES,
    MAX_PARALLEL_BATCHES,
    Backpressure,
    IngestPriority,
)
from gradcanary_server.ingest.service import Ingest
from gradcanary_server.mcp import endpoint as mcp_endpoint
from gradcanary_server.notify import configured_endpoints
from gradcanary_server.notify.dispatcher import Dispatcher
from gradcanary_server.notify.egress import EgressPolicy
from gradcanary_server.notify.pictures import Pictures
from gradcanary_server.notify.sender import Sender
from gradcanary_server.ops.backtests import Backtests
from gradcanary_server.ops.workers import WorkerBoard
from gradcanary_server.rules import config_file, layer_config
from gradcanary_server.rules.config import Rules
from gradcanary_server.settings import Settings
from gradcanary_server.storage.database import Database
from gradcanary_server.storage.layers import LayerSetCache
from gradcanary_server.storage.sqlite_writer import MAX_LOG_PAGES, Checkpointer
from gradcanary_server.tsdb.compactor import Compactor
from gradcanary_server.tsdb.log import BatchLog
from gradcanary_server.tsdb.reader import Reader
from gradcanary_server.tsdb.retention import DiskUsage
from gradcanary_server.tsdb.tiles import TileStore

LOOPBACK = ("localhost", "*.localhost", "127.0.0.1", "[::1]")
"""Allowed Host headers: another name leads here through an attacker's DNS (rebinding)."""

STOP_S = 4.5
"""For the loops to end; a delivery under way has 3 s of it."""

CLUSTER_THREADS = 2
"""Of requests on a cluster, but for messages of agents, which have their own. All threads share one interpreter: with
the 40 of anyio, beside six readers, a batch that opens an incident waited for up to 2 s (docs/results/scaling.md). A
node that hangs holds both threads for 2 s at most. Nothing watches a plain PostgreSQL like that, so there all 40 are
kept.
"""

ROUTES = (ingest, measurements, runs, incidents, silences, endpoints, api_tokens, rules, sign_in, operations)


def create_app(settings: Settings, board: WorkerBoard | None = None) -> FastAPI:
    """Return the collector on one store; ``app.state.services`` holds its parts, ``board`` is that of its workers.

    Raises CollectorError if the store, the rules or the configured endpoints cannot be opened.
    """
    app = FastAPI(
        title="gradcanary",
        version=__version__,
        lifespan=_lifespan,
        responses=errors.DOCUMENTED,
        openapi_url=None,  # served by a route of ours, in a thread
        webhooks=endpoints.webhooks,
        docs_url=None,
        redoc_url=None,
        telemetry={"tracing": False, "metrics": False, "logs": False},  # else read again by each request
    )
    app.state.services = _services(settings, board)
    # The middleware that is added last comes first.
    app.add_middleware(GZipMiddleware, minimum_size=1000, compresslevel=1)
    app.add_middleware(ingest.BatchShortcut)
    app.add_middleware(Access, gate=app.state.services.gate)
    # An attacker's DNS brings no token along: with tokens every name is fine.
    names = ["*"] if settings.auth else [*LOOPBACK, *settings.hosts]
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=names, www_redirect=False)
    app.add_middleware(SecurityHeaders, missing=app.state.services.database.missing)
    errors.install(app)
    for routes in ROUTES:
        app.include_router(routes.router)
    app.state.mcp = mcp_endpoint.McpEndpoint()
    app.router.routes.append(Route(mcp_endpoint.PATH, app.state.mcp, methods=["POST"], include_in_schema=False))
    app.state.served = tuple(app.router.routes)
    # Last: what mounts at "/" after this answers unknown paths with a page and status 200.
    for path in ("/api/{rest:path}", mcp_endpoint.PATH):
        app.add_api_route(path, unknown_path, methods=list(errors.METHODS), include_in_schema=False)
    return app


def _services(settings: Settings, board: WorkerBoard | None) -> Services:
    shares = caches.split_cache_budget(settings.cache_mb * caches.MIB)
    in_force = Rules() if settings.rules is None else config_file.load(settings.rules)
    database = Database(settings.db, MAX_LOG_PAGES)
    layer_config.COMPILED.resize(shares.rules)
    sets, tiles = LayerSetCache(shares.layers), TileStore(shares.tiles)
    log = BatchLog(sets, shares.batches)
    measurements = Reader(log, tiles)
    ingest = Ingest(database, in_force, sets, measurements, settings.public_url, shares.states)
    ingest.backpressure = Backpressure(workers=settings.workers)
    telemetry.SPACING.set_function(lambda: ingest.backpressure.interval_s())
    configured = configured_endpoints.read_configured(settings)
    draw = partial(PictureReader(database, measurements, in_force).draw, hides_silenced=True)
    loops: list[background.BackgroundLoop] = []
    return Services(
        settings=settings,
        rules=in_force,
        database=database,
        measurements=measurements,
        disk_usage=DiskUsage(database),
        ingest=ingest,
        compactor=Compactor(database, log, tiles, ingest.merge_overdue, settings.raw_days),
        watchdog=Watchdog(database, in_force),
        backtests=Backtests(settings.db, in_force, shares.backtests),
        priority=IngestPriority(MAX_BATCHES if database.has_one_writer else MAX_PARALLEL_BATCHES),
        gate=AccessControl(database, settings),
        configured=configured,
        sender=Sender(configured.channels, EgressPolicy(settings.webhook_networks), Pictures(draw)),
        loops=loops,
        registry=operations.create_registry(database, in_force, loops, board),
        board=board,
    )


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    services: Services = app.state.services
    database, settings, in_force = services.database, services.settings, services.rules
    with database.exclusive():
        await run_in_threadpool(prepare_store, services)
        dispatcher = Dispatcher(
            database,
            in_force.pace,
            settings.public_url,
            in_force.muted,
            services.sender,
            services.measurements,
        )
        services.loops[:] = dispatcher, services.compactor, services.watchdog
        if database.has_one_writer:
            services.loops.append(Checkpointer(database))
        if database.nodes is not None:
            services.loops.append(database.nodes)
            to_thread.current_default_thread_limiter().total_tokens = CLUSTER_THREADS
            services.priority.max_batches = MAX_CLUSTER_BATCHES
        app.state.ingest_threads = ingest.StoreThreads(database.nodes)  # again at each start: the end shut them down
        for loop in services.loops:
            loop.start()
        reports = operations.begin_reports(services)
        try:
            yield
        finally:
            if reports is not None:
                reports.cancel()
            await app.state.mcp.close()
            await services.backtests.stop()
            await run_in_threadpool(background.stop_all, services.loops, STOP_S)
            await run_in_threadpool(app.state.ingest_threads.shutdown)
            await run_in_threadpool(database.close)


def prepare_store(services: Services) -> None:
    """Migrate the store, and write the rules, the endpoints and the first tokens of this collector to it."""
    database = services.database
    database.migrate()
    database.watch_nodes()
    services.ingest.rule_versions.begin()
    services.endpoint_lines[:] = configured_endpoints.sync_configured(database, services.configured)
    is_first = services.board is None  # a worker's parent did it, and is the one that prints them
    if services.settings.auth and is_first:
        services.new_tokens.clear()
        services.new_tokens.update(_ensure_tokens(database))


def _ensure_tokens(database: Database) -> dict[str, str]:
    with database.setup_transaction() as connection:
        return auth_tokens.ensure_first(connection, database.now(connection))


def unknown_path() -> None:
    """Raise 404 for a path that no route took; the handler makes it 405 if the path takes other methods."""
    raise HTTPException(404)
