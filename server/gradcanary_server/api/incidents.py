"""Routes of incidents: lists, one incident, its acknowledgement; and their JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BeforeValidator
from sqlalchemy import Column, ColumnElement, Connection, RowMapping, Select, case, func, select, tuple_, update
from typing_extensions import TypedDict

from gradcanary.remedies import Fix
from gradcanary.wording import shared_ends
from gradcanary_server.api.charts import block_name
from gradcanary_server.api.endpoints import DeliveryBase, DeliveryState, deliveries_to_json
from gradcanary_server.api.errors import Refusal
from gradcanary_server.api.http import (
    Json,
    JsonRoute,
    author_name,
    etag_response,
    json_response,
    png_response,
    select_keys,
)
from gradcanary_server.api.models import Count, RunState
from gradcanary_server.api.run_reader import AFTER_BATCHES, ReaderDep
from gradcanary_server.api.services import Services, ServicesDep
from gradcanary_server.clock import Moment, timestamp
from gradcanary_server.errors import RequestError, invalid, unknown_incident
from gradcanary_server.incidents import liveness, repository, service, silences
from gradcanary_server.incidents.causes import LikelyCause
from gradcanary_server.incidents.detail import IncidentDetail, load_details
from gradcanary_server.incidents.explanation import Explanation
from gradcanary_server.incidents.lifecycle import PROCESS_RULES, RANKS, State
from gradcanary_server.incidents.picture_data import PictureReader
from gradcanary_server.incidents.repository import WHOLE_RUN_NO
from gradcanary_server.incidents.silences import Silence
from gradcanary_server.notify.endpoints import read_labels
from gradcanary_server.notify.payload import Counts
from gradcanary_server.notify.planner import Kind
from gradcanary_server.rules.config import Rule
from gradcanary_server.rules.types import Severity
from gradcanary_server.storage import runs
from gradcanary_server.storage.pagination import PageOrder
from gradcanary_server.storage.schema import (
    MAX_ID,
    contains,
    delivery,
    incident,
    incident_layer,
    is_of_incident,
    layer,
    run,
)
from gradcanary_server.tsdb.reader import Reader
from gradcanary_server.validation import Body, Step, check_text

PAGE = 100
"""Incidents of one answer at most."""

WHOLE_RUN_NAME = "(whole run)"

PNG: dict[int | str, dict[str, Any]] = {
    200: {"content": {"image/png": {}}},
    501: {"model": Refusal, "description": "The collector has no Pillow; the body says how to install it."},
}

router = APIRouter(prefix="/api/v1", route_class=JsonRoute)


class AckShape(TypedDict):
    """The acknowledgement of an incident."""

    at: Moment
    by: str
    note: str


class SilencedShape(TypedDict):
    """Active silences of an incident: they hide ``members`` of its ``firing`` ones; ``until``: the first end."""

    until: Moment
    members: Count
    firing: Count
    silences: list[int]


class LastDelivery(TypedDict):
    """The last message about an incident to an endpoint."""

    endpoint: int
    name: str
    kind: Kind
    state: DeliveryState


class CrashShape(TypedDict):
    """The exception that ended the training; ``frames`` are the innermost first, user code before the library's.

    ``memory`` is what ran out (cpu, cuda, hip, xpu, mps), null for any other exception; ``peak_bytes`` is its peak.
    ``rank`` is null if there is one process. The message is empty if the agent keeps it to itself.
    """

    type: str
    message: str
    frames: list[str]
    memory: str | None
    peak_bytes: Count | None
    rank: Count | None


class IncidentSummary(TypedDict):
    """An incident without its layers and deliveries.

    ``caused_by`` is the earliest incident of the run that explains it. Messages about it name those in ``also``,
    of which none of their own is sent meanwhile.
    """

    id: int
    run: str
    run_state: RunState
    rule: Rule
    severity: Severity
    state: State
    opened_step: Step
    opened: Moment
    since_step: Step
    resolved_step: Step | None
    resolved: Moment | None
    resolution: str | None
    reopened: Count
    reopened_at: Moment | None
    acked: AckShape | None
    silenced: SilencedShape | None
    last_deliveries: list[LastDelivery]
    counts: Counts
    caused_by: int | None
    also: list[int]
    explanation: Explanation
    summary: str
    likely_cause: LikelyCause
    fix: Fix
    crash: CrashShape | None
    url: str
    runbook_url: str


class MetricShape(TypedDict):
    """A series of a metric; ``bound`` is the number that its value crossed, null where the value is not finite."""

    name: str
    tags: dict[str, str]
    bound: float | None


class MemberShape(TypedDict):
    """A layer of an incident; ``layer`` is null for the whole run and for a ``metric``, ``until_step`` while it fires.

    Members of the rule ``metric`` are series; its counts are of series, too.
    """

    layer: Count | None
    name: str
    block: str
    severity: Severity
    since_step: Step
    until_step: Step | None
    value: float | None
    baseline: float | None
    siblings: float | None
    evidence: str | None
    rank: Count | None
    metric: MetricShape | None


class IncidentDelivery(DeliveryBase):
    """A delivery with the name of its endpoint."""

    name: str


class IncidentShape(IncidentSummary):
    """An incident with its layers and deliveries."""

    layers: list[MemberShape]
    deliveries: list[IncidentDelivery]


class SharedEnds(TypedDict):
    """What the names of all layers of a run begin and end with, in whole parts; pages leave it out."""

    prefix: str
    suffix: str


class IncidentAmongOthers(IncidentShape):
    """An incident with those before and after it: of its run, beyond them those of the run before and after."""

    names: SharedEnds

    previous: int | None
    next: int | None


class IncidentList(TypedDict):
    """A page of incidents, the first of them with layers and deliveries if the request asks for that; ``next`` is the
    ``before`` of the following page.
    """

    incidents: list[IncidentShape | IncidentSummary]
    next: str | None


class Acknowledgement(Body):
    """An acknowledgement: it stops reminders and messages about growth. ``new_baseline``: what fires now is normal.
    Without ``by`` its author is the token's name. Without ``note`` an earlier note stays.
    """

    by: str | None = None
    note: str | None = None
    new_baseline: bool = False


def _refuse_number(text: object) -> object:
    """Refuse a number as a time: pydantic takes it for seconds or milliseconds, by its size."""
    try:
        float(str(text))
    except ValueError:
        return text
    raise ValueError("it is a time such as 2030-01-31T12:00:00Z")


@dataclass(frozen=True)
class IncidentFilter:
    """The incidents of a list, of a ``run`` by its name or of runs with ``name_contains`` in their names.

    ``state`` repeats. ``layer`` is a layer of ``run``, by number or name: incidents of which it or the whole run is a
    member. ``sort`` is
    ``newest``, or ``worst``: open ones, then those that a run ended on, then the others; of the first two kinds by
    severity, then layers before runs that send nothing, then the newest.
    """

    run: str | None = None
    layer: Annotated[str | None, Query(max_length=500)] = None
    name_contains: Annotated[str, Query(max_length=100)] = ""
    state: Annotated[list[State] | None, Query()] = None
    severity: Severity | None = None
    rule: Rule | None = None
    since: Annotated[datetime, BeforeValidator(_refuse_number)] | None = None
    sort: Literal["newest", "worst"] = "newest"


@router.get("/incidents", response_model=IncidentList, dependencies=[AFTER_BATCHES])
def list_incidents(
    request: Request,
    services: ServicesDep,
    filters: Annotated[IncidentFilter, Depends()],
    before: str | None = None,
    limit: Annotated[int, Query(ge=1, le=PAGE)] = PAGE,
    detailed: Annotated[int, Query(ge=0, le=PAGE)] = 0,
) -> Response:
    """Answer incidents, newest or worst first; ``next`` is the ``before`` of the following page.

    The first ``detailed`` ones have their layers and deliveries, as in ``/incidents/{number}``.
    """
    with services.database.read() as connection:
        order = PageOrder((incident.c.incident_id,) if filters.sort == "newest" else _worst_first())
        rows, following = order.page(connection, _query(connection, filters), before, limit)
        ids = [row["incident_id"] for row in rows]
        now = Momentary.read(connection, ids, services)

        def build() -> Json:
            public_url, measurements = services.settings.public_url, services.measurements
            told = summaries(connection, ids, public_url, now, detailed, measurements)
            return {"incidents": told, "next": following}

        return etag_response(request, [following, ids, *_etag_parts(connection, ids, now)], build)


@router.get("/incidents/{number}", response_model=IncidentAmongOthers, dependencies=[AFTER_BATCHES])
def show_incident(request: Request, services: ServicesDep, number: int) -> Response:
    """Answer one incident with its layers and deliveries."""
    with services.database.read() as connection:
        run_id = _run_of(connection, number)
        now, beside = Momentary.read(connection, [number], services), _neighbours(connection, run_id, number)
        parts = [beside, *_etag_parts(connection, [number], now)]
        return etag_response(request, parts, lambda: _to_json(connection, number, services))


@router.get("/incidents/{number}/picture.png", response_class=Response, responses=PNG)
def show_picture(request: Request, reader: ReaderDep, number: int) -> Response:
    """Answer the picture of an incident: the curves of its worst layers around its first sign, loss, learning rates."""
    with reader.database.read() as connection:
        _run_of(connection, number)
        parts = [reader.rules, *_revisions(connection, [number])]
    pictures = PictureReader(reader.database, reader.measurements, reader.rules)
    return etag_response(request, parts, lambda: pictures.draw(number), png_response)


@router.post("/incidents/{number}/ack", response_model=IncidentAmongOthers)
def acknowledge(request: Request, services: ServicesDep, number: int, ack: Acknowledgement) -> Response:
    """Acknowledge an incident, and answer it; a second acknowledgement replaces the first, and keeps a note it has no
    other for."""
    if ack.note is not None:
        check_text(ack.note, "note", 2_000, lines=True)
    by = author_name(request, ack.by)
    with services.database.write() as connection:
        run_id = _run_of(connection, number)
        now = services.database.now(connection)
        # The run first, as everywhere: ingest holds it, and may be about to lock this incident.
        runs.bump_revision(connection, run_id)
        if ack.new_baseline:
            service.rebaseline(connection, run_id, number, now)
        note = func.coalesce(incident.c.ack_note, "") if ack.note is None else ack.note
        columns = {"acked": now, "acked_by": by, "ack_note": note}
        connection.execute(update(incident).where(is_of_incident(incident, run_id, number)).values(**columns))
    # Texts are composed after the write transaction: that takes longer than other writers should wait.
    with services.database.read() as connection:
        return json_response(_to_json(connection, number, services))


@dataclass(frozen=True)
class Momentary:
    """What changes without a new revision of a run: the active silences, and the states of runs by name."""

    silences: Sequence[Silence]
    run_states: Mapping[str, str]

    @classmethod
    def read(cls, connection: Connection, ids: Sequence[int], services: Services) -> Momentary:
        """Return it for these incidents."""
        at = services.database.now(connection)
        run_ids = connection.scalars(select(incident.c.run_id).where(incident.c.incident_id.in_(ids)).distinct()).all()
        states = liveness.read_states(connection, run_ids, at, services.rules.silent)
        return cls(silences.active_silences(connection, at), states)


def unix_time(moment: datetime) -> float:
    """Return unix seconds; a time without a zone is UTC."""
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()


def _worst_first() -> tuple[ColumnElement[int], ...]:
    """Return the sort key of an incident; the worst has the largest."""
    stage = case((incident.c.state == "open", 2), (incident.c.state == "ended", 1), else_=0)
    is_over = stage == 0
    severity = case((is_over, 0), else_=case(RANKS, value=incident.c.severity, else_=0))
    of_layers = case((is_over | incident.c.rule.in_(PROCESS_RULES), 0), else_=1)
    return stage, severity, of_layers, incident.c.incident_id


def _query(connection: Connection, filters: IncidentFilter) -> Select[tuple[int]]:
    """Return the query for incidents; raises RequestError 404 or 422."""
    query = select(incident.c.incident_id).join(run, run.c.run_id == incident.c.run_id)
    if filters.run is not None:
        run_id = runs.get_run(connection, filters.run).run_id
        query = query.where(incident.c.run_id == run_id)
        if filters.layer is not None:
            query = query.where(incident.c.incident_id.in_(_with_layer(connection, run_id, filters.layer)))
    elif filters.layer is not None:
        raise invalid("A layer is one of a run: give its run, too.", "run")
    if filters.name_contains:
        query = query.where(contains(run.c.name, filters.name_contains))
    if filters.since is not None:
        query = query.where(incident.c.opened >= unix_time(filters.since))
    if filters.state:
        query = query.where(incident.c.state.in_(filters.state))
    for column in (incident.c.severity, incident.c.rule):
        value = getattr(filters, column.name)
        query = query if value is None else query.where(column == value)
    return query


def _with_layer(connection: Connection, run_id: int, layer_key: str) -> Select[tuple[int]]:
    """Return the query for incidents of which a layer, by number or name, or the whole run is a member."""
    is_key = layer.c.name == layer_key
    if layer_key.isascii() and layer_key.isdigit() and int(layer_key) <= MAX_ID:
        is_key |= layer.c.layer_no == int(layer_key)
    query = select(layer.c.layer_no).where(layer.c.run_id == run_id, is_key)
    number = connection.scalar(query.order_by(layer.c.name == layer_key))  # a name may be the number of another layer
    if number is None:
        raise RequestError(404, "unknown_layer", f"This run has no layer {layer_key!r}.", "layer")
    is_member = incident_layer.c.layer_no.in_((number, WHOLE_RUN_NO))
    return select(incident_layer.c.incident_id).where(incident_layer.c.run_id == run_id, is_member)


def _run_of(connection: Connection, number: int) -> int:
    query = select(incident.c.run_id).where(incident.c.incident_id == number)
    run_id = connection.execute(query).scalar_one_or_none() if 0 <= number <= MAX_ID else None
    if run_id is None:
        raise unknown_incident(number)
    return int(run_id)


def _neighbours(connection: Connection, run_id: int, number: int) -> dict[str, int | None]:
    """Return the incidents before and after one in the order of runs and incidents."""
    key, own = tuple_(incident.c.run_id, incident.c.incident_id), tuple_(run_id, number)
    query = select(incident.c.incident_id).limit(1)
    before = query.where(key < own).order_by(incident.c.run_id.desc(), incident.c.incident_id.desc())
    after = query.where(key > own).order_by(incident.c.run_id, incident.c.incident_id)
    return {"previous": connection.scalar(before), "next": connection.scalar(after)}


def _etag_parts(connection: Connection, ids: Sequence[int], now: Momentary) -> list[object]:
    # Deliveries change without a new revision of the run.
    sent = _deliveries(connection, ids, delivery.c.attempts, delivery.c.next_attempt)
    labels = read_labels(connection, {row["endpoint_id"] for row in sent})
    parts = [*_revisions(connection, ids), *(tuple(row.values()) for row in sent)]
    return [*parts, sorted(labels.items()), *now.silences, now.run_states]


def _revisions(connection: Connection, ids: Sequence[int]) -> Iterable[object]:
    query = select(incident.c.incident_id, run.c.name, run.c.revision).join(run, run.c.run_id == incident.c.run_id)
    return connection.execute(query.where(incident.c.incident_id.in_(ids)).order_by(incident.c.incident_id)).all()


def _deliveries(connection: Connection, ids: Sequence[int], *more: Column[Any]) -> Sequence[RowMapping]:
    """Return the deliveries about these incidents, those to one endpoint in order."""
    columns = (*delivery.primary_key, delivery.c.kind, delivery.c.state)
    query = select(*columns, *more).where(delivery.c.incident_id.in_(ids))
    return connection.execute(query.order_by(delivery.c.endpoint_id, delivery.c.version)).mappings().all()


def summaries(
    connection: Connection,
    ids: Sequence[int],
    public_url: str,
    now: Momentary,
    detailed: int = 0,
    measurements: Reader | None = None,
) -> list[Json]:
    """Return incidents without their layers and deliveries, but the first ``detailed`` of them with both."""
    last_deliveries = _last_deliveries(connection, ids)
    deliveries = _deliveries_by_incident(connection, ids[:detailed])
    details = load_details(connection, ids, is_brief=True, measurements=measurements)
    return [
        _summary(detail, public_url, now, last_deliveries[detail.id])
        | ({"layers": _members(detail), "deliveries": deliveries[detail.id]} if detail.id in deliveries else {})
        for detail in details
    ]


def _to_json(connection: Connection, number: int, services: Services) -> Json:
    """Return an incident with its layers, deliveries and neighbours."""
    run_id, now = _run_of(connection, number), Momentary.read(connection, [number], services)
    [told] = summaries(connection, [number], services.settings.public_url, now, 1, services.measurements)
    prefix, suffix = shared_ends(repository.layer_names(connection, run_id).values())
    return {**told, "names": {"prefix": prefix, "suffix": suffix}, **_neighbours(connection, run_id, number)}


def _members(detail: IncidentDetail) -> list[Json]:
    """Return the layers of an incident as JSON."""
    names = {
        layer_no: WHOLE_RUN_NAME if layer_no is None else detail.layers[layer_no].name for layer_no in detail.members
    }
    return [
        select_keys(
            MemberShape,
            {**vars(member), **_identity(detail, layer_no, names[layer_no])},
        )
        for layer_no, member in detail.members.items()
    ]


def _identity(detail: IncidentDetail, layer_no: int | None, name: str) -> Json:
    """Return the identity of a member: a layer, the whole run, or a series of a metric."""
    facts = None if layer_no is None else detail.incident.series.get(layer_no)
    if facts is None:
        return {"layer": layer_no, "name": name, "block": block_name(name), "metric": None}
    metric = {"name": facts.name, "tags": json.loads(facts.tags), "bound": facts.bound}
    return {"layer": None, "name": name, "block": facts.name, "metric": metric}


def _deliveries_by_incident(connection: Connection, ids: Sequence[int]) -> dict[int, list[IncidentDelivery]]:
    """Return all deliveries about these incidents, with the names of their endpoints."""
    found: dict[int, list[IncidentDelivery]] = {number: [] for number in ids}
    if not ids:
        return found
    rows = _deliveries(connection, ids, delivery.c.enqueued_at, delivery.c.delivered, delivery.c.next_attempt)
    labels = read_labels(connection, {row["endpoint_id"] for row in rows})
    for delivered, row in zip(deliveries_to_json(connection, rows), rows, strict=True):
        found[row["incident_id"]].append({**delivered, "name": labels[row["endpoint_id"]]})
    return found


def _last_deliveries(connection: Connection, ids: Sequence[int]) -> dict[int, list[LastDelivery]]:
    """Return the last delivery to each endpoint, by incident."""
    last = {(row["incident_id"], row["endpoint_id"]): row for row in _deliveries(connection, ids)}
    labels = read_labels(connection, {endpoint_id for _, endpoint_id in last})
    last_deliveries: dict[int, list[LastDelivery]] = {number: [] for number in ids}
    for (number, endpoint_id), row in last.items():
        last_deliveries[number].append(
            {"endpoint": endpoint_id, "name": labels[endpoint_id], "kind": row["kind"], "state": row["state"]}
        )
    return last_deliveries


def _summary(detail: IncidentDetail, public_url: str, now: Momentary, last_deliveries: Sequence[LastDelivery]) -> Json:
    record, ack = detail.incident, detail.ack
    computed = {
        "id": detail.id,
        "run": detail.run,
        "run_state": now.run_states[detail.run],
        "opened": timestamp(record.opened),
        "resolved": timestamp(record.resolved),
        "reopened_at": timestamp(record.reopened_at),
        "acked": None if ack is None else {"at": timestamp(ack.at), "by": ack.by, "note": ack.note},
        "silenced": _silenced(detail, now.silences),
        "last_deliveries": last_deliveries,
        "counts": {"firing": record.firing, "ever": record.ever_firing, "layers": record.layers},
        "caused_by": detail.caused_by,
        "also": [other.incident for other in detail.covers],
        "explanation": detail.explanation,
        "summary": detail.summary,
        "likely_cause": detail.cause,
        "fix": detail.fix,
        "crash": _crash(detail),
        "url": service.incident_url(public_url, detail.run, detail.id),
        "runbook_url": service.runbook_url(public_url, record.rule),
    }
    return select_keys(IncidentSummary, {**vars(record), **computed})


def _crash(detail: IncidentDetail) -> Json | None:
    crash = detail.incident.crash
    rank = next((member.rank for member in detail.members.values()), None)
    return None if crash is None else select_keys(CrashShape, {**vars(crash), "rank": rank})


def _silenced(detail: IncidentDetail, active: Sequence[Silence]) -> SilencedShape | None:
    """Return the silences that hide firing members of an open incident, None where there are none."""
    about = [silence for silence in active if silence.is_about(detail.run, detail.incident.rule)]
    if not about or detail.incident.state != "open":
        return None
    firing = [
        None if number is None else detail.layers[number].name
        for number, member in detail.members.items()
        if member.until_step is None
    ]
    ends = [until for name in firing if (until := silences.silenced_until(about, name)) is not None]
    if not ends:
        return None
    hiding = [silence.id for silence in about if any(map(silence.covers, firing))]
    return {"until": timestamp(min(ends)), "members": len(ends), "firing": len(firing), "silences": hiding}
