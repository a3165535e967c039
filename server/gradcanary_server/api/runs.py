"""Routes of runs without their measurements: the list, one run, its change and its deletion; and their JSON."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import Field
from sqlalchemy import ColumnElement, Connection, Select, String, bindparam, func, or_, select

from gradcanary_server import validation
from gradcanary_server.api.http import Json, JsonRoute, encode_array, json_response, select_keys
from gradcanary_server.api.models import Gap, RunList, RunShape, RunState, RunSummary, SessionShape
from gradcanary_server.api.run_reader import ReaderDep
from gradcanary_server.api.services import ServicesDep
from gradcanary_server.clock import timestamp
from gradcanary_server.errors import StoreUnavailable, invalid
from gradcanary_server.incidents import liveness, service
from gradcanary_server.incidents.liveness import RunStatus, session_state
from gradcanary_server.notify import outbox
from gradcanary_server.rules.config import Collapse, Rules, Silent
from gradcanary_server.storage import runs as run_store
from gradcanary_server.storage.database import Database, Record
from gradcanary_server.storage.pagination import PageOrder
from gradcanary_server.storage.schema import contains, launch, layer, run, session
from gradcanary_server.tsdb import metric_index
from gradcanary_server.tsdb.sparkline import Sparkline
from gradcanary_server.validation import Body, check_text

MAX_NOTE = 4_000
MAX_TAGS = 32
MAX_TAG = 50

UNENDED = ("live", "stale", "silent")
"""States that no column holds: they follow from the time since the last request."""

MAX_UNENDED = 1_000
"""Runs that are read to find those in such a state."""

router = APIRouter(prefix="/api/v1", route_class=JsonRoute)

Sort = Literal["last_seen", "created", "name", "worst", "loss", "step", "duration"]
ORDERS: dict[Sort, PageOrder] = {
    "last_seen": PageOrder((run.c.last_seen, run.c.run_id), "after"),
    "created": PageOrder((run.c.created, run.c.run_id), "after"),
    "name": PageOrder((func.lower(run.c.name, type_=String()), run.c.run_id), "after", is_ascending=True),
    "worst": PageOrder((service.worst_rank(), run.c.run_id), "after"),
    "loss": PageOrder((metric_index.last_loss_of_run(sys.float_info.max), run.c.run_id), "after", is_ascending=True),
    "step": PageOrder((func.coalesce(run.c.step + 1, 0), run.c.run_id), "after"),
    "duration": PageOrder((run.c.last_seen - run.c.created, run.c.run_id), "after"),
}

LARGEST_LOSS = PageOrder((metric_index.last_loss_of_run(-sys.float_info.max), run.c.run_id), "after")
"""The order by loss turned round. Runs without one come last here, too."""

Texts = Annotated[list[str], Field(fail_fast=True)]
"""A list is read up to its first error: a million errors would fill the memory."""


@dataclass(frozen=True)
class RunFilter:
    """The runs of a page: ``limit`` of them after a cursor, in the archive or not, ``name_contains`` in their names.

    Each word of ``text`` is in the name, a tag or the note. ``unacked``: only runs with a critical incident that nobody
    acknowledged, or only the others. ``reverse`` turns the order round.
    """

    name_contains: Annotated[str, Query(max_length=100)] = ""
    after: str | None = None
    limit: Annotated[int, Query(ge=1, le=1_000)] = 200
    text: Annotated[str, Query(max_length=100)] = ""
    state: RunState | None = None
    sort: Sort = "last_seen"
    reverse: bool = False
    archived: bool = False
    unacked: bool | None = None

    @property
    def order(self) -> PageOrder:
        """The order of the list."""
        if self.reverse and self.sort == "loss":
            return LARGEST_LOSS
        order = ORDERS[self.sort]
        return replace(order, is_ascending=not order.is_ascending) if self.reverse else order

    def query(self) -> Select[Any]:
        """Return the query for the runs in their order, after the cursor; raises RequestError 422.

        For a state in UNENDED it returns all runs that have not ended.
        """
        return _run_query(self)

    def build_query(self) -> Select[Any]:
        """Return the query of :meth:`query`, which is cached: pages ask for the same list each second."""
        conditions = [
            run.c.archived.is_(self.archived),
            *(_has_word(word) for word in self.text.replace("\0", " ").split()),
        ]
        if self.name_contains:
            conditions.append(contains(run.c.name, self.name_contains))
        if self.state is not None:
            conditions.append(run.c.ended.is_(None) if self.state in UNENDED else run.c.ended == self.state)
        if self.unacked is not None:
            is_unacked = run.c.run_id.in_(service.runs_to_acknowledge())
            conditions.append(is_unacked if self.unacked else ~is_unacked)
        return self.order.select(select(run.c.run_id).where(*conditions), self.after)


_run_query = lru_cache(maxsize=64)(RunFilter.build_query)


class RunPatch(Body):
    """Changes of a run; null changes nothing. ``aliases``: the former names that still lead to it."""

    note: str | None = None
    tags: Texts | None = None
    archived: bool | None = None
    name: str | None = None
    aliases: Texts | None = None


@router.get("/runs", response_model=RunList)
def list_runs(reader: ReaderDep, filters: Annotated[RunFilter, Depends()]) -> Response:
    """Answer runs, by default the last seen first; ``next`` is the ``after`` of the following page.

    ``name_contains`` is a part of the name; each word of ``text`` is in the name, a tag or the note.
    """
    with reader.database.read() as connection:
        statuses, following = page(connection, filters, reader.database.now(connection), reader.rules.silent)

        def build() -> Json:
            return {"runs": summaries(connection, statuses, reader.rules.collapse), "next": following}

        return reader.runs_response(statuses, build, following)


@router.get("/runs/{run}", response_model=RunShape)
def show_run(reader: ReaderDep, run: str) -> Response:
    """Answer one run without its measurements."""

    def build(connection: Connection, status: RunStatus) -> Json:
        return to_json(connection, status, reader.database.now(connection), reader.rules)

    return reader.run_response(run, build)


@router.patch("/runs/{run}", response_model=RunShape)
def change_run(request: Request, services: ServicesDep, run: str, patch: RunPatch) -> Response:
    """Change a run's name, note, tags or archive, and answer it; its former name still leads to it."""
    _check(patch)
    changes = {key: value for key, value in patch if value is not None}
    database, rules = services.database, services.rules
    with database.write() as connection:
        row = run_store.get_run(connection, run, held=True)
        # The audit log keeps the values that are no free text.
        entries = (f"{key}={value}" if key in ("name", "archived") else key for key, value in changes.items())
        request.state.about = ", ".join(entries)
        if patch.name is not None:
            run_store.rename_run(connection, row, patch.name)
        if patch.aliases is not None:
            unknown = set(patch.aliases) - set(run_store.aliases_of(connection, row.run_id))
            if unknown:
                raise invalid(f"{min(unknown)!r} is no former name of this run.", "aliases")
            run_store.drop_aliases(connection, row.run_id, patch.aliases)
        columns: dict[str, object] = {key: changes[key] for key in ("note", "archived") if key in changes}
        if patch.tags is not None:
            columns["tags"] = json.dumps(list(dict.fromkeys(patch.tags)), ensure_ascii=False)
        run_store.bump_revision(connection, row.run_id, **columns)
        now = database.now(connection)
        status = liveness.read_status(connection, patch.name or row.name, now, rules.silent)
        return json_response(to_json(connection, status, now, rules))


@router.delete("/runs/{run}", status_code=204)
def delete_run(services: ServicesDep, run: str) -> None:
    """Delete a run with all its measurements and incidents; its sessions are told to stop.

    An endpoint that was notified of one of its open incidents is notified that it is resolved.
    """
    database, url = services.database, services.settings.public_url
    with database.write() as connection:
        end_and_delete(connection, run, services.rules, url, database.now(connection))
    with suppress(StoreUnavailable):  # the run is deleted; these wait for the next deletion
        drop_old_messages(database)


def drop_old_messages(database: Database) -> None:
    """Delete the messages of runs deleted long ago, those of each run by itself: on a cluster, on one node."""
    with database.read() as connection:
        now = database.now(connection)
        run_ids = outbox.runs_of_old_messages(connection, now)
    for run_id in run_ids:
        with database.write() as connection:
            outbox.delete_old_messages(connection, run_id, now)


def end_and_delete(connection: Connection, name: str, rules: Rules, public_url: str, now: float) -> None:
    """Close the incidents of a run, enqueue their last notifications, and delete it; raises RequestError 404."""
    row = run_store.get_run(connection, name, held=True)
    service.close_run(connection, row.run_id, row.step or 0, now, "run_deleted")
    outbox.enqueue_final_notifications(connection, row, rules, public_url, now)
    run_store.delete_run(connection, row, now)


def page(connection: Connection, filters: RunFilter, now: float, silent: Silent) -> tuple[list[RunStatus], str | None]:
    """Return a page of runs, and the cursor of the following page, None after the last one.

    A run that sends something between two requests moves to the front. Raises RequestError 422 for a cursor of another
    list.
    """
    most = MAX_UNENDED if filters.state in UNENDED else filters.limit
    keys = connection.execute(filters.query().limit(most + 1)).mappings().all()
    statuses = liveness.read_statuses(connection, [key["run_id"] for key in keys[:most]], now, silent)
    matches = [
        (key, status)
        for key, status in zip(keys[:most], statuses, strict=True)
        if filters.state in (None, status.state)
    ]
    listed = matches[: filters.limit]
    last = listed[-1][0] if len(matches) > filters.limit else keys[most - 1] if len(keys) > most else None
    return [status for _, status in listed], None if last is None else filters.order.cursor(last)


def summaries(connection: Connection, statuses: Sequence[RunStatus], collapse: Collapse) -> list[Json]:
    """Return runs as the list shows them."""
    ids = [status.row.run_id for status in statuses]
    headlines = service.run_headlines(connection, ids)
    accumulators = _count_layers(connection, ids)
    losses, hosts = metric_index.last_losses(connection, ids), run_store.read_hosts(connection, ids)
    own = run_store.own_thresholds(connection, ids)
    summarized = []
    for run_id, status in zip(ids, statuses, strict=True):
        threshold = {"enter": collapse.of_run(own.get(run_id)).enter}
        beside = {"loss": losses.get(run_id), "host": hosts.get(run_id), "threshold": threshold}
        summarized.append(_summary(status, accumulators[run_id], {**vars(headlines[run_id]), **beside}))
    return summarized


def to_json(connection: Connection, status: RunStatus, now: float, rules: Rules) -> Json:
    """Return a run without its measurements."""
    row = status.row
    sessions = _read_sessions(connection, row.run_id)
    return {
        **summaries(connection, [status], rules.collapse)[0],
        "aliases": run_store.aliases_of(connection, row.run_id),
        "revision": row.revision,
        "framework": row.framework,
        "rules_version": row.rules_version,
        "launches": _launches(connection, row.run_id),
        "sessions": [_session_to_json(item, session_state(item, now, rules.silent, status.since)) for item in sessions],
        "gaps": _gaps(sessions),
        "facts": [vars(fact) for fact in run_store.parse_facts(row.facts)],
        "metrics": metric_index.list_series(connection, row.run_id),
    }


def read_gaps(connection: Connection, run_id: int) -> list[Gap]:
    """Return the missing steps of a run."""
    return _gaps(_read_sessions(connection, run_id))


def _has_word(word: str) -> ColumnElement[bool]:
    """Return the condition that a word is in a run's name, tags or note, in any case."""
    as_json = json.dumps(word, ensure_ascii=False)[1:-1]
    return or_(contains(run.c.name, word), contains(run.c.tags, as_json), contains(run.c.note, word))


def _check(patch: RunPatch) -> None:
    check_text(patch.note, "note", MAX_NOTE, lines=True)
    if patch.name is not None:
        validation.check_run_name(patch.name, "name")
    if len(patch.tags or ()) > MAX_TAGS:
        raise invalid(f"A run has at most {MAX_TAGS} tags.", "tags")
    for number, tag in enumerate(patch.tags or ()):
        check_text(tag, f"tags.{number}", MAX_TAG, shortest=1)
        if tag != tag.strip():
            raise invalid("A tag does not begin or end with a space.", f"tags.{number}")


_DTYPE = func.coalesce(layer.c.effective, layer.c.stored)
_LAYERS_BY_DTYPE = (
    select(layer.c.run_id, _DTYPE, func.count())
    .where(layer.c.run_id.in_(bindparam("run_ids", expanding=True)))
    .group_by(layer.c.run_id, _DTYPE)
)


def _count_layers(connection: Connection, ids: Sequence[int]) -> dict[int, dict[str | None, int]]:
    """Return the number of layers by accumulator dtype (effective, else stored), by run."""
    counts: dict[int, dict[str | None, int]] = defaultdict(dict)
    for run_id, name, count in connection.execute(_LAYERS_BY_DTYPE, {"run_ids": ids}):
        counts[run_id][name] = count
    return counts


def _summary(status: RunStatus, accumulators: dict[str | None, int], others: Json) -> Json:
    row = status.row
    computed = {
        "run": row.name,
        "state": status.state,
        "created": timestamp(row.created),
        "step": status.step,
        "last_step_at": timestamp(status.last_step_at),
        "last_seen": timestamp(row.last_seen),
        "layers": sum(accumulators.values()),
        "below_threshold": row.below_threshold,
        "accumulators": dict(sorted((dtype, count) for dtype, count in accumulators.items() if dtype is not None)),
        "note": row.note,
        "tags": json.loads(row.tags),
        "archived": row.archived,
        "sparkline": encode_array(Sparkline.unpack(row.sparkline).points()),
    }
    return select_keys(RunSummary, {**others, **computed})


def _launches(connection: Connection, run_id: int) -> list[Json]:
    """Return the launches of a run in their order, with the configuration of each."""
    configurations = run_store.read_configurations(connection, run_id)
    nothing = run_store.Configuration(None, ())
    return [
        {
            "launch": row.launch,
            "started": timestamp(row.started),
            "environment": _environment(configurations.get(row.launch_no, nothing).environment),
            "settings": list(map(vars, configurations.get(row.launch_no, nothing).settings)),
        }
        for row in run_store.launches_in_order(connection, run_id)
    ]


def _environment(stored: dict[str, Any] | None) -> Json | None:
    return stored and {**stored, "versions": dict(stored["versions"]), "job": dict(stored["job"])}


_SESSIONS = (
    select(session, launch.c.launch, launch.c.world_size)
    .join(launch, (launch.c.run_id == session.c.run_id) & (launch.c.launch_no == session.c.launch_no))
    .where(session.c.run_id == bindparam("run_id"), session.c.rank >= 0)
    .order_by(*run_store.ORDER, session.c.rank, session.c.started)
)


def _read_sessions(connection: Connection, run_id: int) -> Sequence[Record]:
    return connection.execute(_SESSIONS, {"run_id": run_id}).all()


def _session_to_json(row: Record, state: str) -> Json:
    hello = json.loads(row.hello)
    computed = {
        "first_step": hello["first_step"],
        "last_step": row.last_step if row.max_step is None else row.max_step,
        "step_source": hello["step_source"],
        "state": state,
    }
    return select_keys(SessionShape, {**row._asdict(), **computed})


def _gaps(sessions: Sequence[Record]) -> list[Gap]:
    return [
        {"session": row.session, "from_step": begin, "to_step": end, "reason": why}
        for row in sessions
        for begin, end, why in json.loads(row.gaps)
    ]
