"""Incidents as the read API shows them: plain JSON values, no secret in any."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Column, Connection, RowMapping, select

from gradcanary_server import endpoint_views, incidents, silences
from gradcanary_server.dossiers import Dossier
from gradcanary_server.incident_shapes import (
    AckShape,
    IncidentInBrief,
    IncidentInFull,
    LastToldShape,
    MemberShape,
    SilencedShape,
    ToldShape,
)
from gradcanary_server.incident_state import Member
from gradcanary_server.schema import delivery, endpoint, incident, run
from gradcanary_server.silences import Silence
from gradcanary_server.timestamps import timestamp

WHOLE_RUN_NAME = "(whole run)"


def depends(connection: Connection, ids: Sequence[int], in_force: Sequence[Silence]) -> list[object]:
    """Return what differs when an answer about these incidents does: their runs, what was told, who shall not hear."""
    mine = select(incident.c.incident_id, run.c.name, run.c.revision).join(run, run.c.run_id == incident.c.run_id)
    rows = connection.execute(mine.where(incident.c.incident_id.in_(ids)).order_by(incident.c.incident_id))
    # Messages move on without a new revision of the run.
    sent = _sent(connection, ids, delivery.c.attempts, delivery.c.next_attempt)
    return [*rows, *map(tuple, (row.values() for row in sent)), *in_force]


def told(connection: Connection, ids: Sequence[int]) -> dict[int, list[LastToldShape]]:
    """Return what each endpoint was told last, by incident."""
    latest = {(row["incident_id"], row["endpoint_id"]): row for row in _sent(connection, ids)}
    found: dict[int, list[LastToldShape]] = {number: [] for number in ids}
    for (number, of), row in latest.items():
        whom = endpoint_views.label(row)
        found[number].append({"endpoint": of, "name": whom, "kind": row["kind"], "state": row["state"]})
    return found


def brief(
    dossier: Dossier, public_url: str, in_force: Sequence[Silence], told: Sequence[LastToldShape]
) -> IncidentInBrief:
    """Return an incident without its layers and deliveries, with what the silences ``in_force`` hide of it."""
    what = dossier.incident
    return {
        "id": dossier.id,
        "run": dossier.run,
        "rule": what.rule,
        "severity": what.severity,
        "state": what.state,
        "opened_step": what.opened_step,
        "opened": timestamp(what.opened),
        "since_step": what.since_step,
        "resolved_step": what.resolved_step,
        "resolved": timestamp(what.resolved),
        "resolution": what.resolution,
        "reopened": what.reopened,
        "reopened_at": timestamp(what.reopened_at),
        "acked": _acked(dossier),
        "silenced": _silenced(dossier, in_force),
        "told": list(told),
        "counts": {"firing": what.firing, "ever": what.ever, "layers": what.layers},
        "summary": dossier.summary,
        "likely_cause": {
            "code": dossier.cause.code,
            "text": dossier.cause.text,
            "evidence": list(dossier.cause.evidence),
            "incidents": list(dossier.cause.incidents),
        },
        "fix": {"framework": dossier.fix.framework, "text": dossier.fix.text, "code": dossier.fix.code},
        "url": incidents.page(public_url, dossier.run, dossier.id),
    }


def full(connection: Connection, dossier: Dossier, public_url: str, in_force: Sequence[Silence]) -> IncidentInFull:
    """Return an incident with its layers and what was told to whom."""
    return {
        **brief(dossier, public_url, in_force, told(connection, [dossier.id])[dossier.id]),
        "layers": [_member(dossier, number, member) for number, member in dossier.members.items()],
        "deliveries": _deliveries(connection, dossier.id),
    }


def _acked(dossier: Dossier) -> AckShape | None:
    ack = dossier.ack
    return None if ack is None else {"at": timestamp(ack.at), "by": ack.by, "note": ack.note}


def _silenced(dossier: Dossier, in_force: Sequence[Silence]) -> SilencedShape | None:
    """Return how many of the members that fire nobody is told of, and when the first of them is told of again."""
    about = [each for each in in_force if each.is_about(dossier.run, dossier.incident.rule)]
    if not about or dossier.incident.state != "open":
        return None
    firing = [
        None if number is None else dossier.layers[number].name
        for number, member in dossier.members.items()
        if member.until_step is None
    ]
    ends = [until for name in firing if (until := silences.end_of(about, name)) is not None]
    if not ends:
        return None
    hiding = [each.id for each in about if any(map(each.covers, firing))]
    return {"until": timestamp(min(ends)), "members": len(ends), "of": len(firing), "silences": hiding}


def _member(dossier: Dossier, number: int | None, member: Member) -> MemberShape:
    return {
        "layer": number,
        "name": WHOLE_RUN_NAME if number is None else dossier.layers[number].name,
        "since_step": member.since_step,
        "until_step": member.until_step,
        "value": member.value,
        "baseline": member.baseline,
        "siblings": member.siblings,
        "evidence": member.evidence,
        "rank": member.rank,
    }


def _deliveries(connection: Connection, incident_id: int) -> list[ToldShape]:
    sent = _sent(connection, [incident_id], delivery.c.sealed, delivery.c.delivered, delivery.c.next_attempt)
    keys = [endpoint_views.key(row) for row in sent]
    tried = endpoint_views.attempts(connection, keys)
    return [
        {
            "id": endpoint_views.delivery_id(key),
            "endpoint": key.endpoint,
            "name": endpoint_views.label(row),
            "version": key.version,
            "kind": row["kind"],
            "state": row["state"],
            "sealed": timestamp(row["sealed"]),
            "delivered": timestamp(row["delivered"]),
            "next_attempt": timestamp(row["next_attempt"]) if row["state"] == "pending" else None,
            "attempts": tried[key],
        }
        for key, row in zip(keys, sent, strict=True)
    ]


def _sent(connection: Connection, ids: Sequence[int], *more: Column[Any]) -> Sequence[RowMapping]:
    """Return the messages about these incidents, of each endpoint in their order."""
    columns = (delivery.c.incident_id, delivery.c.endpoint_id, delivery.c.version, delivery.c.kind, delivery.c.state)
    query = select(*columns, *more, endpoint.c.name, endpoint.c.url, endpoint.c.deleted)
    query = query.join(endpoint, endpoint.c.endpoint_id == delivery.c.endpoint_id)
    query = query.where(delivery.c.incident_id.in_(ids))
    return connection.execute(query.order_by(delivery.c.endpoint_id, delivery.c.version)).mappings().all()
