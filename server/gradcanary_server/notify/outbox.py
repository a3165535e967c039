"""The outbox: messages to endpoints in the tables, from the plan to the result of an attempt.

A message is a row, and its body never changes. A claim is a compare-and-set on a fence: of several dispatchers one
sends, and one whose lease expired meanwhile writes nothing. A claimed message may have been delivered
(``maybe_delivered_at``), because its sender can be killed after the answer. A success clears that; a certain failure
restores the earlier value.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    RowMapping,
    Select,
    and_,
    bindparam,
    delete,
    exists,
    func,
    insert,
    not_,
    or_,
    select,
    true,
    update,
)

from gradcanary_server.errors import RequestError
from gradcanary_server.incidents import causes, detail, repository, silences, text
from gradcanary_server.incidents.lifecycle import Incident
from gradcanary_server.incidents.silences import SilencedMembers
from gradcanary_server.notify import endpoints, payload, planner
from gradcanary_server.notify.endpoints import Endpoint
from gradcanary_server.notify.planner import (
    LEASE_S,
    Delivery,
    DeliveryKey,
    Enqueue,
    Expire,
    LastNotification,
    MarkDone,
    NotifiedCause,
    Step,
)
from gradcanary_server.notify.sender import Attempt
from gradcanary_server.notify.webhook import OutgoingMessage, TransportError, retry_delay
from gradcanary_server.rules.config import Pace, Rules
from gradcanary_server.rules.types import Severity
from gradcanary_server.storage.database import Record
from gradcanary_server.storage.runs import DETACHED
from gradcanary_server.storage.schema import attempt, delivery, endpoint, incident, is_of_incident, run
from gradcanary_server.tsdb.reader import Reader

MAX_ERROR = 500

FINAL_WAIT_S = 30 * 86_400.0
"""How long the last messages about a deleted run wait for a disabled endpoint."""

NO_REMINDER_S = 1e12
"""30,000 years: rules take no infinite number."""

# Built once: they run twice a second, and mostly return nothing.
_HAS_MESSAGES_TO_COME = incident.c.notifications_done.is_(False)
_EFFECT = incident.alias("effect")
_RUNS_OF_EFFECTS = select(_EFFECT.c.run_id).where(
    _EFFECT.c.notifications_done.is_(False), _EFFECT.c.rule.in_(causes.CAUSES_OF)
)


def _incidents(run_id: ColumnElement[int]) -> Select[Any]:
    """Return the query for the incidents with messages to come, ``run_id`` being that of the run."""
    is_detached = exists().where(run.c.run_id == run_id, run.c.ended == DETACHED).label("is_detached")
    return select(incident, is_detached).where(_HAS_MESSAGES_TO_COME).order_by(incident.c.incident_id)


_INCIDENTS = _incidents(incident.c.run_id)
_OVER = _INCIDENTS.where(incident.c.state != "open")  # all that is to be done without an endpoint
_RUN_ID = bindparam("run_id", type_=BigInteger)
_LOCKED = _incidents(_RUN_ID).where(incident.c.run_id == _RUN_ID).with_for_update(of=incident, skip_locked=True)


def _may_be_cause(run_id: int | None) -> ColumnElement[bool]:
    """Return the condition of an incident that may explain some with messages to come, of one run or of all."""
    effects = _RUNS_OF_EFFECTS if run_id is None else _RUNS_OF_EFFECTS.where(_EFFECT.c.run_id == run_id)
    return and_(incident.c.run_id.in_(effects), incident.c.rule.in_(causes.CAUSE_RULES))


@dataclass(frozen=True)
class Draft:
    """The message of a step, composed from the incident as it was then."""

    step: Enqueue
    body: bytes
    severity: Severity
    reopened: int


@dataclass(frozen=True)
class Claim:
    """The exclusive right to send a message until a lease ends; ``number`` counts its attempts from 1.

    ``state`` is pending for the dispatcher, and may be any other for a redelivery. ``maybe_delivered_at`` is the time
    of an earlier attempt that may have arrived.
    """

    key: DeliveryKey
    fence: int
    number: int
    message: OutgoingMessage
    state: str = "pending"
    maybe_delivered_at: float | None = None


def plan_deliveries(
    connection: Connection,
    pace: Pace,
    now: float,
    muted: frozenset[str] = frozenset(),
    *,
    run_id: int | None = None,
) -> list[Step]:
    """Return the steps that are due, of all runs or of one; incidents of ``muted`` rules send nothing.

    Those of one run are locked, without those that another transaction has locked: the next round plans them.
    """
    query, is_of_run = (_INCIDENTS, true()) if run_id is None else (_LOCKED, incident.c.run_id == run_id)
    if run_id is None and not endpoints.enabled_endpoints(connection):
        query = _OVER
    rows = connection.execute(query, {} if run_id is None else {"run_id": run_id}).mappings().all()
    if not rows:
        return []
    targets = endpoints.enabled_endpoints(connection)
    may_be_cause = _may_be_cause(run_id)
    cause_rows = _cause_rows(connection, rows, and_(is_of_run, may_be_cause))
    deliveries = _deliveries(connection, and_(is_of_run, or_(_HAS_MESSAGES_TO_COME, may_be_cause)))
    active = silences.active_silences(connection, now)
    read = {row["incident_id"]: row for row in (*rows, *cause_rows)}
    silenced = silences.silenced_members_by_incident(connection, list(read.values()), active)
    notified = _NotifiedCauses(_by_run(cause_rows, muted), deliveries, silenced)
    steps: list[Step] = []
    for row in rows:
        current = repository.incident_from_row(row)
        # A detached run is not measured: its last state may be out of date.
        policy = replace(pace, remind_s=NO_REMINDER_S) if row["is_detached"] else pace
        actions = []
        for target in () if row["rule"] in muted else targets:
            sent = deliveries.get((row["incident_id"], target.id), [])
            is_older = current.resolved is not None and current.resolved < target.since
            if sent or not is_older:
                members = silenced.get(row["incident_id"])
                inhibited = planner.inhibition(current, notified.of(current, target), policy)
                actions.append(planner.next_action(current, members, target, sent, policy, now, inhibited))
        steps += [action for action in actions if isinstance(action, Expire | Enqueue)]
        if current.state != "open" and all(action is None for action in actions):
            steps.append(MarkDone(row["run_id"], row["incident_id"]))
    return steps


@dataclass(frozen=True)
class _NotifiedCauses:
    """The incidents that may explain others, with what endpoints got and get of them."""

    of_run: Mapping[int, Sequence[Incident]]
    deliveries: Mapping[tuple[int, int], Sequence[Delivery]]
    silenced: Mapping[int, SilencedMembers]

    def of(self, effect: Incident, target: Endpoint) -> list[NotifiedCause]:
        """Return the causes of an incident of which an endpoint was or will be notified."""
        found = []
        for cause in self.of_run.get(effect.run_id or 0, ()):
            number = cause.id or 0
            if causes.is_inhibited_by(effect, cause):
                sent = self.deliveries.get((number, target.id), [])
                found.append(planner.notified_cause(cause, self.silenced.get(number), sent, target))
        return [cause for cause in found if cause is not None]


def _by_run(rows: Sequence[RowMapping], muted: frozenset[str]) -> Mapping[int, Sequence[Incident]]:
    found: dict[int, list[Incident]] = defaultdict(list)
    for row in rows:
        if row["rule"] not in muted:
            found[row["run_id"]].append(repository.incident_from_row(row))
    return found


def _cause_rows(connection: Connection, rows: Sequence[RowMapping], which: ColumnElement[bool]) -> list[RowMapping]:
    """Return the incidents that may explain some of these: with messages to come, or that the run ended on.

    None is locked or skipped: an incident that another transaction locks explains others as it was before.
    """
    if all(row["rule"] not in causes.CAUSES_OF for row in rows):
        return []
    # Not "= ended": SQLite would read all of the store that ended.
    is_needed = or_(_HAS_MESSAGES_TO_COME, incident.c.state.not_in(("open", "resolved")))
    return list(connection.execute(select(incident).where(which, is_needed)).mappings())


def compose_drafts(
    connection: Connection,
    steps: Sequence[Step],
    public_url: str,
    now: float,
    measurements: Reader | None = None,
) -> dict[DeliveryKey, Draft]:
    """Compose messages of :func:`plan_deliveries` in the transaction that planned them, for at most 0.2 s.

    No writing transaction may call this: it reads the names of all layers.
    """
    until = time.monotonic() + text.COMPOSE_S
    drafts: dict[DeliveryKey, Draft] = {}
    for step in steps:
        if drafts and time.monotonic() > until:
            break
        if isinstance(step, Enqueue):
            drafts[step.key] = _draft(connection, step, public_url, now, measurements)
    return drafts


def apply_step(connection: Connection, step: Step, drafts: Mapping[DeliveryKey, Draft], now: float) -> None:
    """Write a step of :func:`plan_deliveries`, in the transaction that planned it and locks its incident.

    A message without a draft, or with one of another kind or other hidden members, waits for the next round. A draft
    may have fewer layers than its incident has now: later rounds compare.
    """
    if isinstance(step, Enqueue):
        draft = drafts.get(step.key)
        if draft is not None and (draft.step.due.kind, draft.step.hidden) == (step.due.kind, step.hidden):
            _enqueue(connection, draft, now, now)
    elif isinstance(step, Expire):
        # Another collector may have claimed it meanwhile.
        unclaimed = (*has_key(step.key), delivery.c.state == "pending", _is_unclaimed(now))
        connection.execute(update(delivery).where(*unclaimed).values(state="expired"))
    else:
        # An incident without its summary is not done: summaries are composed only before that.
        is_done = is_of_incident(incident, step.run_id, step.incident_id) & text.IS_DESCRIBED
        connection.execute(update(incident).where(is_done).values(notifications_done=True))


def enqueue_final_notifications(connection: Connection, row: Record, rules: Rules, public_url: str, now: float) -> None:
    """Replace all messages about a run that is being deleted by the last ones, which need none of its rows.

    Each endpoint that may have a message about an incident gets its end, as after any end of a run; one that is under
    way stays.
    """
    is_of_run = incident.c.run_id == row.run_id
    # Locked, so that no collector enqueues or claims a message about the run.
    query = select(incident).where(is_of_run).order_by(incident.c.incident_id).with_for_update()
    rows = {values["incident_id"]: values for values in connection.execute(query).mappings()}
    deliveries = _deliveries(connection, is_of_run, lock=True)
    under_way = [sent[-1] for sent in deliveries.values() if planner.is_final_delivery(sent[-1])]
    active = silences.active_silences(connection, now)
    silenced = silences.silenced_members_by_incident(connection, list(rows.values()), active)
    drafts: list[Draft] = []
    closing = set(connection.scalars(select(endpoint.c.endpoint_id).where(endpoint.c.sends_ended)))
    for (incident_id, endpoint_id), sent in deliveries.items():
        current = repository.incident_from_row(rows[incident_id])
        until = max((silence.until for silence in active if silence.is_about(row.name, current.rule)), default=now)
        members = silenced.get(incident_id)
        closes = endpoint_id in closing
        step = planner.final_notification(current, members, sent, rules.pace, until, sends_ended=closes)
        if step is not None and sent[-1] not in under_way and current.rule not in rules.muted:
            drafts.append(_draft(connection, step, public_url, now))
    is_kept = [and_(*has_key(message.key)) for message in under_way]
    connection.execute(delete(delivery).where(delivery.c.run_id == row.run_id, *map(not_, is_kept)))
    for draft in drafts:
        _enqueue(connection, draft, now, max(now, draft.step.due.not_before))


def runs_of_old_messages(connection: Connection, now: float) -> Sequence[int]:
    """Return the deleted runs with messages that have waited for a disabled endpoint for ``FINAL_WAIT_S``."""
    return connection.scalars(select(delivery.c.run_id).where(*_is_old(now)).distinct()).all()


def delete_old_messages(connection: Connection, run_id: int, now: float) -> None:
    """Delete these messages of one run."""
    connection.execute(delete(delivery).where(delivery.c.run_id == run_id, *_is_old(now)))


def _is_old(now: float) -> Sequence[ColumnElement[bool]]:
    return delivery.c.next_attempt < now - FINAL_WAIT_S, ~endpoints.HAS_INCIDENT


def claimable(connection: Connection, now: float) -> list[DeliveryKey]:
    """Return the messages whose next attempt is due, the oldest first."""
    is_due = _is_due(connection, now)
    query = select(*delivery.primary_key).where(*is_due).order_by(delivery.c.next_attempt, *delivery.primary_key)
    return [delivery_key(row) for row in connection.execute(query).mappings()]


def claim_delivery(connection: Connection, key: DeliveryKey, now: float) -> Claim | None:
    """Claim a message whose next attempt is due, None if another dispatcher has it."""
    return _claim(connection, key, _is_due(connection, now), now)


def claim_for_redelivery(connection: Connection, incident_id: int, endpoint_id: int, version: int, now: float) -> Claim:
    """Claim a message in any state by its public name.

    Raises RequestError 404 if it does not exist, 409 if an attempt is under way or its endpoint is disabled.
    """
    endpoints.lock_endpoint(connection, endpoint_id)
    where = (delivery.c.incident_id == incident_id, delivery.c.version == version)
    query = select(*delivery.primary_key).where(*where, delivery.c.endpoint_id == endpoint_id)
    row = connection.execute(query).mappings().one_or_none()
    if row is None:
        raise RequestError(404, "unknown_delivery", "There is no such delivery here.", "delivery")
    if endpoints.read_endpoint(connection, endpoint_id)["disabled"] is not None:
        message = f"Endpoint {endpoint_id} is disabled: enable it first."
        raise RequestError(409, "endpoint_disabled", message, "delivery")
    claim = _claim(connection, delivery_key(row), [_is_unclaimed(now)], now)
    if claim is None:
        raise RequestError(409, "under_way", "It is being sent at this moment.", "delivery")
    return claim


def outgoing_message(row: RowMapping, number: str, body: bytes, now: float) -> OutgoingMessage:
    """Return a message to the endpoint of a row, with the secrets to sign it."""
    return OutgoingMessage(number, row["url"], endpoints.signing_secrets(row, now), body, row["origin"] == "api")


def finish_attempt(connection: Connection, claim: Claim, outcome: Attempt, now: float, jitter: float) -> None:
    """Record the result of an attempt; writes nothing if the claim was lost meanwhile.

    A message is also delivered if its endpoint was disabled during the attempt.
    """
    endpoints.lock_endpoint(connection, claim.key.endpoint_id)
    error = outcome.error
    columns: dict[str, object] = {"attempts": claim.number, "lease_until": None}
    if claim.state != "delivered":
        columns |= _result_columns(connection, claim, error, now, jitter)
    is_claimed = (delivery.c.fence == claim.fence, delivery.c.state.in_({claim.state, "disabled"}))
    statement = update(delivery).where(*has_key(claim.key), *is_claimed).values(**columns)
    if connection.execute(statement).rowcount != 1:
        return
    reason = None if error is None else str(error)[:MAX_ERROR]
    values = {"number": claim.number, "at": now, "status": outcome.status, "ms": outcome.ms, "error": reason}
    connection.execute(insert(attempt).values(**claim.key._asdict(), **values))
    if error is not None:
        endpoints.record_failure(connection, claim.key.endpoint_id, now, reason or "", error.permanent)
        return
    endpoints.record_success(connection, claim.key.endpoint_id, now)
    # The last message about a deleted run has no incident: its row is deleted.
    connection.execute(delete(delivery).where(*has_key(claim.key), ~endpoints.HAS_INCIDENT))


def _result_columns(
    connection: Connection, claim: Claim, error: TransportError | None, now: float, jitter: float
) -> dict[str, object]:
    """Return the columns of a message that was not delivered before this attempt.

    After a redelivery that was, or may have been, delivered the incident is planned again: the endpoint may need its
    newest state.
    """
    if claim.state != "pending" and (error is None or error.maybe_delivered):
        where = is_of_incident(incident, claim.key.run_id, claim.key.incident_id)
        connection.execute(update(incident).where(where).values(notifications_done=False))
    if error is None:
        return {"state": "delivered", "delivered": now, "maybe_delivered_at": None}
    columns: dict[str, object] = {} if error.maybe_delivered else {"maybe_delivered_at": claim.maybe_delivered_at}
    if claim.state == "pending":
        failures = _failures(connection, claim.key) + 1
        columns["next_attempt"] = now + retry_delay(failures, error.retry_after_s, jitter)
    return columns


def _claim(
    connection: Connection, key: DeliveryKey, conditions: Sequence[ColumnElement[bool]], now: float
) -> Claim | None:
    """Claim a message that meets conditions."""
    query = select(delivery).where(*has_key(key), *conditions)
    row = connection.execute(query.with_for_update()).mappings().one_or_none()
    if row is None:
        return None
    columns = {"fence": row["fence"] + 1, "lease_until": now + LEASE_S}
    if row["state"] != "delivered":
        columns["maybe_delivered_at"] = now
    connection.execute(update(delivery).where(*has_key(key)).values(**columns))
    target = endpoints.read_endpoint(connection, key.endpoint_id)
    message = outgoing_message(target, f"msg_{key.incident_id}_{key.version}", row["body"], now)
    return Claim(key, row["fence"] + 1, row["attempts"] + 1, message, row["state"], row["maybe_delivered_at"])


def _failures(connection: Connection, key: DeliveryKey) -> int:
    """Return the number of attempts at this endpoint after the last delivered message about this incident."""
    where = is_of_incident(delivery, key.run_id, key.incident_id) & (delivery.c.endpoint_id == key.endpoint_id)
    delivered = select(func.max(delivery.c.version)).where(where, delivery.c.state == "delivered")
    is_later = delivery.c.version > func.coalesce(delivered.scalar_subquery(), 0)
    return connection.execute(select(func.sum(delivery.c.attempts)).where(where, is_later)).scalar_one() or 0


def _deliveries(
    connection: Connection, which: ColumnElement[bool], *, lock: bool = False
) -> dict[tuple[int, int], list[Delivery]]:
    """Return the messages about incidents by incident and endpoint, the oldest first."""
    query = select(*(column for column in delivery.c if column.name != "body"))
    query = query.join(incident, is_of_incident(delivery, incident.c.run_id, incident.c.incident_id))
    query = query.where(which).order_by(delivery.c.incident_id, delivery.c.endpoint_id, delivery.c.version)
    rows = connection.execute(query.with_for_update(of=delivery) if lock else query).mappings()
    deliveries: dict[tuple[int, int], list[Delivery]] = defaultdict(list)
    for row in rows:
        deliveries[row["incident_id"], row["endpoint_id"]].append(_delivery_from_row(row))
    return deliveries


def _delivery_from_row(row: RowMapping) -> Delivery:
    def notification(at: float) -> LastNotification:
        notified = row["notified_layers"], row["notified_severity"], row["notified_reopens"]
        return LastNotification(at, row["kind"], *notified)

    return Delivery(
        key=delivery_key(row),
        state=row["state"],
        enqueued_at=row["enqueued_at"],
        next_attempt=row["next_attempt"],
        lease_until=row["lease_until"],
        delivered=notification(row["delivered"]) if row["state"] == "delivered" else None,
        maybe_delivered=None if row["maybe_delivered_at"] is None else notification(row["maybe_delivered_at"]),
    )


def _draft(
    connection: Connection, step: Enqueue, public_url: str, now: float, measurements: Reader | None = None
) -> Draft:
    [loaded] = detail.load_details(
        connection, [step.key.incident_id], step.hidden, run_id=step.key.run_id, measurements=measurements
    )
    body = payload.build_payload(loaded, step.due.kind, step.key.version, public_url, now)
    return Draft(step, body, loaded.incident.severity, loaded.incident.reopened)


def _enqueue(connection: Connection, draft: Draft, now: float, next_attempt: float) -> None:
    news = draft.step.due
    values = {
        "kind": news.kind,
        "state": "pending",
        "body": draft.body,
        "enqueued_at": now,
        "notified_layers": news.layers,
        "notified_severity": draft.severity,
        "notified_reopens": draft.reopened,
        "next_attempt": next_attempt,
    }
    connection.execute(insert(delivery).values(**draft.step.key._asdict(), **values))


def _is_due(connection: Connection, now: float) -> Sequence[ColumnElement[bool]]:
    """Return the conditions of a message whose next attempt is due.

    Those of the endpoint count, too: it may have been disabled while the message was enqueued.
    """
    is_enabled = delivery.c.endpoint_id.in_([each.id for each in endpoints.enabled_endpoints(connection)])
    return delivery.c.state == "pending", delivery.c.next_attempt <= now, _is_unclaimed(now), is_enabled


def _is_unclaimed(now: float) -> ColumnElement[bool]:
    """Return the condition of a message without an attempt under way; the SQL of :func:`planner.is_leased`."""
    return or_(delivery.c.lease_until.is_(None), delivery.c.lease_until < now)


def has_key(key: DeliveryKey) -> list[ColumnElement[bool]]:
    """Return the conditions of one message."""
    return [delivery.c[name] == value for name, value in key._asdict().items()]


def delivery_key(row: RowMapping) -> DeliveryKey:
    """Return the key of a row of ``delivery``."""
    return DeliveryKey(*(row[name] for name in DeliveryKey._fields))
