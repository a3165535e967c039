"""The collector as one FastAPI application."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.concurrency import run_in_threadpool
from starlette.middleware.gzip import GZipMiddleware

from gradcanary_server import answers
from gradcanary_server.database import Database
from gradcanary_server.errors import RequestError
from gradcanary_server.settings import Settings


def create_app(settings: Settings) -> FastAPI:
    """Return the collector: ingest, read API, incidents and delivery on one store.

    Raises CollectorError when the store or the rules cannot be opened. ``app.state`` holds ``settings``,
    ``database`` and, once started, ``new_webhook_secret`` (None unless ``settings.webhook`` created an endpoint).
    """
    app = FastAPI(title="gradcanary", lifespan=_lifespan, openapi_url=None, docs_url=None, redoc_url=None)
    app.state.settings = settings
    app.state.database = Database(settings.db)
    app.state.new_webhook_secret = None
    app.add_middleware(GZipMiddleware, minimum_size=1000, compresslevel=1)
    answers.install(app)
    app.add_api_route("/healthz", healthz, methods=["GET"])
    # Last: what mounts at "/" after this answers unknown paths with a page and status 200.
    app.add_api_route("/api/{rest:path}", unknown_path, methods=["GET", "PUT", "POST", "PATCH", "DELETE"])
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    database: Database = app.state.database
    await run_in_threadpool(database.migrate)
    try:
        yield
    finally:
        await run_in_threadpool(database.close)


def healthz() -> dict[str, str]:
    """Answer as long as the process serves requests."""
    return {"status": "ok"}


def unknown_path(rest: str) -> None:
    """Refuse whatever no route of the API took."""
    raise RequestError(404, "not_found", f"There is no /api/{rest} here.")
