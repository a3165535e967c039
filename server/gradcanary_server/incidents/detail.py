"""All facts of an incident for pages and messages: members, layers, summary, cause and fix."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sqlalchemy import Connection, RowMapping, and_, or_, select

from gradcanary import remedies
from gradcanary_server.incidents import causes, repository, silences, text
from gradcanary_server.incidents.causes import CauseContext, LayerInfo, LikelyCause, NearbyIncident, Norms
from gradcanary_server.incidents.explanation import Explanation, explain
from gradcanary_server.incidents.lifecycle import Incident, Member
from gradcanary_server.incidents.setting_causes import NEAR_STEPS, Configuration
from gradcanary_server.rules.detectors import metric as metric_detector
from gradcanary_server.rules.types import Severity
from gradcanary_server.storage import runs
from gradcanary_server.storage.layers import LayerSetCache
from gradcanary_server.storage.schema import incident, layer, metric, run
from gradcanary_server.tsdb.log import BatchLog
from gradcanary_server.tsdb.query import StepRange, query
from gradcanary_server.tsdb.reader import Reader
from gradcanary_server.tsdb.rollup import MINIMUM
from gradcanary_server.tsdb.tiles import TileStore

WEIGHT_STEPS = 400
"""Weights are measured in turns, those of each layer within 200 steps."""

MAX_PARTNERS = 64
CACHE_BYTES = 1 << 20

MANY = 1_000
"""Members above which all layers are read: databases limit the parameters of a query."""


@dataclass(frozen=True)
class Ack:
    """An acknowledgement: when, by whom, with which note."""

    at: float
    by: str
    note: str


@dataclass(frozen=True)
class CoveredIncident:
    """An unrecovered incident of the run that messages about another one cover."""

    incident: int
    rule: str
    severity: Severity
    headline: str


@dataclass(frozen=True)
class IncidentDetail:
    """An incident, its members and texts, layers of its run, and the last evaluated ``step`` of the run.

    ``caused_by`` is the earliest incident that explains it; ``covers`` are those that its messages are about, too.
    """

    id: int
    run: str
    step: int
    incident: Incident
    members: dict[int | None, Member]
    layers: dict[int, LayerInfo]
    summary: str
    ack: Ack | None
    cause: LikelyCause
    fix: remedies.Fix
    explanation: Explanation
    headline: str
    caused_by: int | None
    covers: tuple[CoveredIncident, ...]


def load_details(
    connection: Connection,
    incident_ids: Sequence[int],
    hidden: frozenset[int | None] = frozenset(),
    *,
    run_id: int | None = None,
    is_brief: bool = False,
    measurements: Reader | None = None,
) -> list[IncidentDetail]:
    """Return the details of incidents in this order, without those that do not exist.

    ``hidden`` members are left out; a sentence counts them. ``is_brief`` leaves out layers that are not members if no
    text depends on them: they are most of the rows. Incidents of one run come with ``run_id``: a cluster asks only its
    node then, also if another one hangs. ``measurements`` is the collector's reader, whose cache has most batches;
    a writing transaction, which may not fill it, comes without. Composes missing summaries, so of writing transactions
    only the deletion of a run may call this.
    """
    measurements = measurements or Reader(BatchLog(LayerSetCache(), CACHE_BYTES), TileStore(CACHE_BYTES))
    query = select(incident, run.c.name.label("run"), run.c.step, run.c.framework, run.c.facts)
    query = query.join(run, run.c.run_id == incident.c.run_id).where(incident.c.incident_id.in_(incident_ids))
    query = query if run_id is None else query.where(incident.c.run_id == run_id)
    rows = {row["incident_id"]: row for row in connection.execute(query).mappings()}
    all_layers: dict[int, dict[int, LayerInfo]] = {}
    details = []
    for incident_id in incident_ids:
        if incident_id not in rows:
            continue
        row = rows[incident_id]
        number = row["run_id"]
        members = repository.load_members(connection, number, incident_id)
        if number not in all_layers and (not is_brief or hidden or _needs_all_layers(row, members)):
            all_layers[number] = _layers(connection, number)
        layers = all_layers.get(number) or _layers(connection, number, members)
        layers = layers | _series(row) if row["rule"] == metric_detector.RULE else layers
        details.append(_detail(connection, measurements, row, members, layers, hidden))
    return details


def _needs_all_layers(row: RowMapping, members: dict[int | None, Member]) -> bool:
    is_compared = causes.needs_all_layers(row["rule"], members.values())
    return len(members) > MANY or is_compared or text.stored_summary(row) is None


def _detail(
    connection: Connection,
    measurements: Reader,
    row: RowMapping,
    all_members: dict[int | None, Member],
    layers: dict[int, LayerInfo],
    hidden: frozenset[int | None],
) -> IncidentDetail:
    members = {number: member for number, member in all_members.items() if number not in hidden}
    visible = silences.without_silenced(repository.incident_from_row(row), all_members, members)
    summary = text.stored_summary(row) if len(members) == len(all_members) else None
    if summary is None:
        names = {number: info.name for number, info in layers.items()}
        summary = text.sentence(visible, members, names) + silences.silenced_note(all_members, hidden)
    other_rows = _others(connection, row)
    others = {repository.incident_from_row(other): str(other["headline"]) for other in other_rows}
    cause, fix = _cause(connection, measurements, row, CauseContext(visible, members, layers), other_rows)
    first_cause = causes.first_cause(visible, others)
    return IncidentDetail(
        id=row["incident_id"],
        run=row["run"],
        step=visible.opened_step if row["step"] is None else row["step"],
        incident=visible,
        members=members,
        layers=layers,
        summary=summary,
        ack=None if visible.acked is None else Ack(visible.acked, row["acked_by"], row["ack_note"]),
        cause=cause,
        fix=fix,
        explanation=explain(summary, visible, cause, fix),
        headline=text.headline(visible, members),
        caused_by=None if first_cause is None else first_cause.id,
        covers=tuple(
            CoveredIncident(other.id, other.rule, other.severity, others[other])
            for other in causes.covered_incidents(visible, others)
            if other.id is not None
        ),
    )


def _cause(
    connection: Connection,
    measurements: Reader,
    row: Mapping[Any, Any],
    incident: CauseContext,
    others: Sequence[RowMapping],
) -> tuple[LikelyCause, remedies.Fix]:
    """Return the likely cause of an incident and its fix; of one that follows another one, the fix of that."""
    facts, configuration = runs.parse_facts(row["facts"]), _configuration(connection, row)
    incident = replace(incident, weights=_weights(connection, measurements, row, incident))
    cause = causes.likely_cause(replace(incident, near=_nearby(row, others), facts=facts, configuration=configuration))
    first = next((other for other in others if other["incident_id"] == cause.follows), None)
    if first is None:
        step = incident.incident.since_step if cause.step is None else cause.step
        return cause, remedies.fix(cause.code, row["framework"], step)
    joined = {**row, **first}
    members = repository.load_members(connection, row["run_id"], first["incident_id"])
    layers = _layers(
        connection, row["run_id"], None if causes.needs_all_layers(first["rule"], members.values()) else members
    )
    root = CauseContext(repository.incident_from_row(first), members, layers)
    root_cause, fix = _cause(connection, measurements, joined, root, _others(connection, first))
    return causes.follow(cause, root_cause), fix


def _layers(connection: Connection, run_id: int, members: Collection[int | None] | None = None) -> dict[int, LayerInfo]:
    """Return the layers of a run, all or only members of an incident."""
    columns = (layer.c.layer_no, layer.c.name, layer.c.param_dtype, layer.c.group_no)
    query = select(*columns).where(layer.c.run_id == run_id).order_by(layer.c.layer_no)
    if members is not None:
        query = query.where(layer.c.layer_no.in_([number for number in members if number is not None]))
    return {number: LayerInfo(*values) for number, *values in connection.execute(query)}


def _weights(
    connection: Connection, measurements: Reader, row: Mapping[Any, Any], incident: CauseContext
) -> dict[int, Norms]:
    """Return the norms of the weights of LoRA partners before the first sign and after it, where both were measured."""
    layers = sorted(set(causes.lora_partners(incident).values()))[:MAX_PARTNERS]
    if not layers:
        return {}
    since, opened = incident.incident.since_step, incident.incident.opened_step
    span = StepRange(max(since - WEIGHT_STEPS, 0), max(since, opened) + WEIGHT_STEPS, 4 * WEIGHT_STEPS)
    run_id, stat = row["run_id"], "weight_norm"
    found = query(measurements, connection, run_id, (stat,), span)
    norms = found.read(measurements, connection, np.array(layers, np.int32), (MINIMUM,))[MINIMUM]
    steps, weights = found.buckets.steps(), {}
    for column, number in enumerate(layers):
        known = np.flatnonzero(np.isfinite(norms[:, column]))
        before, after = known[steps[known] < since], known[steps[known] >= max(since, opened)]
        if len(before) and len(after):
            (first, last) = int(before[np.argmax(norms[before, column])]), int(after[-1])
            weights[number] = Norms(
                float(norms[first, column]), int(steps[first]), float(norms[last, column]), int(steps[last])
            )
    return weights


def _series(row: RowMapping) -> dict[int, LayerInfo]:
    """Return the series of an incident by their numbers: they have names, as layers have."""
    series = repository.incident_from_row(row).series
    return {number: LayerInfo(text.series_name(facts), "", None) for number, facts in series.items()}


def _configuration(connection: Connection, row: Mapping[Any, Any]) -> Configuration:
    """Return the settings of the launch of an incident, and the last norm of all gradients before a clip."""
    stored = runs.read_configurations(connection, row["run_id"], row["launch_no"]).get(row["launch_no"])
    if stored is None:
        return Configuration()
    is_norm = (metric.c.name == "total_norm") & (metric.c.tags == "{}") & (metric.c.launch_no == row["launch_no"])
    norm = connection.scalar(select(metric.c.last).where(metric.c.run_id == row["run_id"], is_norm))
    groups = 1 + max((group for each in stored.settings for group in each.groups), default=-1)
    return Configuration(stored.settings, groups, norm)


def _others(connection: Connection, row: Mapping[Any, Any]) -> Sequence[RowMapping]:
    """Return the other incidents of the run that are open, opened shortly before or after this one, or had opened
    before and not recovered, and the one that this one began beside."""
    distance = 2 * NEAR_STEPS  # a non-finite incident covers what an explosion before it explains
    is_near = incident.c.opened_step.between(_step(row) - distance, _step(row) + distance)
    is_earlier = (incident.c.opened_step <= _step(row)) & (incident.c.resolved_step > _step(row))
    is_earlier |= incident.c.incident_id == row["beside"]
    query = select(incident).where(
        incident.c.run_id == row["run_id"],
        incident.c.incident_id != row["incident_id"],
        or_(incident.c.state == "open", and_(is_near | is_earlier, incident.c.launch_no == row["launch_no"])),
    )
    return connection.execute(query.order_by(incident.c.incident_id)).mappings().all()


def _nearby(row: Mapping[Any, Any], others: Sequence[RowMapping]) -> tuple[NearbyIncident, ...]:
    """Return the other incidents that opened shortly before this one, or had opened before and not recovered.

    A crash explains none, nor does one that opened beside this one, or long before it for information.
    """
    step = _step(row)
    return tuple(
        NearbyIncident(near["incident_id"], near["rule"], near["severity"], near["opened_step"])
        for near in others
        if near["rule"] != "crash"
        and near["opened_step"] <= step
        and near["beside"] != row["incident_id"]
        and (
            near["opened_step"] >= step - NEAR_STEPS
            or near["incident_id"] == row["beside"]
            or (_is_unrecovered(near, step) and near["severity"] != "information")
        )
    )


def _is_unrecovered(row: RowMapping, step: int) -> bool:
    """Return True if an incident was not over at a step; the end of its run is no recovery."""
    return bool(row["state"] == "open" or row["resolved_step"] > step)


def _step(row: Mapping[Any, Any]) -> int:
    """Return the step at which an incident opened; of a crash, that of the last one."""
    step: int = row["since_step"] if row["rule"] == "crash" else row["opened_step"]
    return step
