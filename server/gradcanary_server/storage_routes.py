"""What is kept how long, and what takes how much room, over HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query, Request

from gradcanary_server import retention, storage
from gradcanary_server.database import Database
from gradcanary_server.storage import Storage, Weight
from gradcanary_server.timestamps import timestamp

router = APIRouter(prefix="/api/v1")


@dataclass(frozen=True)
class Others:
    """The runs that are not listed."""

    runs: int
    bytes: int


@dataclass(frozen=True)
class Kept:
    """What a store holds; ``raw_days``: how long single samples are kept, None for ever; ``counted``: when.

    ``raw_until``: before when none of them go, because the clock is not believed yet (:mod:`retention`).
    """

    raw_days: float | None
    raw_until: str | None
    bytes: int
    counted: str
    runs: list[Weight]
    others: Others


@router.get("/storage")
def show_storage(request: Request, limit: Annotated[int, Query(ge=1, le=1_000)] = 100) -> Kept:
    """Answer what the store takes on disk, and the measurements of each run, the heaviest first."""
    database: Database = request.app.state.database
    counter: Storage = request.app.state.storage
    room = counter.room()
    raw_days: float | None = request.app.state.settings.raw_days
    with database.read() as connection:
        found = storage.weights(connection, room)
        until = retention.doubted_until(connection, database.now(connection))
    rest = found[limit:]
    return Kept(
        raw_days=raw_days,
        raw_until=None if raw_days is None or until is None else timestamp(until),
        bytes=room.store,
        counted=timestamp(room.at),
        runs=found[:limit],
        others=Others(runs=len(rest), bytes=sum(each.bytes or 0 for each in rest)),
    )
