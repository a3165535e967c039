"""Incidents as the read API shows them: plain JSON values, no secret in any."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, select

from gradcanary_server import endpoint_views, incidents, silences
from gradcanary_server.dossiers import Dossier
from gradcanary_server.incident_shapes import (
    AckShape,
    IncidentInBrief,
    IncidentInFull,
    MemberShape,
    SilencedShape,
    ToldShape,
)
from gradcanary_server.incident_state import Member
from gradcanary_server.notifications import timestamp
from gradcanary_server.schema import delivery, endpoint
from gradcanary_server.silences import Silence

WHOLE_RUN_NAME = "(whole run)"


def brief(dossier: Dossier, public_url: str, in_force: Sequence[Silence]) -> IncidentInBrief:
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
        "resolved_step": what.resolved_step,
        "resolution": what.resolution,
        "reopened": what.reopened,
        "acked": _acked(dossier),
        "silenced": _silenced(dossier, in_force),
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
        **brief(dossier, public_url, in_force),
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
    return {"until": timestamp(min(ends)), "members": len(ends), "of": len(firing)}


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
    columns = (delivery.c.incident_id, delivery.c.endpoint_id, delivery.c.version, delivery.c.kind, delivery.c.state)
    query = select(*columns, endpoint.c.name, endpoint.c.url, endpoint.c.deleted)
    query = query.join(endpoint, endpoint.c.endpoint_id == delivery.c.endpoint_id)
    query = query.where(delivery.c.incident_id == incident_id)
    sent = connection.execute(query.order_by(delivery.c.endpoint_id, delivery.c.version)).mappings().all()
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
            "attempts": tried[key],
        }
        for key, row in zip(keys, sent, strict=True)
    ]
