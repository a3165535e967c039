"""The collector as one FastAPI application."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import numpy.ma  # noqa: F401 -- np.unique does at its first call: 20 ms in the middle of somebody's first answer
from fastapi import FastAPI
from fastapi.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware

from gradcanary_server import (
    answers,
    demo_routes,
    endpoint_routes,
    incident_routes,
    ingest_routes,
    json_schemas,
    loops,
    meters,
    openapi,
    operations_routes,
    operator_endpoints,
    read_routes,
    rules,
    rules_file,
    run_routes,
    sign_in,
    silence_routes,
    storage_routes,
    token_routes,
    tokens,
    trial_routes,
)
from gradcanary_server.access import Access, Gate
from gradcanary_server.addresses import Guard
from gradcanary_server.archive import Archive
from gradcanary_server.backtests import Backtests
from gradcanary_server.checkpointer import MOST_PAGES, Checkpointer
from gradcanary_server.compactor import Compactor
from gradcanary_server.courier import Courier
from gradcanary_server.database import Database
from gradcanary_server.deliverer import Deliverer
from gradcanary_server.demo import Demo
from gradcanary_server.headers import SecurityHeaders
from gradcanary_server.ingest import Ingest
from gradcanary_server.layer_sets import KnownSets
from gradcanary_server.log import Log
from gradcanary_server.precedence import Precedence
from gradcanary_server.settings import Settings
from gradcanary_server.storage import Storage
from gradcanary_server.tiles import Tiles
from gradcanary_server.watchdog import Watchdog

LOOPBACK = ("localhost", "*.localhost", "127.0.0.1", "[::1]")
"""Names a browser may ask for: any other one leads here through a stranger's DNS (rebinding)."""

STOP_S = 4.5
"""How long the loops may take to end; a delivery that is under way has 3 s of it."""

DEMO_STOP_S = 1.0
"""How long the demo's trainings may take: longer, and they end behind the collector."""

ROUTES = (
    ingest_routes,
    read_routes,
    run_routes,
    incident_routes,
    silence_routes,
    endpoint_routes,
    demo_routes,
    storage_routes,
    token_routes,
    trial_routes,
    json_schemas,
    sign_in,
    operations_routes,
)


def create_app(settings: Settings) -> FastAPI:
    """Return the collector: ingest, read API, incidents and delivery on one store.

    Raises CollectorError when the store, the rules or the operator's endpoints cannot be opened. ``app.state`` holds
    ``settings``, ``database`` and, once started, ``told``: who is told, and each secret that was made just now; and
    ``new_tokens`` by scope (empty unless tokens are asked for and nobody had one to administer with).
    """
    app = FastAPI(
        title="gradcanary",
        lifespan=_lifespan,
        responses=answers.DOCUMENTED,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        telemetry={"tracing": False, "metrics": False, "logs": False},  # asked for anew by each request
    )
    app.openapi = partial(openapi.document, app)  # type: ignore[method-assign]  # as FastAPI's own guide has it
    _fill(app, settings)
    _guard(app, settings)
    answers.install(app)
    for routes in ROUTES:
        app.include_router(routes.router)
    app.state.served = tuple(app.router.routes)
    # Last: what mounts at "/" after this answers unknown paths with a page and status 200.
    app.add_api_route("/api/{rest:path}", unknown_path, methods=list(answers.METHODS), include_in_schema=False)
    return app


def _guard(app: FastAPI, settings: Settings) -> None:
    """Put in front of the routes what each request passes; the last one added is the first one asked."""
    app.add_middleware(GZipMiddleware, minimum_size=1000, compresslevel=1)
    app.add_middleware(Access, gate=app.state.gate)
    # A stranger's DNS brings no token along: with them every name is fine.
    names = ["*"] if settings.auth else [*LOOPBACK, *settings.hosts]
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=names, www_redirect=False)
    app.add_middleware(SecurityHeaders)


def _fill(app: FastAPI, settings: Settings) -> None:
    state, sets = app.state, KnownSets()
    state.settings = settings
    state.rules = rules.Rules() if settings.rules is None else rules_file.load(settings.rules)
    state.database = Database(settings.db, MOST_PAGES)
    log, tiles = Log(sets), Tiles()
    state.archive = Archive(log, tiles)
    state.storage = Storage(state.database)
    state.ingest = Ingest(state.database, state.rules, sets, log, settings.public_url)
    meters.SPACING.set_function(lambda: state.ingest.cadence.asked())
    state.compactor = Compactor(state.database, log, tiles, state.ingest.settle, settings.raw_days)
    state.watchdog = Watchdog(state.database, state.archive, state.rules)
    state.backtests = Backtests(state.database, settings.db, state.rules)
    state.precedence = Precedence()
    state.gate = Gate(state.database, settings)
    state.new_tokens = {}
    state.demo = Demo()
    state.operators = operator_endpoints.read(settings)
    state.courier = Courier(state.operators.channels, Guard(settings.webhook_networks))
    state.told = ()
    state.loops = []
    state.registry = operations_routes.registry(state.database, state.rules, state.loops)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    database: Database = app.state.database
    with database.claimed():
        await run_in_threadpool(database.migrate)
        await run_in_threadpool(app.state.ingest.rule_versions.begin)
        app.state.told = await run_in_threadpool(operator_endpoints.settle, database, app.state.operators)
        if app.state.settings.auth:
            app.state.new_tokens = await run_in_threadpool(_ensure_tokens, database)
        found = app.state.rules
        deliverer = Deliverer(database, found.pace, app.state.settings.public_url, found.muted, app.state.courier)
        app.state.loops[:] = deliverer, app.state.compactor, app.state.watchdog
        if database.has_one_writer:
            app.state.loops.append(Checkpointer(database))
        app.state.takers = ingest_routes.takers()
        for loop in app.state.loops:
            loop.start()
        try:
            yield
        finally:
            await run_in_threadpool(app.state.demo.stop, DEMO_STOP_S)
            await run_in_threadpool(loops.stop_all, [*app.state.loops, app.state.backtests], STOP_S)
            await run_in_threadpool(app.state.takers.shutdown)
            await run_in_threadpool(database.close)


def _ensure_tokens(database: Database) -> dict[str, str]:
    with database.set_up() as connection:
        return tokens.ensure_first(connection, database.now(connection))


def unknown_path() -> None:
    """Refuse what no route of the API took; which refusal it is depends on what else the path takes."""
    raise HTTPException(404)
