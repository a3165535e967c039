"""Rows of runs, launches and sessions: names, order, locks, ids.

A run keeps the names that it had: agents send under the name that they began with, so a former name leads to the run
until it is dropped. Launches are numbered as they arrive and ordered by their start, for ``gradcanary sync`` may send
one after the next has begun. A transaction that writes locks the row of the run, which orders all requests of a run.
"""

from __future__ import annotations

import json
import secrets
from collections import namedtuple
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple, cast

from sqlalchemy import (
    BindParameter,
    Connection,
    bindparam,
    delete,
    exists,
    func,
    insert,
    select,
    tuple_,
    update,
)

from gradcanary import wire
from gradcanary_server.errors import NodeUnavailable, RequestError, unknown_run
from gradcanary_server.storage.database import Record
from gradcanary_server.storage.prepared import Prepared
from gradcanary_server.storage.schema import (
    HELD_RUN,
    HeldRun,
    configuration,
    deleted_run,
    insert_missing,
    insert_new,
    launch,
    next_number,
    run,
    run_name,
    session,
    session_tombstone,
    silence,
    update_row,
)
from gradcanary_server.validation import is_run_name

SILENT = "silent"
"""``ended`` of a session that had sent no end when a newer launch of its run came."""

DETACHED = "detached"
"""``ended`` of a session that was detached from a training that goes on."""

ID_EPOCH_S = 1_767_225_600
"""2026-01-01: the time in a run's id counts from it."""

ID_RANDOM_BITS = 22
"""The lowest bits of a run's id; 41 bits of milliseconds above them make 63, and last until 2095."""

MOST_IDS = 100
"""Ids to try for a new run. An id is taken already once in millions of times."""

FORECASTS = ("bf16_weights_lr", "fp16_weights_lr")
"""Facts about weights that a learning rate is expected to leave as they are."""

TOMBSTONE_S = 30 * 86_400.0
"""How long sessions of a deleted run get 410."""


class Configuration(NamedTuple):
    """The environment of a launch, as JSON, its settings in the order of their steps, and its bounds of metrics."""

    environment: dict[str, Any] | None
    settings: tuple[wire.Setting, ...]
    metrics: tuple[wire.MetricBound, ...] = ()

    @classmethod
    def of(cls, row: Record) -> Configuration:
        return cls(json.loads(row.environment), _parse_settings(row.settings), _parse_bounds(row.metrics))

    def optimizer_kinds(self) -> tuple[str, ...]:
        """Return the class names of the optimizers by parameter group, as far as the launch has reported them."""
        kinds: dict[int, str] = {}
        for each in self.settings:
            if each.name == "optimizer":
                kinds.update(dict.fromkeys(each.groups, str(each.value)))
        return tuple(kinds.get(group, "") for group in range(max(kinds, default=-1) + 1))


NO_CONFIGURATION = Configuration(None, ())


@lru_cache(maxsize=256)
def _parse_settings(stored: str) -> tuple[wire.Setting, ...]:
    return tuple(wire.Setting(**{**each, "groups": tuple(each["groups"])}) for each in json.loads(stored))


@lru_cache(maxsize=256)
def _parse_bounds(stored: str) -> tuple[wire.MetricBound, ...]:
    return tuple(wire.MetricBound(**each) for each in json.loads(stored))


@lru_cache(maxsize=256)
def parse_facts(stored: str) -> tuple[wire.Fact, ...]:
    """Return the stored facts of a run, without forecasts that measurements overrule."""
    facts = [fact for fact in json.loads(stored) if not fact.get("overruled")]
    return tuple(wire.Fact(fact["code"], fact["text"], tuple(fact["layers"])) for fact in facts)


def has_forecast(stored: str) -> bool:
    return any(code in stored for code in FORECASTS)


def overrule_forecasts(stored: str, moved: Collection[str], still: Collection[str]) -> str:
    """Return the facts of a run, with a mark on each forecast of which layers moved and none stands still.

    It is not deleted: agents send all their facts again with each hello.
    """
    facts = json.loads(stored)
    for fact in facts:
        if fact["code"] in FORECASTS:
            fact["overruled"] = not set(fact["layers"]).isdisjoint(moved) and set(fact["layers"]).isdisjoint(still)
    return json.dumps(facts)


_NAMED = Prepared(select(run_name.c.run_id).where(run_name.c.name == bindparam("name")))
_NAMES = select(run_name.c.name).where(run_name.c.run_id == bindparam("run_id"))
_NAME = select(run.c.name).where(run.c.run_id == bindparam("run_id"))
_ALL = select(run).where(run.c.run_id == bindparam("run_id"))
_ALL_HELD = _ALL.with_for_update()


def _run_named(connection: Connection, name: str) -> int | None:
    """Return the run of a name, by a statement of its own: Citus locks no row that is found by a join of two nodes."""
    rows = _NAMED.rows(connection, {"name": name})
    return int(rows[0][0]) if rows else None


def find_run(connection: Connection, name: str, *, held: bool = False) -> Record | None:
    """Return the row of the run with a name or former name; ``held`` locks it."""
    if not is_run_name(name):
        return None  # PostgreSQL fails for a NUL
    run_id = _run_named(connection, name)
    if run_id is None:
        return None
    return connection.execute(_ALL_HELD if held else _ALL, {"run_id": run_id}).one_or_none()


def get_run(connection: Connection, name: str, *, held: bool = False) -> Record:
    """Return the row as :func:`find_run`; raises RequestError 404."""
    row = find_run(connection, name, held=held)
    if row is None:
        raise unknown_run(name)
    return row


def is_stored(connection: Connection, run_id: int) -> bool:
    """Return True unless the run was deleted."""
    return bool(connection.scalar(select(exists().where(run.c.run_id == run_id))))


def new_run_id(now: float) -> int:
    """Return an id for a run that begins now: 41 bits of time and 22 random ones, positive in 64 bits.

    Later runs have greater ids, so tables grow at their end, without a sequence. The ids exceed the integers of JSON,
    so they never leave the server: the API has names.
    """
    milliseconds = min(max(int((now - ID_EPOCH_S) * 1000), 0), 2**41 - 1)
    return milliseconds << ID_RANDOM_BITS | secrets.randbits(ID_RANDOM_BITS)


def create_run(connection: Connection, name: str, now: float, values: Mapping[str, object]) -> Record:
    """Insert a run unless its name exists by now; return the row of that name and lock it."""
    row = {"name": name, "created": now, "last_seen": now, "revision": 0, **values}
    run_id = _insert_run(connection, now, row)
    if not insert_new(connection, run_name, {"name": name, "run_id": run_id}):
        connection.execute(delete(run).where(run.c.run_id == run_id))
        return get_run(connection, name, held=True)
    return connection.execute(_ALL_HELD, {"run_id": run_id}).one()


def _insert_run(connection: Connection, now: float, row: Mapping[str, object]) -> int:
    """Insert a run under a new id, on a node of a cluster that is not away, and return the id."""
    for _ in range(MOST_IDS):
        run_id = new_run_id(now)
        with suppress(NodeUnavailable):  # nothing was sent
            if insert_new(connection, run, {"run_id": run_id, **row}):
                return run_id
    raise NodeUnavailable("A part of the database is away, and no node was found for a new run.")


def aliases_of(connection: Connection, run_id: int) -> list[str]:
    own = connection.scalar(_NAME, {"run_id": run_id})
    return sorted(name for name in connection.scalars(_NAMES, {"run_id": run_id}) if name != own)


def rename_run(connection: Connection, row: Record, name: str) -> None:
    """Rename a locked run and the silences of its name; raises RequestError 409 if the name is another run's."""
    if name == row.name:
        return
    if not insert_new(connection, run_name, {"name": name, "run_id": row.run_id}):
        other = get_run(connection, name)
        if other.run_id != row.run_id:
            reason = f"There is a run {name!r} here"
            if other.name != name:
                reason = f"{name!r} leads to run {other.name!r}, which had that name before"
            raise RequestError(409, "conflict", f"{reason}: choose another name than {name!r}.", "name")
    connection.execute(update(run).where(run.c.run_id == row.run_id).values(name=name))
    connection.execute(update(silence).where(silence.c.run_glob == row.name).values(run_glob=name))


def drop_aliases(connection: Connection, run_id: int, kept: Collection[str]) -> None:
    """Delete the former names of a run except ``kept``: an agent that sends under a deleted name begins a new run."""
    dropped = [name for name in aliases_of(connection, run_id) if name not in kept]
    connection.execute(delete(run_name).where(run_name.c.name.in_(dropped)))


DELETION = "deletion"
"""The counter of deleted runs."""


def delete_run(connection: Connection, row: Record, now: float) -> None:
    """Delete the rows of a locked run and free its names; its sessions get 410.

    Retention deletes its measurements later, in chunks: the id of a run holds its time, so none is used again.
    """
    connection.execute(delete(session_tombstone).where(session_tombstone.c.deleted < now - TOMBSTONE_S))
    names = connection.scalars(_NAMES, {"run_id": row.run_id}).all()
    sessions = connection.scalars(select(session.c.session).where(session.c.run_id == row.run_id)).all()
    tombstones = [{"run": name, "session": each, "deleted": now} for name in names for each in sessions]
    insert_missing(connection, session_tombstone, tombstones)
    connection.execute(delete(run_name).where(run_name.c.run_id == row.run_id))
    connection.execute(delete(run).where(run.c.run_id == row.run_id))
    connection.execute(insert(deleted_run).values(run_id=row.run_id))
    next_number(connection, DELETION)


CLOCK_S = 5.0
"""A smaller offset of an agent's clock is ignored: a Date header has whole seconds, and requests take time."""

ORDER = (launch.c.started, launch.c.launch_no)
"""From the first launch to the newest."""

_IN_ORDER = select(launch).where(launch.c.run_id == bindparam("run_id")).order_by(*ORDER)
_OWN, _EARLIER = launch.alias(), launch.alias()
_HAS_OLDER = exists().where(
    _EARLIER.c.run_id == bindparam("run_id"),  # in a select list Citus finds the node by a constant alone
    tuple_(_EARLIER.c.started, _EARLIER.c.launch_no) < tuple_(*ORDER),
)
_IS_OF_LAUNCH = (
    (configuration.c.run_id == launch.c.run_id)
    & (configuration.c.launch_no == launch.c.launch_no)
    & (configuration.c.launch_no == bindparam("launch_no"))
)
_WITH_NEWER = Prepared(
    select(launch, configuration.c.settings, configuration.c.metrics, _HAS_OLDER.label("has_older"))
    .join(_OWN, (_OWN.c.run_id == launch.c.run_id) & (_OWN.c.launch_no == bindparam("launch_no")))
    .outerjoin(configuration, _IS_OF_LAUNCH)
    .where(launch.c.run_id == bindparam("run_id"), tuple_(*ORDER) >= tuple_(_OWN.c.started, _OWN.c.launch_no))
    .order_by(*ORDER)
)
_LAUNCH_COLUMNS = [*launch.c.keys(), "settings", "metrics", "has_older"]
_Launch = cast("Callable[..., Record]", namedtuple("_Launch", _LAUNCH_COLUMNS))  # noqa: PYI024


_RUN_IDS: BindParameter[int] = bindparam("run_ids", expanding=True)
_THRESHOLDS = select(launch.c.run_id, launch.c.collapse_below).where(launch.c.run_id.in_(_RUN_IDS)).order_by(*ORDER)
_MAX_STEPS = (
    select(
        session.c.run_id,
        func.max(session.c.max_step).label("max_step"),
        func.max(session.c.max_step_at).label("max_step_at"),
    )
    .join(launch, (launch.c.run_id == session.c.run_id) & (launch.c.launch_no == session.c.launch_no))
    .where(session.c.run_id.in_(_RUN_IDS), session.c.max_step.is_not(None))
    .group_by(session.c.run_id, *ORDER)
    .order_by(*ORDER)
)
_CONFIGURATIONS = select(configuration).where(configuration.c.run_id == bindparam("run_id"))
_CONFIGURATION = _CONFIGURATIONS.where(configuration.c.launch_no == bindparam("launch_no"))
_LATER = launch.alias()
_NEWEST_ENVIRONMENTS = (
    select(configuration.c.run_id, configuration.c.environment)
    .join(launch, (launch.c.run_id == configuration.c.run_id) & (launch.c.launch_no == configuration.c.launch_no))
    .where(
        configuration.c.run_id.in_(_RUN_IDS),
        ~exists().where(
            _LATER.c.run_id == launch.c.run_id, tuple_(_LATER.c.started, _LATER.c.launch_no) > tuple_(*ORDER)
        ),
    )
)


def launches_in_order(connection: Connection, run_id: int) -> Sequence[Record]:
    """Return the rows of the launches of a run in the order of their start."""
    return connection.execute(_IN_ORDER, {"run_id": run_id}).all()


def configured_launch(
    connection: Connection, run_id: int, launch_no: int
) -> tuple[Record, frozenset[int], Configuration]:
    """Return a launch (with ``has_older``), the numbers of newer ones, its configuration without environment."""
    row, *newer = [_Launch(*each) for each in _WITH_NEWER.rows(connection, {"run_id": run_id, "launch_no": launch_no})]
    known = NO_CONFIGURATION
    if row.settings is not None:
        known = Configuration(None, _parse_settings(row.settings), _parse_bounds(row.metrics))
    return row, frozenset(each.launch_no for each in newer), known


def own_thresholds(connection: Connection, run_ids: Sequence[int]) -> dict[int, float | None]:
    """Return ``collapse_below`` of the newest launch of each run."""
    return {row.run_id: row.collapse_below for row in connection.execute(_THRESHOLDS, {"run_ids": run_ids})}


def max_steps(connection: Connection, run_ids: Sequence[int]) -> dict[int, tuple[int, float | None]]:
    """Return the highest step that the newest launch of each run reported, sampled or not, and when."""
    rows = connection.execute(_MAX_STEPS, {"run_ids": run_ids})
    return {row.run_id: (row.max_step, row.max_step_at) for row in rows}


def max_step(connection: Connection, run_id: int) -> int | None:
    """Return the highest step that the newest launch of a run reported, None without any."""
    return max_steps(connection, [run_id]).get(run_id, (None, None))[0]


def launch_order(connection: Connection, run_id: int) -> dict[int, int]:
    """Return the position of each launch of a run by its number, 0 for the first."""
    return {row.launch_no: position for position, row in enumerate(launches_in_order(connection, run_id))}


def newer_launches(connection: Connection, run_id: int, launch_no: int) -> frozenset[int]:
    """Return the numbers of the launches of a run that began after this one."""
    order = launch_order(connection, run_id)
    return frozenset(number for number, position in order.items() if position > order[launch_no])


def started_at(hello: wire.Hello, sent: float | None, now: float) -> float:
    """Return the start of a launch by the collector's clock; ``sent`` is the time of the hello by the agent's clock."""
    if hello.started is None:
        return now
    offset = now - sent if sent is not None and abs(now - sent) > CLOCK_S else 0.0
    return max(min(hello.started + offset, now), 0.0)


def join_launch(connection: Connection, run_id: int, hello: wire.Hello, started: float, now: float) -> int:
    """Return the number of the launch of a new session.

    A second process of the same rank is another launch: a job that was restarted under a fixed id. Of several launches
    that lack this rank, the one with the nearest start is taken. A new launch does not start before those in the
    future: they began before the clock was set back.
    """
    rows = launches_in_order(connection, run_id)
    of_rank = select(session.c.launch_no).where(session.c.run_id == run_id, session.c.rank == hello.rank)
    with_rank = frozenset(connection.scalars(of_rank))
    lacking = [row for row in rows if row.launch == hello.launch and row.launch_no not in with_rank]
    if lacking:
        nearest = min(reversed(lacking), key=lambda row: abs(float(row.started) - started))
        set_first_step(connection, run_id, nearest.launch_no, hello)
        return int(nearest.launch_no)
    number = max((row.launch_no for row in rows), default=0) + 1
    started = max([started, *(row.started for row in rows if row.started > now)])
    values = {"run_id": run_id, "launch_no": number, "launch": hello.launch, "world_size": hello.world_size}
    values |= {"first_step": hello.first_step, "late": hello.late, "started": started}
    values |= {name: getattr(hello, name) for name in ("absmax_below", "norm_below", "collapse_below")}
    connection.execute(insert(launch).values(**values))
    return number


def store_configuration(connection: Connection, run_id: int, launch_no: int, hello: wire.Hello) -> None:
    """Store the environment, all settings and the bounds of metrics of a launch, in the place of earlier ones."""
    key = {"run_id": run_id, "launch_no": launch_no}
    environment = None if hello.environment is None else {"environment": wire.dump(hello.environment).decode()}
    lists = {"settings": wire.dump(hello.settings).decode(), "metrics": wire.dump(hello.metrics).decode()}
    values = {**lists, **(environment or {})}
    if not insert_new(connection, configuration, {**key, "environment": "null", **values}):
        update_row(connection, configuration, key, values)


def read_configurations(connection: Connection, run_id: int, launch_no: int | None = None) -> dict[int, Configuration]:
    """Return what is known of the configuration of each launch of a run, or of one launch, by its number."""
    query = _CONFIGURATIONS if launch_no is None else _CONFIGURATION
    rows = connection.execute(query, {"run_id": run_id, "launch_no": launch_no})
    return {row.launch_no: Configuration.of(row) for row in rows}


def read_hosts(connection: Connection, run_ids: Sequence[int]) -> dict[int, str]:
    """Return the host of the newest launch of each run that has reported one."""
    found = connection.execute(_NEWEST_ENVIRONMENTS, {"run_ids": run_ids})
    environments = {row.run_id: json.loads(row.environment) for row in found}
    return {run_id: environment["host"] for run_id, environment in environments.items() if environment}


def merged_session_id(launch_no: int) -> str:
    """Return the id of the session of a launch with the merged batches of its ranks; no agent may use such an id."""
    return f"+{launch_no}"


def set_first_step(connection: Connection, run_id: int, launch_no: int, hello: wire.Hello) -> None:
    """Store where a launch began, and whether it had trained before, once a hello of it says that."""
    unknown = (launch.c.run_id == run_id) & (launch.c.launch_no == launch_no) & launch.c.first_step.is_(None)
    connection.execute(update(launch).where(unknown).values(first_step=hello.first_step, late=hello.late))


def check_deleted(connection: Connection, run_name: str, session_id: str) -> None:
    """Raise RequestError 410 for a session whose run was deleted."""
    where = (session_tombstone.c.run == run_name) & (session_tombstone.c.session == session_id)
    if connection.execute(select(session_tombstone.c.run).where(where)).first() is not None:
        raise RequestError(410, "run_deleted", f"Run {run_name!r} was deleted here.", "run")


# Built once: building them took longer than executing them.
_LOCK = Prepared(
    select(*HELD_RUN, session)
    .select_from(run.join(session, session.c.run_id == run.c.run_id))  # PostgreSQL locks in this order
    .where(run.c.run_id == bindparam("run_id"), session.c.session == bindparam("session"))
    .with_for_update(of=(run, session))
)
_HELD = select(*HELD_RUN).where(run.c.run_id == bindparam("run_id"))
# All columns, so that it can be used as a row of the table.
_Session = cast("Callable[..., Record]", namedtuple("_Session", session.c.keys()))  # noqa: PYI024
_REVISION = Prepared(update(run).where(run.c.run_id == bindparam("at_run_id")).values(revision=run.c.revision + 1))


def lock_session(connection: Connection, name: str, session_id: str) -> tuple[HeldRun, Record]:
    """Lock and return the rows of a run and a session; raises RequestError 404, or 410 for a deleted run."""
    run_id = _run_named(connection, name)
    for row in () if run_id is None else _LOCK.rows(connection, {"run_id": run_id, "session": session_id}):
        return HeldRun(*row[: len(HELD_RUN)]), _Session(*row[len(HELD_RUN) :])
    check_deleted(connection, name, session_id)
    raise RequestError(404, "unknown_session", f"No hello of session {session_id!r} of run {name!r} came here.")


def lock_run(connection: Connection, run_id: int) -> bool:
    """Lock the row of a run; return False if it does not exist."""
    query = select(run.c.run_id).where(run.c.run_id == run_id).with_for_update()
    return connection.execute(query).one_or_none() is not None


def read_held_run(connection: Connection, run_id: int) -> HeldRun:
    return HeldRun(*connection.execute(_HELD, {"run_id": run_id}).one())


def bump_revision(connection: Connection, run_id: int, **values: object) -> None:
    """Update the row of a run and increment its revision, so that pages read it again."""
    _REVISION.change(connection, {"at_run_id": run_id, **values})
