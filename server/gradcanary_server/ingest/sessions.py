"""Sessions in the store, with their runs and launches: hello, heartbeat, progress, gaps and end.

Every function with a connection runs inside a write transaction that holds the run's row, which orders all requests of
a run.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np
from sqlalchemy import Connection, insert, select, update

from gradcanary import wire
from gradcanary_server.errors import RequestError
from gradcanary_server.incidents import service, watchdog
from gradcanary_server.ingest import rank_layers
from gradcanary_server.ingest.messages import MAX_FACTS
from gradcanary_server.rules.config import Rules
from gradcanary_server.rules.types import Evidence, Transition
from gradcanary_server.storage import layers, runs
from gradcanary_server.storage.database import Record
from gradcanary_server.storage.runs import DETACHED, SILENT, bump_revision, check_deleted
from gradcanary_server.storage.schema import run, session, update_row
from gradcanary_server.tsdb.batch import Columns

MAX_GAPS = 1_000
"""Of a session; the oldest go first."""


def register_session(
    connection: Connection, name: str, session_id: str, hello: wire.Hello, sent: float | None, now: float
) -> int:
    """Store a hello, the first or a fuller one, and return the session's next seq; raises RequestError 409."""
    run_row = runs.find_run(connection, name, held=True)
    if run_row is None:
        run_row = runs.create_run(connection, name, now, {"framework": hello.framework})
    run_id = int(run_row.run_id)
    check_deleted(connection, name, session_id)
    where = (session.c.run_id == run_id) & (session.c.session == session_id)
    stored = connection.execute(select(session).where(where)).one_or_none()
    began = runs.started_at(hello, sent, now)
    launch_no = runs.join_launch(connection, run_id, hello, began, now) if stored is None else int(stored.launch_no)
    if hello.rank == 0 and (hello.environment is not None or hello.settings or hello.metrics):
        runs.store_configuration(connection, run_id, launch_no, hello)
    newer = runs.newer_launches(connection, run_id, launch_no)
    begins = stored is None and hello.rank == 0 and not newer
    _describe_run(connection, run_row, hello, now, is_newest=not newer, begins=begins)
    owned_by_newer = layers.layer_ids(connection, run_id, newer)
    sets = {} if stored is None else json.loads(stored.layer_sets)
    admitted = stored if stored is not None and stored.is_sharded and not hello.sharded else None
    # Layers of another rank may have the same names.
    adds_only = admitted is not None or (hello.rank > 0 and not hello.sharded)
    new_sets = {}
    for layer_set in hello.layer_sets:
        if layer_set.id not in sets:
            numbers = layers.register_layers(connection, run_id, layer_set, owned_by_newer, adds_only=adds_only)
            new_sets[layer_set.id] = layers.store_layer_set(connection, run_id, layer_set, numbers)
    sets |= new_sets if admitted is None else rank_layers.separate_sets(connection, admitted, new_sets)
    if stored is not None:
        merged = _merge_hellos(wire.Hello(**{**json.loads(stored.hello), "layer_sets": (), "facts": ()}), hello)
        runs.set_first_step(connection, run_id, launch_no, merged)
        is_sharded = stored.is_sharded or (not stored.next_seq and bool(merged.sharded))  # its batches decide
        values = {"hello": _dump_hello(merged), "layer_sets": json.dumps(sets)}
        record_activity(connection, stored, now, values | _role_columns(hello.rank, sharded=is_sharded))
        return int(stored.next_seq)
    if not newer:
        _supersede_launches(connection, run_id, launch_no, now)
    row = {"run_id": run_id, "session": session_id, "launch_no": launch_no, "rank": hello.rank, "started": now}
    row |= {"interval_s": hello.interval_s, "hello": _dump_hello(hello), "layer_sets": json.dumps(sets)}
    row |= _role_columns(hello.rank, sharded=bool(hello.sharded))
    connection.execute(insert(session).values(**row, last_seen=now, ended=SILENT if newer else None))
    return 0


def merged_session(
    connection: Connection, run_id: int, launch_no: int, numbers: Sequence[int], set_id: str, now: float
) -> Record:
    """Return the session of the merged batches of a launch; creates it, and its layer set."""
    name = runs.merged_session_id(launch_no)
    where = (session.c.run_id == run_id) & (session.c.session == name)
    stored = connection.execute(select(session).where(where)).one_or_none()
    if stored is None:
        ended = SILENT if runs.newer_launches(connection, run_id, launch_no) else None
        row = {"run_id": run_id, "session": name, "launch_no": launch_no, "rank": -1, "interval_s": 0.0, "started": now}
        row |= {"hello": "{}", "layer_sets": "{}", "is_primary": True, "last_seen": now, "ended": ended}
        connection.execute(insert(session).values(**row))
    sets = {} if stored is None else json.loads(stored.layer_sets)
    if set_id not in sets:
        sets[set_id] = layers.store_merged_layer_set(connection, run_id, numbers)
        connection.execute(update(session).where(where).values(layer_sets=json.dumps(sets)))
    return connection.execute(select(session).where(where)).one()


def check_role(row: Record) -> None:
    """Raise RequestError 409 if the first batch of a session comes before the hello with its ``sharded``."""
    if row.rank >= 0 and not row.next_seq and json.loads(row.hello)["sharded"] is None:
        raise RequestError(409, "unknown_layer_set", "No hello told whether this session sends shards.", "sharded")


def end_session(connection: Connection, row: Record, message: wire.End, now: float, rules: Rules) -> None:
    """Store the end of a session; the run and its incidents end with the last open session of its newest launch.

    The incidents of a detached run stay open: detaching is not a recovery. One rank with the training's own end decides
    for all. Sessions of other launches do not matter: a killed one never sends its end.
    """
    if row.ended not in (None, SILENT):
        return
    record_activity(connection, row, now, {"ended": message.state, "error": message.error}, message.last_step)
    if runs.newer_launches(connection, row.run_id, row.launch_no):
        return
    if message.crash is not None and rules.crash.enabled:
        _record_crash(connection, row, message, now, rules.pace.reopen_s)
    of_launch = (session.c.run_id == row.run_id) & (session.c.launch_no == row.launch_no)
    states = select(session.c.ended).where(of_launch, session.c.rank >= 0)
    if connection.execute(states.where(session.c.ended.is_(None)).limit(1)).first() is not None:
        return
    connection.execute(update(session).where(of_launch, session.c.rank < 0).values(ended=message.state))
    found = connection.scalars(states.distinct()).all()
    ended = next((state for state in ("crashed", "finished") if state in found), DETACHED)
    connection.execute(update(run).where(run.c.run_id == row.run_id).values(ended=ended))
    close_incidents(connection, row.run_id, ended, now)


def _record_crash(connection: Connection, row: Record, message: wire.End, now: float, reopen_s: float) -> None:
    """Record the exception that ended a rank, at the step after its last one."""
    last_step = row.max_step if message.last_step is None else message.last_step
    step = 0 if last_step is None else last_step + 1
    rank = row.rank if json.loads(row.hello)["world_size"] > 1 else None
    evidence: Evidence | None = "no_step" if last_step is None else None
    crashed = Transition(
        step, "crash", None, "fired", "critical", step, evidence=evidence, crash=message.crash, rank=rank
    )
    service.record_crash(connection, row.run_id, row.launch_no, crashed, now, reopen_s)


def close_incidents(connection: Connection, run_id: int, ended: str, now: float) -> None:
    """Close the open incidents of a run that ended; those of a detached run stay open."""
    if ended == DETACHED:
        return
    evaluated = connection.execute(select(run.c.step).where(run.c.run_id == run_id)).scalar_one()
    step = max(evaluated or 0, runs.max_step(connection, run_id) or 0)
    service.close_run(connection, run_id, step, now, "run_finished")


def record_activity(
    connection: Connection,
    row: Record,
    now: float,
    values: Mapping[str, object],
    step: int | None = None,
    run_values: Mapping[str, object] = MappingProxyType({}),
) -> None:
    """Store a request of a session, the step that it reported, and the changed columns of session and run.

    A session of a superseded launch stays silent, and its run as it is.
    """
    changed = {"last_seen": now, **watchdog.progress_columns(row, now, step), **values}
    update_row(connection, session, {"run_id": row.run_id, "session": row.session}, changed)
    bump_revision(connection, row.run_id, last_seen=now, **run_values)
    if values.get("ended") in (None, DETACHED):  # the end of a training closes the others
        watchdog.close_answered(connection, row, now, step)


def add_gaps(before: Record, columns: Columns, first_step: int) -> str:
    """Return the session's gaps, JSON [[from_step, to_step, why], ...], with those before and in a batch.

    A gap is between two received steps further apart than ``every``; it is "dropped" if the agent counted more dropped
    steps since its last batch, else "missing". An agent that dropped more than that thinned its steps: one "dropped"
    gap spans those that it kept. ``from_step`` and ``to_step`` are in the gap; ``first_step`` is that of the launch.
    """
    dropped = columns.dropped_steps - before.dropped_steps
    holes = list(_holes(before, columns))
    if not holes and dropped <= 0:
        return str(before.gaps)
    gaps = json.loads(before.gaps)
    if dropped > sum((end - begin) // columns.every + 1 for begin, end in holes):
        holes = _thinned(first_step - 1 if before.last_step is None else before.last_step, columns, dropped)
        # The gap of the batch before goes on: its last step is one that was kept.
        if holes and gaps and before.last_step is not None and gaps[-1][1:] == [before.last_step - 1, "dropped"]:
            holes = [(gaps.pop()[0], holes[0][1])]
    gaps += [[begin, end, "dropped" if dropped > 0 else "missing"] for begin, end in holes]
    return json.dumps(gaps[-MAX_GAPS:]) if holes else before.gaps


def add_late_gap(stored: str, begin: int, end: int) -> str:
    """Return a session's gaps with the steps ``begin`` to ``end``, which were merged without it."""
    gaps = json.loads(stored)
    if gaps and gaps[-1][1:] == [begin - 1, "late"]:
        begin = gaps.pop()[0]
    return json.dumps([*gaps, [begin, end, "late"]][-MAX_GAPS:])


def _describe_run(
    connection: Connection, row: Record, hello: wire.Hello, now: float, *, is_newest: bool, begins: bool
) -> None:
    """Store the facts and the framework of a hello; the newest launch's framework counts, and the last fact of a kind.

    A launch that ``begins`` has none of the last launch's loop.
    """
    facts = json.loads(row.facts)
    reported = json.loads(json.dumps(hello.facts, default=vars))
    replaced = wire.REPLACED_FACTS.intersection(fact["code"] for fact in reported)
    replaced |= wire.LAUNCH_FACTS if begins else frozenset()
    facts = [fact for fact in facts if fact["code"] not in replaced]
    known = [{**fact, "overruled": False} for fact in facts]
    facts += [fact for fact in reported if {**fact, "overruled": False} not in known]
    framework = hello.framework or row.framework if is_newest else row.framework or hello.framework
    bump_revision(connection, row.run_id, last_seen=now, framework=framework, facts=json.dumps(facts[:MAX_FACTS]))


def _supersede_launches(connection: Connection, run_id: int, launch_no: int, now: float) -> None:
    """Make a launch the current one of its run, and list the run again; open sessions of others become silent."""
    older = (session.c.run_id == run_id) & (session.c.launch_no != launch_no) & session.c.ended.is_(None)
    connection.execute(update(session).where(older).values(ended=SILENT))
    connection.execute(update(run).where(run.c.run_id == run_id).values(ended=None, archived=False))
    watchdog.close_absence(connection, run_id, "silent", "resumed", now)
    service.resume_after_crash(connection, run_id, launch_no, now)


def _role_columns(rank: int, *, sharded: bool) -> dict[str, object]:
    """Return the role columns of a session: its batches are the series of the launch, shards of it, or neither."""
    return {"is_primary": rank == 0 and not sharded, "is_sharded": sharded}


def _dump_hello(hello: wire.Hello) -> str:
    return wire.dump(wire.without_extras(vars(replace(hello, layer_sets=(), facts=())))).decode()


def _merge_hellos(stored: wire.Hello, repeat: wire.Hello) -> wire.Hello:
    """Return the stored hello with its None fields filled in; raises RequestError 409 on any other difference.

    ``late`` is known with the first step.
    """
    filled: dict[str, object] = {}
    for field in wire.Hello.__dataclass_fields__:
        if field in ("layer_sets", "facts", *wire.Hello.EXTRAS):
            continue
        old, new = getattr(stored, field), getattr(repeat, field)
        if old is None or (field == "late" and stored.first_step is None):
            filled[field] = new
        elif new is not None and new != old:
            raise RequestError(409, "conflict", f"This session said {field} = {old!r} before.", field)
    return replace(stored, **filled)  # type: ignore[arg-type]  # the fields' own types


def _thinned(before: int, columns: Columns, dropped: int) -> list[tuple[int, int]]:
    """Return the range of thinned steps after step ``before``: one or none."""
    first, last = int(columns.steps[0]), int(columns.steps[-1])
    ahead = max(first - before - 1, 0)
    apart = columns.steps[:-1][np.diff(columns.steps) > 1]
    begin = first - ahead if ahead or not len(apart) else int(apart[0]) + 1
    if dropped <= ahead or not len(apart):
        end = first - 1
    else:
        end = int(columns.steps[np.searchsorted(columns.steps, apart[-1]) + 1]) - 1
    return [(begin, min(end, last))] if begin <= end else []


def _holes(before: Record, columns: Columns) -> Iterator[tuple[int, int]]:
    steps, every = columns.steps, columns.every
    if before.last_step is not None and before.every is not None:
        # Where the interval changed, the larger one is allowed.
        widest = max(before.every, every)
        if steps[0] - before.last_step > widest:
            yield before.last_step + before.every, int(steps[0]) - every
    for row in np.flatnonzero(np.diff(steps) > every):
        yield int(steps[row]) + every, int(steps[row + 1]) - every
