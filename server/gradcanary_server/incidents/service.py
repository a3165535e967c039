"""Incidents of a run: transitions recorded, incidents closed and rebaselined, and short summaries of them.

:func:`record_transitions` runs inside the ingest transaction: a batch in which 3,000 layers fire costs few statements.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from sqlalchemy import (
    BigInteger,
    BindParameter,
    Connection,
    RowMapping,
    ScalarSelect,
    Select,
    and_,
    bindparam,
    exists,
    func,
    or_,
    select,
)
from sqlalchemy import case as choose

from gradcanary_server.errors import invalid
from gradcanary_server.incidents import repository
from gradcanary_server.incidents.lifecycle import (
    ABSENCE_RULES,
    PROCESS_RULES,
    RANKS,
    IncidentCase,
    TransitionContext,
    apply_transitions,
    close_incident,
    is_beside,
)
from gradcanary_server.rules import resets
from gradcanary_server.rules.config import Pace
from gradcanary_server.rules.detectors import metric
from gradcanary_server.rules.types import Transition
from gradcanary_server.storage import rule_states
from gradcanary_server.storage.schema import incident, incident_layer, is_of_incident, launch, run

_NEWER, _MEMBER = incident.alias(), incident_layer.alias()
_OF_ITS_RULE = and_(_NEWER.c.run_id == incident.c.run_id, _NEWER.c.rule == incident.c.rule)
_IS_LAST = ~exists().where(_OF_ITS_RULE, _NEWER.c.incident_id > incident.c.incident_id)
_MEMBER_OF_IT = and_(_MEMBER.c.run_id == incident.c.run_id, _MEMBER.c.incident_id == incident.c.incident_id)
_FIRES = exists().where(_MEMBER_OF_IT, _MEMBER.c.until_step.is_(None))
_STANDS = or_(incident.c.state == "open", and_(incident.c.state == "ended", _IS_LAST, _FIRES))
"""True for an open incident, and for the newest of its rule if the run ended on it and a member still fires."""

RESUME_STEPS = 200
"""A healthy layer of a resumed run recovers within 100 steps by default; one that fires after these has not."""

_INHERITED = (
    select(incident.c.rule, launch.c.first_step)
    .join(launch, (launch.c.run_id == incident.c.run_id) & (launch.c.launch_no == bindparam("launch_no")))
    .where(
        incident.c.run_id == bindparam("run_id"),
        incident.c.state == "ended",
        incident.c.rule != metric.RULE,  # its series report it again: they are measured too seldom to judge by steps
        incident.c.launch_no != launch.c.launch_no,
        launch.c.first_step <= bindparam("reached", type_=BigInteger) - RESUME_STEPS,
    )
)
"""The rules of incidents that an earlier launch ended on, with the first step of this launch, 200 steps later."""


@dataclass(frozen=True)
class WorstIncident:
    """The incident that the headline of a run is about; ``firing`` of ``layers`` is 0 for a rule of the whole run."""

    id: int
    rule: str
    severity: str
    firing: int
    layers: int
    acked: bool


@dataclass(frozen=True)
class RunHeadline:
    """A run's incidents in one line.

    ``firing`` counts layers by rule, 0 for a rule of the whole run or of metrics, and for information. Layers that
    fired when the run ended still count; ``severity_at_end`` is their worst severity, None while an incident is open.
    ``unacked`` are the critical incidents without an acknowledgement, the worst first.
    """

    open_incidents: list[int] = field(default_factory=list)
    worst: str | None = None
    worst_incident: WorstIncident | None = None
    unacked: list[int] = field(default_factory=list)
    firing: dict[str, int] = field(default_factory=dict)
    headline: str = ""
    severity_at_end: str | None = None


@dataclass(frozen=True)
class IncidentMark:
    """A step at which an incident began (``fired``) or ended (``resolved``)."""

    step: int
    incident: int
    kind: Literal["fired", "resolved"]


def record_transitions(
    connection: Connection,
    run_id: int,
    launch_no: int,
    changes: Iterable[Transition],
    now: float,
    reopen_s: float = Pace().reopen_s,
    reached: int | None = None,
) -> None:
    """Apply transitions, in the order of their steps, to at most one open incident per rule.

    ``reached`` is the last evaluated step, None for transitions that no step caused. An incident that the run ended
    on reopens after 200 steps of a new launch without a recovery.
    """
    by_rule: dict[str, list[Transition]] = defaultdict(list)
    for change in changes:
        by_rule[change.rule].append(change)
    # Rules report an incident once, also over launches: no transition reopens one that an earlier launch ended on.
    inherited: dict[str, int] = {}
    if reached is not None:
        rows = connection.execute(_INHERITED, {"run_id": run_id, "launch_no": launch_no, "reached": reached})
        inherited = {rule: first_step + RESUME_STEPS for rule, first_step in rows}
    if not by_rule and not inherited:
        return
    names = repository.layer_names(connection, run_id)
    plain = TransitionContext(launch_no, len(names), now)
    opens_beside = "explosion" in by_rule and _opens_beside_collapse(
        repository.latest_incident(connection, run_id, "collapse"), by_rule, names, plain, reopen_s
    )
    follows_explosion = "no_update" in by_rule and _follows_explosion(
        repository.latest_incident(connection, run_id, "explosion"), by_rule, plain, reopen_s
    )
    for rule in {**by_rule, **inherited}:
        before = repository.latest_incident(connection, run_id, rule)
        context = replace(plain, inherit_after_step=inherited.get(rule))
        if (rule == "explosion" and opens_beside) or (rule == "no_update" and follows_explosion):
            first = repository.latest_incident(connection, run_id, "collapse" if rule == "explosion" else "explosion")
            context = replace(context, beside=None if first is None else first.incident.id)
        for case in apply_transitions(before, by_rule[rule], context, reopen_s):
            repository.save_incident(connection, run_id, case)


def _opens_beside_collapse(
    case: IncidentCase | None,
    by_rule: Mapping[str, Sequence[Transition]],
    names: Mapping[int, str],
    context: TransitionContext,
    reopen_s: float,
) -> bool:
    """Return True if an explosion begins beside a collapse that is open then; ``case`` is the latest before these.

    Later changes do not count, so it is the same however the stream is cut.
    """
    first = next((change for change in by_rule.get("explosion", ()) if change.kind == "fired"), None)
    if first is None:
        return False
    case = _before(first.step, case, by_rule.get("collapse", ()), context, reopen_s)
    if case is None or case.incident.state != "open" or case.incident.opened_step >= first.step:
        return False
    return is_beside(first.layer, case, names)


def _follows_explosion(
    case: IncidentCase | None, by_rule: Mapping[str, Sequence[Transition]], context: TransitionContext, reopen_s: float
) -> bool:
    """Return True if the parameters that move far less than others are among those, not all, whose gradients exploded
    before in this launch; ``case`` is the latest explosion before these changes, which also resolve.
    """
    fired = [change for change in by_rule["no_update"] if change.kind == "fired"]
    first = [change for change in fired if change.step == fired[0].step]
    if not first or {change.evidence for change in first} != {"apart"}:
        return False
    case = _before(first[0].step, case, by_rule.get("explosion", ()), context, reopen_s)
    if case is None or case.incident.launch_no != context.launch_no or len(case.members) >= context.layers:
        return False
    return {change.layer for change in first} <= case.members.keys()


def _before(
    step: int,
    case: IncidentCase | None,
    changes: Iterable[Transition],
    context: TransitionContext,
    reopen_s: float,
) -> IncidentCase | None:
    """Return the latest incident of a rule as of before a step; ``case`` is that before these changes."""
    changed = apply_transitions(case, [change for change in changes if change.step < step], context, reopen_s)
    return changed[-1] if changed else case


def record_crash(
    connection: Connection, run_id: int, launch_no: int, crashed: Transition, now: float, reopen_s: float
) -> None:
    """Open or reopen the incident of a crash; a launch has one, whatever the number of ranks that crash."""
    case = repository.latest_incident(connection, run_id, crashed.rule)
    if case is None or case.incident.launch_no != launch_no:
        record_transitions(connection, run_id, launch_no, [crashed], now, reopen_s)
        return
    case.add_crash(crashed)
    if case.has_changed:
        repository.save_incident(connection, run_id, case)


def resume_after_crash(connection: Connection, run_id: int, launch_no: int, now: float) -> None:
    """Note on the incident of a crash that another launch goes on: the next crash is another one."""
    case = repository.latest_incident(connection, run_id, "crash")
    if case is not None and case.is_firing and case.incident.launch_no != launch_no:
        step = case.incident.opened_step
        case.resolve(Transition(step, "crash", None, "resolved", "critical", step, resolution="resumed"), now)
        repository.save_incident(connection, run_id, case)


def crashed_runs(connection: Connection, run_id: int | None = None) -> frozenset[int]:
    """Return the runs, or this one, with an open incident of a crash: one rank crashed, and others did not end."""
    query = select(incident.c.run_id).where(incident.c.state == "open", incident.c.rule == "crash")
    return frozenset(connection.scalars(query if run_id is None else query.where(incident.c.run_id == run_id)))


_RUN_IDS: BindParameter[int] = bindparam("run_ids", expanding=True)
_ABSENCES = select(incident.c.run_id, incident.c.rule).where(
    incident.c.state == "open", incident.c.rule.in_(ABSENCE_RULES), incident.c.run_id.in_(_RUN_IDS)
)


def open_absence_rules(connection: Connection, run_ids: Collection[int]) -> dict[int, frozenset[str]]:
    """Return the rules of open incidents of these silent and stalled runs, by run."""
    rules: dict[int, frozenset[str]] = defaultdict(frozenset)
    for row in connection.execute(_ABSENCES, {"run_ids": list(run_ids)}):
        rules[row.run_id] |= {row.rule}
    return rules


def close_run(connection: Connection, run_id: int, step: int, now: float, resolution: str) -> None:
    """End every open incident of a run; its members still fire, they did not recover."""
    for case in repository.open_incidents(connection, run_id):
        at = max(step, case.incident.opened_step)  # a crash is in the step after the last one
        closed = IncidentCase(close_incident(case.incident, at, now, resolution), case.members)
        repository.save_incident(connection, run_id, closed)


def rebaseline(connection: Connection, run_id: int, incident_id: int, now: float) -> None:
    """Resolve the firing layers of an incident, and learn a new baseline of each; raises RequestError 422.

    The caller holds the run: the rule state changes between two batches.
    """
    query = select(incident.c.rule, func.coalesce(run.c.step, incident.c.opened_step))
    query = query.join(run, run.c.run_id == incident.c.run_id)
    rule, step = connection.execute(query.where(is_of_incident(incident, run_id, incident_id))).one()
    if rule not in resets.ACCEPTABLE:
        rules = " and ".join(resets.ACCEPTABLE)
        raise invalid(f"Only {rules} hold gradients against a baseline: silence {rule} instead.", "new_baseline")
    case = repository.latest_incident(connection, run_id, rule)
    if case is None or case.incident.id != incident_id or not case.is_firing:
        raise invalid("Nothing of this incident fires any more: there is no baseline to be learnt.", "new_baseline")
    stored = rule_states.read_state(connection, run_id)
    state, layers = resets.rebaseline(stored.state, rule)
    if not layers:
        message = "Its parameters are under a threshold that was given, not learnt: change it, or silence them."
        raise invalid(message, "new_baseline")
    rule_states.write_state(connection, run_id, stored, state)
    for layer in layers:
        resolved = Transition(step, rule, layer, "resolved", case.incident.severity, step, resolution="rebaselined")
        case.resolve(resolved, now)
    if not case.is_firing:  # also where the end of the run had closed it
        case.incident = replace(case.incident, state="resolved", resolution="rebaselined")
    repository.save_incident(connection, run_id, case)


def runbook_url(public_url: str, rule: str) -> str:
    """Return the address of the page about what to do: causes, and fixes by framework."""
    return f"{public_url}/runbooks/{rule}"


def incident_url(public_url: str, run_name: str, incident_id: int) -> str:
    """Return the address of an incident's page."""
    return f"{public_url}/runs/{run_name}?incident={incident_id}"


_STANDING = select(incident).where(incident.c.run_id.in_(_RUN_IDS), _STANDS).order_by(incident.c.incident_id)


def run_headlines(connection: Connection, run_ids: Collection[int]) -> dict[int, RunHeadline]:
    """Return the headline of each of these runs: that of the worst open incident.

    Of equals it is the first one that nobody acknowledged. An incident of the process comes after the one of its
    layers. A run that ended on an incident keeps its headline while a member still fires; of each rule only the newest
    incident counts.
    """
    rows: dict[int, list[RowMapping]] = {run_id: [] for run_id in run_ids}
    for row in connection.execute(_STANDING, {"run_ids": list(run_ids)}).mappings():
        rows[row["run_id"]].append(row)
    return {run_id: _headline(incidents) for run_id, incidents in rows.items()}


def runs_to_acknowledge() -> Select[tuple[int]]:
    """Return the query for the ids of runs with a critical incident that nobody acknowledged."""
    is_unacked = and_(incident.c.severity == "critical", incident.c.acked.is_(None))
    return select(incident.c.run_id).where(incident.c.state.in_(("open", "ended")), is_unacked, _STANDS)


def worst_rank() -> ScalarSelect[int]:
    """Return the rank of the worst severity of a row of ``run``, from 1; 0 without an incident."""
    rank = func.max(choose(RANKS, value=incident.c.severity)) + 1
    return select(func.coalesce(rank, 0)).where(incident.c.run_id == run.c.run_id, _STANDS).scalar_subquery()


_ENDS = select(incident.c.incident_id, incident.c.since_step, incident.c.resolved_step).where(
    incident.c.run_id == bindparam("run_id")
)


def incident_marks(connection: Connection, run_id: int) -> list[IncidentMark]:
    """Return where the incidents of a run began and ended, by step."""
    marks = []
    for row in connection.execute(_ENDS, {"run_id": run_id}):
        marks.append(IncidentMark(row.since_step, row.incident_id, "fired"))
        if row.resolved_step is not None:
            marks.append(IncidentMark(row.resolved_step, row.incident_id, "resolved"))
    return sorted(marks, key=lambda mark: (mark.step, mark.incident))


def _headline(rows: list[RowMapping]) -> RunHeadline:
    opened = [row for row in rows if row["state"] == "open"]
    if not rows:
        return RunHeadline()
    worst = max(opened or rows, key=_priority)
    in_order = sorted(rows, key=_priority, reverse=True)
    process = max((row for row in opened or rows if row["rule"] in PROCESS_RULES), key=_priority, default=worst)
    return RunHeadline(
        open_incidents=[row["incident_id"] for row in opened],
        worst=worst["severity"] if opened else None,
        worst_incident=WorstIncident(
            worst["incident_id"], worst["rule"], worst["severity"], worst["firing"], worst["layers"], _is_acked(worst)
        ),
        unacked=[row["incident_id"] for row in in_order if row["severity"] == "critical" and not _is_acked(row)],
        firing={row["rule"]: 0 if _is_of_no_layer(row) else row["firing"] for row in opened or rows},
        headline=worst["headline"] if process is worst else f"{worst['headline']}; {process['headline']}",
        severity_at_end=None if opened else worst["severity"],
    )


def _is_of_no_layer(row: RowMapping) -> bool:
    return bool(row["severity"] == "information" or row["rule"] == metric.RULE)


def _is_acked(row: RowMapping) -> bool:
    return row["acked"] is not None


def _priority(row: RowMapping) -> tuple[int, bool, bool, int]:
    """Return the place of an incident in a headline: of equals the first one, which may have led to the others."""
    return RANKS[row["severity"]], row["rule"] not in PROCESS_RULES, not _is_acked(row), -row["incident_id"]
