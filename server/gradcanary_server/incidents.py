"""What the collector does with changes, and what it tells about incidents in a line.

:func:`record` runs inside the ingest transaction: a batch that makes 3,000 layers fire costs a few statements.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

from sqlalchemy import BigInteger, BindParameter, Connection, RowMapping, Select, and_, bindparam, func, or_, select

from gradcanary.wire import Brief
from gradcanary_server import acceptance, fold_states, incident_rows, silences
from gradcanary_server.errors import invalid
from gradcanary_server.incident_state import OF_THE_CLOCK, RANKS, Case, Origin, apply, close
from gradcanary_server.observations import Change
from gradcanary_server.pace import Pace
from gradcanary_server.schema import incident, launch, run

RESUME_STEPS = 200
"""A healthy layer of a resumed run recovers within 100 steps by default; what still fires after these has not."""

_OF_BRIEF = ("incident_id", "rule", "severity", "state", "opened_step", "firing", "summary")
_OPEN = (
    select(*(incident.c[name] for name in _OF_BRIEF), run.c.name.label("run"))
    .join(run, run.c.run_id == incident.c.run_id)
    .where(incident.c.run_id == bindparam("run_id"), incident.c.state == "open")
    .order_by(incident.c.incident_id)
)

_RULE_AND_STEP = (
    select(incident.c.rule, func.coalesce(run.c.step, incident.c.opened_step))
    .join(run, run.c.run_id == incident.c.run_id)
    .where(incident.c.incident_id == bindparam("incident_id"))
)


def _ended_on() -> Select[str, int]:
    """Return a query for the rules of incidents that other launches ended on, once a launch has gone on, and its first
    step."""
    run_id: BindParameter[int] = bindparam("run_id")
    launch_no: BindParameter[int] = bindparam("launch_no")
    mine = (launch.c.run_id == incident.c.run_id) & (launch.c.launch_no == launch_no)
    return (
        select(incident.c.rule, launch.c.first_step)
        .join(launch, mine)
        .where(
            incident.c.run_id == run_id,
            incident.c.resolution == "run_finished",
            incident.c.rule.not_in(OF_THE_CLOCK),
            incident.c.launch_no != launch_no,
            launch.c.first_step <= bindparam("reached", type_=BigInteger) - RESUME_STEPS,
        )
    )


_ENDED_ON = _ended_on()


@dataclass(frozen=True)
class Headline:
    """A run's incidents in a line: ids of the open ones, and layers firing per rule (0 where the whole run fires, and
    where it is information). What fired when the run ended counts as firing still; ``ended_on`` is the worst severity
    of that, None while anything is open.
    """

    open_incidents: list[int] = field(default_factory=list)
    worst: str | None = None
    firing: dict[str, int] = field(default_factory=dict)
    headline: str = ""
    ended_on: str | None = None


@dataclass(frozen=True)
class Mark:
    """A step at which an incident began (``fired``) or ended (``resolved``)."""

    step: int
    incident: int
    kind: str


def record(
    connection: Connection,
    run_id: int,
    launch_no: int,
    changes: Iterable[Change],
    now: float,
    reopen_s: float = Pace().reopen_s,
    reached: int | None = None,
) -> None:
    """Fold changes, in the order of their steps, into at most one open incident per rule.

    ``reached`` is the last step folded with them, if there was any. What a run ended on is open again once a new launch
    of it has gone on for 200 steps without a recovery.
    """
    by_rule: dict[str, list[Change]] = defaultdict(list)
    for change in changes:
        by_rule[change.rule].append(change)
    grown = {} if reached is None else _grown(connection, run_id, launch_no, reached)
    if not by_rule and not grown:
        return
    names = incident_rows.names(connection, run_id)
    for rule in {**by_rule, **grown}:
        origin, before = (
            Origin(launch_no, len(names), now, grown.get(rule)),
            incident_rows.latest(connection, run_id, rule),
        )
        silenced = silences.silenced(connection, run_id, rule, names, now)
        for case in apply(before, by_rule[rule], origin, reopen_s, silenced):
            incident_rows.save(connection, run_id, case, names)


def report(
    connection: Connection, run_id: int, launch_no: int, change: Change, now: float, reopen_s: float = Pace().reopen_s
) -> None:
    """Fold one change that no step brought into the incident of its rule."""
    before = incident_rows.latest(connection, run_id, change.rule)
    names = incident_rows.names(connection, run_id)
    silenced = silences.silenced(connection, run_id, change.rule, names, now)
    for case in apply(before, [change], Origin(launch_no, len(names), now), reopen_s, silenced):
        incident_rows.save(connection, run_id, case, names)


def missed(connection: Connection, run_ids: Collection[int] | None = None) -> dict[int, frozenset[str]]:
    """Return the rules of the clock that have an open incident, by run."""
    query = select(incident.c.run_id, incident.c.rule).where(incident.c.state == "open")
    query = query.where(incident.c.rule.in_(OF_THE_CLOCK))
    if run_ids is not None:
        query = query.where(incident.c.run_id.in_(list(run_ids)))
    found: dict[int, frozenset[str]] = defaultdict(frozenset)
    for row in connection.execute(query):
        found[row.run_id] |= {row.rule}
    return found


def close_run(connection: Connection, run_id: int, step: int, now: float, resolution: str) -> None:
    """Resolve every open incident of a run; its members did not recover and stay as they are."""
    _close(connection, run_id, incident_rows.opened(connection, run_id), step, now, resolution)


def end_run(connection: Connection, run_id: int, step: int, now: float) -> None:
    """Resolve what is open of a run that is deleted, and what its end closed: of that nobody is told any more for the
    first time."""
    untold = incident_rows.of_its_end(connection, run_id)
    _close(connection, run_id, [*incident_rows.opened(connection, run_id), *untold], step, now, "run_deleted")


def _close(
    connection: Connection, run_id: int, cases: Collection[Case], step: int, now: float, resolution: str
) -> None:
    names = incident_rows.names(connection, run_id) if cases else {}
    for case in cases:
        closed = Case(close(case.incident, step, now, resolution), case.members)
        incident_rows.save(connection, run_id, closed, names)


def accept(connection: Connection, run_id: int, incident_id: int, now: float) -> None:
    """Let what fires of an incident learn a new baseline, and be over with that; raises RequestError 422.

    The caller holds the run: the rules' memory is changed between two batches.
    """
    rule, step = connection.execute(_RULE_AND_STEP, {"incident_id": incident_id}).one()
    if rule not in acceptance.RULES:
        rules = " and ".join(acceptance.RULES)
        raise invalid(f"Only {rules} hold gradients against a baseline: silence {rule} instead.", "new_baseline")
    case = incident_rows.latest(connection, run_id, rule)
    if case is None or case.incident.id != incident_id or not case.is_firing:
        raise invalid("Nothing of this incident fires any more: there is no baseline to be learnt.", "new_baseline")
    memory = fold_states.stored(connection, run_id)
    state, accepted = acceptance.accept(memory.state, rule)
    if not accepted:
        words = "Its layers are under a threshold that was given, not learnt: change it, or silence them."
        raise invalid(words, "new_baseline")
    fold_states.store(connection, run_id, memory, state)
    for number in accepted:
        over = Change(step, rule, number, "resolved", case.incident.severity, step, resolution="rebaselined")
        case.resolve(over, now)
    if not case.is_firing:  # also where the end of the run had closed it
        case.incident = replace(case.incident, resolution="rebaselined")
    incident_rows.save(connection, run_id, case, incident_rows.names(connection, run_id))


def open_briefs(connection: Connection, run_id: int, public_url: str) -> tuple[Brief, ...]:
    """Return the open incidents of a run as its agent hears of them."""
    rows = connection.execute(_OPEN, {"run_id": run_id}).mappings()
    return tuple(_brief(row, public_url) for row in rows)


def page(public_url: str, run_name: str, incident_id: int) -> str:
    """Return the address of an incident for people."""
    return f"{public_url}/runs/{run_name}?incident={incident_id}"


def headlines(connection: Connection, run_ids: Collection[int]) -> dict[int, Headline]:
    """Return a headline for each of these runs; the worst open incident speaks, the newest of equals. That nothing is
    heard of a run hides no layer that fell: it is said after that.

    A run that ended on an incident keeps its headline: nothing recovered.
    """
    rows: dict[int, list[RowMapping]] = {run_id: [] for run_id in run_ids}
    ended = and_(incident.c.resolution == "run_finished", incident.c.rule.not_in(OF_THE_CLOCK))
    query = select(incident).where(incident.c.run_id.in_(list(run_ids)), or_(incident.c.state == "open", ended))
    for row in connection.execute(query.order_by(incident.c.incident_id)).mappings():
        rows[row["run_id"]].append(row)
    return {run_id: _headline(mine) for run_id, mine in rows.items()}


def marks(connection: Connection, run_id: int) -> list[Mark]:
    """Return where the incidents of a run began and ended, by step."""
    found = []
    for row in connection.execute(select(incident).where(incident.c.run_id == run_id)):
        found.append(Mark(row.since_step, row.incident_id, "fired"))
        if row.resolved_step is not None:
            found.append(Mark(row.resolved_step, row.incident_id, "resolved"))
    return sorted(found, key=lambda mark: (mark.step, mark.incident))


def _grown(connection: Connection, run_id: int, launch_no: int, reached: int) -> dict[str, int]:
    """Return the rules of incidents that an earlier launch ended on, and the step after which this one knows better.

    The fold keeps what fires over launches and says nothing new about it, so that nobody else would speak of them.
    """
    rows = connection.execute(_ENDED_ON, {"run_id": run_id, "launch_no": launch_no, "reached": reached})
    return {rule: first_step + RESUME_STEPS for rule, first_step in rows}


def _brief(row: RowMapping, public_url: str) -> Brief:
    return Brief(
        id=row["incident_id"],
        rule=row["rule"],
        severity=row["severity"],
        state=row["state"],
        opened_step=row["opened_step"],
        layers=row["firing"],
        summary=row["summary"],
        url=page(public_url, row["run"], row["incident_id"]),
    )


def _headline(rows: list[RowMapping]) -> Headline:
    live = [row for row in rows if row["state"] == "open"]
    if not rows:
        return Headline()
    worst = max(live or rows, key=_says)
    late = max((row for row in live if row["rule"] in OF_THE_CLOCK), key=_says, default=worst)
    return Headline(
        open_incidents=[row["incident_id"] for row in live],
        worst=worst["severity"] if live else None,
        firing={row["rule"]: 0 if row["severity"] == "information" else row["firing"] for row in live or rows},
        headline=worst["headline"] if late is worst else f"{worst['headline']}; {late['headline']}",
        ended_on=None if live else worst["severity"],
    )


def _says(row: RowMapping) -> tuple[int, bool, int]:
    return RANKS[row["severity"]], row["rule"] not in OF_THE_CLOCK, row["incident_id"]
