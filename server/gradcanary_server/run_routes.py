"""What people do with runs: names, notes, tags, the archive, and the end of them."""

from __future__ import annotations

import json
from dataclasses import dataclass

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

from gradcanary import wire
from gradcanary_server import bodies, deletion, requests, run_names, runs, sessions
from gradcanary_server.answer_shapes import answered
from gradcanary_server.database import Database
from gradcanary_server.errors import invalid, unknown_run
from gradcanary_server.requests import Reader, check_text
from gradcanary_server.run_shapes import RunInFull

MAX_NOTE = 4_000
MAX_TAGS = 32
MAX_TAG = 50

router = APIRouter(prefix="/api/v1")


@dataclass(frozen=True)
class Wish(wire.Request):
    """What is to be different about a run; None stays as it is. ``aliases``: which former names still lead to it."""

    note: str | None = None
    tags: tuple[str, ...] | None = None
    archived: bool | None = None
    name: str | None = None
    aliases: tuple[str, ...] | None = None


_WISH = Reader(Wish)


# A response model would check what was just built: the answer is plain JSON values.
@router.patch("/runs/{run}", response_model=None, responses=answered("run"))
async def change_run(request: Request, run: str) -> JSONResponse:
    """Change what people say of a run, and answer the run; its former name goes on leading to it."""
    wish = _WISH.read(await bodies.read(request))
    _check(wish)
    return JSONResponse(await run_in_threadpool(_change, request, run, wish))


@router.delete("/runs/{run}", status_code=204)
def delete_run(request: Request, run: str) -> None:
    """Delete a run with all its measurements and incidents; its sessions are told to stop.

    Whoever was told of an incident is told that it is over.
    """
    database: Database = request.app.state.database
    with database.write() as connection:
        deletion.delete_run(connection, run, database.now(connection))


def _check(wish: Wish) -> None:
    check_text(wish.note, "note", MAX_NOTE, lines=True)
    if wish.name is not None:
        requests.check_run_name(wish.name, "name")
    tags = wish.tags or ()
    if len(tags) > MAX_TAGS:
        raise invalid(f"A run has at most {MAX_TAGS} tags.", "tags")
    for number, tag in enumerate(tags):
        check_text(tag, f"tags.{number}", MAX_TAG, shortest=1)
        if tag != tag.strip():
            raise invalid("A tag does not begin or end with a space.", f"tags.{number}")


def _said(wish: Wish) -> str:
    """Return what the audit log keeps: the new name and the place, of the rest only that it changed."""
    given = {key: value for key, value in vars(wish).items() if value is not None}
    return ", ".join(f"{key}={value}" if key in ("name", "archived") else key for key, value in given.items())


def _change(request: Request, name: str, wish: Wish) -> RunInFull:
    database: Database = request.app.state.database
    with database.write() as connection:
        row = run_names.find(connection, name, held=True)
        if row is None:
            raise unknown_run(name)
        request.state.about = _said(wish)
        if wish.name is not None:
            run_names.rename(connection, row, wish.name)
        if wish.aliases is not None:
            unknown = set(wish.aliases) - set(run_names.former(connection, row.run_id))
            if unknown:
                raise invalid(f"{min(unknown)!r} is no former name of this run.", "aliases")
            run_names.free(connection, row.run_id, wish.aliases)
        values: dict[str, object] = {"note": wish.note, "archived": wish.archived}
        values["tags"] = None if wish.tags is None else json.dumps(list(dict.fromkeys(wish.tags)), ensure_ascii=False)
        sessions.revise(connection, row.run_id, **{key: value for key, value in values.items() if value is not None})
        now, silent = database.now(connection), request.app.state.rules.silent
        return runs.detail(connection, runs.one(connection, wish.name or row.name, now, silent), now, silent)
