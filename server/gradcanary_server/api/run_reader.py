"""The reader of one request about runs: the store, the rules, and answers with an ETag."""

from collections.abc import Callable, Sequence
from typing import Annotated

from fastapi import Depends, Request, Response
from sqlalchemy import Connection

from gradcanary_server.api.http import Json, etag_response
from gradcanary_server.api.services import ServicesDep
from gradcanary_server.incidents import liveness
from gradcanary_server.incidents.liveness import RunStatus


class RunReader:
    """The store and the rules of one read request."""

    def __init__(self, request: Request, services: ServicesDep) -> None:
        self._request = request
        self.database = services.database
        self.measurements = services.measurements
        self.rules = services.rules

    def run_response(self, name: str, build: Callable[[Connection, RunStatus], Json]) -> Response:
        """Return the answer about a run; ``build`` is called only if the client's copy is old."""
        with self.database.read() as connection:
            status = liveness.read_status(connection, name, self.database.now(connection), self.rules.silent)
            return self.runs_response([status], lambda: build(connection, status))

    def runs_response(
        self, statuses: Sequence[RunStatus], build: Callable[[], Json], following: str | None = None
    ) -> Response:
        """Return the answer about runs; its ETag is made of the URL, the rules, the next page, each run and state."""
        parts = [f"{status.row.run_id} {status.row.revision} {status.state}" for status in statuses]
        return etag_response(self._request, [self.rules, following, *parts], build)


async def _wait_for_batches(services: ServicesDep) -> None:
    """Wait until few enough batches are in progress."""
    await services.priority.wait_for_batches()


AFTER_BATCHES = Depends(_wait_for_batches)


async def _reader(request: Request, services: ServicesDep, _: Annotated[None, AFTER_BATCHES]) -> RunReader:
    """Return the reader."""
    return RunReader(request, services)


ReaderDep = Annotated[RunReader, Depends(_reader)]
