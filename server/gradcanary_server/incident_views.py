"""Incidents as the read API shows them: plain JSON values, no secret in any."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from sqlalchemy import Connection, select

from gradcanary_server import incidents
from gradcanary_server.dossiers import Dossier
from gradcanary_server.incident_state import Member
from gradcanary_server.notifications import timestamp
from gradcanary_server.schema import attempt, delivery

WHOLE_RUN_NAME = "(whole run)"


def brief(dossier: Dossier, public_url: str) -> dict[str, Any]:
    """Return an incident without its layers and deliveries."""
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


def full(connection: Connection, dossier: Dossier, public_url: str) -> dict[str, Any]:
    """Return an incident with its layers and what was told to whom."""
    return {
        **brief(dossier, public_url),
        "layers": [_member(dossier, number, member) for number, member in dossier.members.items()],
        "deliveries": _deliveries(connection, dossier.id),
    }


def _acked(dossier: Dossier) -> dict[str, str] | None:
    ack = dossier.ack
    return None if ack is None else {"at": timestamp(ack.at), "by": ack.by, "note": ack.note}


def _member(dossier: Dossier, number: int | None, member: Member) -> dict[str, Any]:
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


def _deliveries(connection: Connection, incident_id: int) -> list[dict[str, Any]]:
    attempts: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    tried = select(attempt).where(attempt.c.incident_id == incident_id).order_by(attempt.c.number)
    for row in connection.execute(tried):
        shown = {"at": timestamp(row.at), "status": row.status, "ms": row.ms, "error": row.error}
        attempts[row.endpoint_id, row.version].append(shown)
    columns = (delivery.c.endpoint_id, delivery.c.version, delivery.c.kind, delivery.c.state)
    sent = select(*columns).where(delivery.c.incident_id == incident_id)
    return [
        {
            "endpoint": row.endpoint_id,
            "version": row.version,
            "kind": row.kind,
            "state": row.state,
            "attempts": attempts[row.endpoint_id, row.version],
        }
        for row in connection.execute(sent.order_by(delivery.c.endpoint_id, delivery.c.version))
    ]
