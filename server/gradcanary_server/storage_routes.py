"""What is kept how long, and what takes how much room, over HTTP."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse

from gradcanary_server import retention, storage
from gradcanary_server.answer_shapes import answered
from gradcanary_server.database import Database
from gradcanary_server.storage import Storage
from gradcanary_server.storage_shapes import StorageShape
from gradcanary_server.timestamps import timestamp

router = APIRouter(prefix="/api/v1")


@router.get("/storage", responses=answered("storage"))
def show_storage(request: Request, limit: Annotated[int, Query(ge=1, le=1_000)] = 100) -> JSONResponse:
    """Answer what the store takes on disk, and the measurements of each run, the heaviest first."""
    database: Database = request.app.state.database
    counter: Storage = request.app.state.storage
    room = counter.room()
    raw_days: float | None = request.app.state.settings.raw_days
    with database.read() as connection:
        found = storage.weights(connection, room)
        until = retention.doubted_until(connection, database.now(connection))
    rest = found[limit:]
    kept: StorageShape = {
        "raw_days": raw_days,
        "raw_until": None if raw_days is None or until is None else timestamp(until),
        "bytes": room.store,
        "counted": timestamp(room.at),
        "runs": found[:limit],
        "others": {"runs": len(rest), "bytes": sum(each["bytes"] or 0 for each in rest)},
    }
    return JSONResponse(kept)
