"""The services of one app, and the dependencies by which a route receives them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import Depends, Request
from prometheus_client import CollectorRegistry

from gradcanary_server.auth.gate import AccessControl
from gradcanary_server.background import BackgroundLoop
from gradcanary_server.incidents.watchdog import Watchdog
from gradcanary_server.ingest.admission import IngestPriority
from gradcanary_server.ingest.service import Ingest
from gradcanary_server.notify.configured_endpoints import ConfiguredEndpoints
from gradcanary_server.notify.sender import Sender
from gradcanary_server.ops.backtests import Backtests
from gradcanary_server.ops.workers import WorkerBoard
from gradcanary_server.rules.config import Rules
from gradcanary_server.settings import Settings
from gradcanary_server.storage.database import Database
from gradcanary_server.tsdb.compactor import Compactor
from gradcanary_server.tsdb.reader import Reader
from gradcanary_server.tsdb.retention import DiskUsage


@dataclass(frozen=True)
class Services:
    """The services of one app, in ``app.state.services``; ``loops`` and what follows are filled at the start.

    ``endpoint_lines``: a line for each configured endpoint, with its secret if it is new. ``new_tokens``: secrets by
    scope, empty unless the app needs tokens and the store had no administrator's. ``board``: that of the
    workers, of which this is one.
    """

    settings: Settings
    rules: Rules
    database: Database
    measurements: Reader
    disk_usage: DiskUsage
    ingest: Ingest
    compactor: Compactor
    watchdog: Watchdog
    backtests: Backtests
    priority: IngestPriority
    gate: AccessControl
    configured: ConfiguredEndpoints
    sender: Sender
    registry: CollectorRegistry
    loops: list[BackgroundLoop]
    endpoint_lines: list[str] = field(default_factory=list)
    new_tokens: dict[str, str] = field(default_factory=dict)
    board: WorkerBoard | None = None


async def get_services(request: Request) -> Services:
    """Return the services of the app that serves a request."""
    services: Services = request.app.state.services
    return services


def _get_service(name: str) -> Callable[[Request], Coroutine[Any, Any, Any]]:
    """Return a dependency on one service; a coroutine, because FastAPI runs plain functions in a thread."""

    async def get(request: Request) -> object:
        return getattr(request.app.state.services, name)

    return get


ServicesDep = Annotated[Services, Depends(get_services)]
BacktestsDep = Annotated[Backtests, Depends(_get_service("backtests"))]
SenderDep = Annotated[Sender, Depends(_get_service("sender"))]
DatabaseDep = Annotated[Database, Depends(_get_service("database"))]
GateDep = Annotated[AccessControl, Depends(_get_service("gate"))]
SettingsDep = Annotated[Settings, Depends(_get_service("settings"))]
