"""What was told and what is to be told, in the tables.

One row per message; sealing writes its bytes, and nothing changes them afterwards. How they are sent: attempts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    RowMapping,
    bindparam,
    insert,
    or_,
    select,
    update,
)

from gradcanary_server import dossiers, endpoints, incident_rows, incidents, notifications, planning, silences
from gradcanary_server.endpoints import Endpoint
from gradcanary_server.leaps import AHEAD_S, Leaps, is_ahead
from gradcanary_server.pace import Pace, Told
from gradcanary_server.planning import LEASE_S, Expire, Key, Redate, Seal, Sent, Settle, Step
from gradcanary_server.schema import delivery, endpoint, incident

# Made once: twice a second they are asked, and mostly for nothing.
_UNSETTLED = select(incident).where(incident.c.settled.is_(False)).order_by(incident.c.incident_id)
_HELD = _UNSETTLED.with_for_update(skip_locked=True)


def plan(
    connection: Connection,
    pace: Pace,
    now: float,
    muted: frozenset[str] = frozenset(),
    leaps: Leaps = (),
    *,
    holding: bool = False,
) -> list[Step]:
    """Return what is to be written now, from what is true and what was told; of ``muted`` rules nobody is told.

    ``leaps`` are those of the clock that are known. ``holding`` the incidents until the transaction ends, without those
    that somebody changes at this moment: their turn comes in the next round.
    """
    rows = connection.execute(_HELD if holding else _UNSETTLED).mappings().all()
    if not rows:
        return []
    targets = endpoints.enabled(connection)
    told = _by_target(connection)
    veiled = silences.veiled(connection, rows, silences.in_force(connection, now))
    steps: list[Step] = []
    for row in rows:
        what = planning.gathered(incident_rows.parsed(row), leaps, now)
        whom = () if row["rule"] in muted else targets
        heard = [(target, told.get((row["incident_id"], target.id), [])) for target in whom]
        veil = veiled.get(row["incident_id"])
        past = [redate for _, sent in heard for redate in planning.redated(sent, now)]
        if past:
            steps += past
            continue  # in the next round they are what they should be
        heard = [(target, [planning.aged(each, leaps) for each in sent]) for target, sent in heard]
        wanted = [(each, sent) for each, sent in heard if sent or not _is_past(row, each, now)]
        verdicts = [planning.following(what, veil, each, sent, pace, now) for each, sent in wanted]
        steps += [verdict for verdict in verdicts if isinstance(verdict, Expire | Seal)]
        if what.state == "resolved" and all(verdict is None for verdict in verdicts):
            steps.append(Settle(row["incident_id"]))
    return steps


def _is_past(row: RowMapping, target: Endpoint, now: float) -> bool:
    """Tell whether an incident was over before there was anybody to tell: nobody wants to hear old stories."""
    return row["state"] == "resolved" and bool(row["resolved"] < target.since) and not is_ahead(target.since, now)


def carry_out(connection: Connection, step: Step, public_url: str, now: float) -> None:
    """Write a step of :func:`plan`, in the transaction that planned it and holds its incident."""
    if isinstance(step, Seal):
        _seal(connection, step, public_url, now)
    elif isinstance(step, Expire):
        # Not what another collector has claimed meanwhile: that is on its way.
        unclaimed = (*is_key(step.key), delivery.c.state == "pending", is_unclaimed(now))
        connection.execute(update(delivery).where(*unclaimed).values(state="expired"))
    elif isinstance(step, Redate):
        times = {"sealed": step.sealed, "next_attempt": step.next_attempt}
        times |= {} if step.delivered is None else {"delivered": step.delivered}
        times |= {} if step.unsure is None else {"unsure": step.unsure}
        connection.execute(update(delivery).where(*is_key(step.key)).values(**times))
    else:
        connection.execute(update(incident).where(incident.c.incident_id == step.incident).values(settled=True))


def claimable(connection: Connection, now: float) -> list[Key]:
    """Return the messages whose next attempt is due, oldest first."""
    return [Key(row.incident_id, row.endpoint_id, row.version) for row in connection.execute(_CLAIMABLE, {"now": now})]


def _by_target(connection: Connection) -> dict[tuple[int, int], list[Sent]]:
    """Return the messages of the incidents that are not settled, per incident and endpoint, oldest first."""
    query = select(*(column for column in delivery.c if column.name != "body"))
    query = query.join(incident, incident.c.incident_id == delivery.c.incident_id)
    rows = connection.execute(query.where(incident.c.settled.is_(False)).order_by(delivery.c.version)).mappings()
    found: dict[tuple[int, int], list[Sent]] = defaultdict(list)
    for row in rows:
        found[row["incident_id"], row["endpoint_id"]].append(_sent(row))
    return found


def _sent(row: RowMapping) -> Sent:
    def told(at: float) -> Told:
        return Told(at, row["kind"], row["told_ever"], row["told_severity"], row["told_reopened"])

    return Sent(
        key=Key(row["incident_id"], row["endpoint_id"], row["version"]),
        state=row["state"],
        sealed=row["sealed"],
        next_attempt=row["next_attempt"],
        lease_until=row["lease_until"],
        told=told(row["delivered"]) if row["state"] == "delivered" else None,
        unsure=None if row["unsure"] is None else told(row["unsure"]),
    )


def _seal(connection: Connection, step: Seal, public_url: str, now: float) -> None:
    key, news = step.key, step.due
    [dossier] = dossiers.load(connection, [key.incident], step.hidden)
    url = incidents.page(public_url, dossier.run, key.incident)
    connection.execute(
        insert(delivery).values(
            incident_id=key.incident,
            endpoint_id=key.endpoint,
            version=key.version,
            kind=news.kind,
            state="pending",
            body=notifications.seal(dossier, news.kind, key.version, url, now),
            sealed=now,
            told_ever=news.members,
            told_severity=dossier.incident.severity,
            told_reopened=dossier.incident.reopened,
            next_attempt=now,
        )
    )


def free(now: float | BindParameter[float]) -> Sequence[ColumnElement[bool]]:
    """Return what is true of messages whose next attempt is due.

    One may have been sealed at the moment at which its endpoint was disabled, or deleted.
    """
    enabled = select(endpoint.c.endpoint_id).where(endpoint.c.disabled.is_(None))
    is_wanted = delivery.c.endpoint_id.in_(enabled)
    return delivery.c.state == "pending", delivery.c.next_attempt <= now, is_unclaimed(now), is_wanted


def is_unclaimed(now: float | BindParameter[float]) -> ColumnElement[bool]:
    """Return what is true of messages that nobody is sending; as :func:`planning.is_leased`, in SQL."""
    lease = delivery.c.lease_until
    return or_(lease.is_(None), lease < now, lease > now + (LEASE_S + AHEAD_S))


def is_key(key: Key) -> Sequence[ColumnElement[bool]]:
    """Return what is true of one message."""
    return (
        delivery.c.incident_id == key.incident,
        delivery.c.endpoint_id == key.endpoint,
        delivery.c.version == key.version,
    )


_CLAIMABLE = (
    select(delivery.c.incident_id, delivery.c.endpoint_id, delivery.c.version)
    .where(*free(bindparam("now")))
    .order_by(delivery.c.next_attempt, *delivery.primary_key)
)
