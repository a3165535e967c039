"""Runs, launches and sessions in the store: how a session says hello, gives signs of life, and ends.

Every function runs inside a write transaction that holds the run's row: it orders everything that happens to a run.
"""

import json
from collections import namedtuple
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import cast

from sqlalchemy import Connection, bindparam, insert, select, update

from gradcanary import wire
from gradcanary_server import absences, incidents, launches, layer_sets, layers, run_names
from gradcanary_server.database import Record
from gradcanary_server.deletion import check_deleted
from gradcanary_server.errors import RequestError
from gradcanary_server.leaps import is_ahead
from gradcanary_server.requests import MAX_FACTS
from gradcanary_server.rows import change, insert_new
from gradcanary_server.schema import run, session

SILENT = "silent"
"""How a session ended that had said nothing of an end when a newer launch of its run was there."""

# Those that a batch needs: a driver describes each column of each answer.
_OF_RUN = (run.c.run_id, run.c.ended, run.c.spark, run.c.facts, run.c.rules_version, run.c.folded)
# Made once: to put them together anew took longer than to ask them.
_LOCK = (
    select(*_OF_RUN, session)
    .select_from(run.join(session, session.c.run_id == run.c.run_id))  # PostgreSQL locks in this order
    .where(run.c.name == bindparam("name"), session.c.session == bindparam("session"))
    .with_for_update()
)
_LOCK_RENAMED = (
    select(*_OF_RUN, session)
    .select_from(run.join(session, session.c.run_id == run.c.run_id))
    .where(run.c.run_id == bindparam("run_id"), session.c.session == bindparam("session"))
    .with_for_update()
)
_RUN = [column.name for column in _OF_RUN]
_Run, _Session = namedtuple("_Run", _RUN), namedtuple("_Session", session.c.keys())  # noqa: PYI024 -- of tables
_REVISION = update(run).where(run.c.run_id == bindparam("at_run_id")).values(revision=run.c.revision + 1)


def lock(connection: Connection, run_name: str, session_id: str) -> tuple[Record, Record]:
    """Return what a batch needs of a run's row, and its session's, held until the transaction ends; raises
    RequestError 404."""
    found = connection.execute(_LOCK, {"name": run_name, "session": session_id}).one_or_none()
    if found is None and (run_id := run_names.renamed(connection, run_name)) is not None:
        found = connection.execute(_LOCK_RENAMED, {"run_id": run_id, "session": session_id}).one_or_none()
    if found is not None:
        return cast("Record", _Run(*found[: len(_OF_RUN)])), cast("Record", _Session(*found[len(_OF_RUN) :]))
    check_deleted(connection, run_name, session_id)
    raise RequestError(404, "unknown_session", f"No hello of session {session_id!r} of run {run_name!r} came here.")


def is_there(connection: Connection, run_id: int) -> bool:
    """Tell whether a run was not deleted; its row is held until the transaction ends."""
    its = select(run.c.run_id).where(run.c.run_id == run_id).with_for_update()
    return connection.execute(its).one_or_none() is not None


def held(connection: Connection, run_id: int) -> Record:
    """Return the row of a run that is held, as it is now."""
    return connection.execute(select(run).where(run.c.run_id == run_id)).one()


def say_hello(
    connection: Connection, run_name: str, session_id: str, hello: wire.Hello, sent: float | None, now: float
) -> int:
    """Store a hello, the first or a fuller one, and return the session's next seq; raises RequestError 409."""
    run_row = _join_run(connection, run_name, hello, now)
    run_id = int(run_row.run_id)
    check_deleted(connection, run_name, session_id)
    if is_ahead(run_row.last_seen, now):
        launches.redate(connection, run_id, now)
    its = (session.c.run_id == run_id) & (session.c.session == session_id)
    known = connection.execute(select(session).where(its)).one_or_none()
    began = launches.began(hello, sent, now)
    launch_no = launches.join(connection, run_id, hello, began) if known is None else int(known.launch_no)
    newer = launches.newer(connection, run_id, launch_no)
    _describe_run(connection, run_row, hello, now, is_newest=not newer)
    settled = layer_sets.numbers_of(connection, run_id, newer)
    sets = {} if known is None else json.loads(known.layer_sets)
    for item in (each for each in hello.layer_sets if each.id not in sets):
        sets[item.id] = layer_sets.keep(connection, run_id, item, layers.register(connection, run_id, item, settled))
    if known is not None:
        merged = _merged(_restored(known.hello), hello)
        launches.fill(connection, run_id, launch_no, merged.first_step)
        is_sharded = known.sends_shards if known.next_seq else bool(merged.sharded)  # what it sent decides
        told = {"hello": _stored(merged), "layer_sets": json.dumps(sets), **_role(hello.rank, sharded=is_sharded)}
        touch(connection, known, now, told)
        return int(known.next_seq)
    if not newer:
        _take_over(connection, run_id, launch_no, now)
    row = {"run_id": run_id, "session": session_id, "launch_no": launch_no, "rank": hello.rank, "started": now}
    row |= {"interval_s": hello.interval_s, "hello": _stored(hello), "layer_sets": json.dumps(sets)}
    row |= _role(hello.rank, sharded=bool(hello.sharded))
    connection.execute(insert(session).values(**row, last_seen=now, ended=SILENT if newer else None))
    return 0


def joint(
    connection: Connection, run_id: int, launch_no: int, numbers: Sequence[int], set_id: str, now: float
) -> Record:
    """Return the row of the session that stands for all ranks of a sharded launch, with a layer set of it."""
    name = f"+{launch_no}"  # no agent may call itself so
    its = select(session).where(session.c.run_id == run_id, session.c.session == name)
    known = connection.execute(its).one_or_none()
    if known is None:
        ended = SILENT if launches.newer(connection, run_id, launch_no) else None
        row = {"run_id": run_id, "session": name, "launch_no": launch_no, "rank": -1, "interval_s": 0.0, "started": now}
        row |= {"hello": "{}", "layer_sets": "{}", "draws": True, "last_seen": now, "ended": ended}
        connection.execute(insert(session).values(**row))
    sets = {} if known is None else json.loads(known.layer_sets)
    if set_id not in sets:
        this = (session.c.run_id == run_id) & (session.c.session == name)
        stored = json.dumps({**sets, set_id: layer_sets.keep_joint(connection, run_id, numbers)})
        connection.execute(update(session).where(this).values(layer_sets=stored))
    return connection.execute(its).one()


def check_role(row: Record) -> None:
    """Raise RequestError 409 unless it is known what the first batch of a session is: a series, or a shard of one."""
    if not row.next_seq and json.loads(row.hello)["sharded"] is None:
        raise RequestError(409, "unknown_layer_set", "No hello told whether this session sends shards.", "sharded")


def hear(connection: Connection, row: Record, heartbeat: wire.Heartbeat, now: float) -> None:
    """Note a heartbeat of a session."""
    told: dict[str, object] = {"dropped_steps": heartbeat.dropped_steps, "agent_share": heartbeat.agent_share}
    touch(connection, row, now, told, heartbeat.step)


def end(connection: Connection, row: Record, message: wire.End, now: float) -> None:
    """Note the end of a session; with the last open one of the newest launch the run ends, and its incidents with it.

    Sessions of other launches do not matter: whoever was killed never says that it ended.
    """
    if row.ended not in (None, SILENT):
        return
    touch(connection, row, now, {"ended": message.state, "error": message.error}, message.last_step)
    if launches.newer(connection, row.run_id, row.launch_no):
        return
    mine = (session.c.run_id == row.run_id) & (session.c.launch_no == row.launch_no)
    states = connection.scalars(select(session.c.ended).where(mine, session.c.rank >= 0)).all()
    if None in states:
        return
    connection.execute(update(session).where(mine, session.c.rank < 0).values(ended=message.state))
    ended = "crashed" if "crashed" in states else "finished"
    connection.execute(update(run).where(run.c.run_id == row.run_id).values(ended=ended))
    close_incidents(connection, row.run_id, now)


def close_incidents(connection: Connection, run_id: int, now: float) -> None:
    """Close what is open of a run that ended."""
    folded = connection.execute(select(run.c.step).where(run.c.run_id == run_id)).scalar_one()
    step = max(folded or 0, launches.reached(connection, run_id) or 0)
    incidents.close_run(connection, run_id, step, now, "run_finished")


def touch(
    connection: Connection,
    row: Record,
    now: float,
    values: Mapping[str, object],
    step: int | None = None,
    of_run: Mapping[str, object] = MappingProxyType({}),
) -> None:
    """Note that a session was heard of, and told of a step, and what is new ``of_run``; one whose launch was replaced
    stays silent, and its run as it is.
    """
    if is_ahead(row.last_seen, now):
        launches.redate(connection, row.run_id, now)
    told = {"last_seen": now, **absences.progress(row, now, step), **values}
    change(connection, session, {"run_id": row.run_id, "session": row.session}, told)
    revise(connection, row.run_id, last_seen=now, **of_run)
    if "ended" not in values:
        absences.heard_again(connection, row, now, step)


def revise(connection: Connection, run_id: int, **values: object) -> None:
    """Change a run's row and count it: pages look again."""
    connection.execute(_REVISION, {"at_run_id": run_id, **values})


def _join_run(connection: Connection, name: str, hello: wire.Hello, now: float) -> Record:
    """Return the row of a run, a new one where there was none, held until the transaction ends."""
    known = run_names.find(connection, name, held=True)
    if known is not None:
        return known
    values = {"name": name, "created": now, "last_seen": now, "framework": hello.framework, "facts": "[]"}
    insert_new(connection, run, {**values, "revision": 0})
    return connection.execute(select(run).where(run.c.name == name).with_for_update()).one()


@lru_cache(maxsize=256)
def facts(stored: str) -> tuple[wire.Fact, ...]:
    """Return what the agents of a run have said, from its row."""
    return tuple(wire.Fact(fact["code"], fact["text"], tuple(fact["layers"])) for fact in json.loads(stored))


def _describe_run(connection: Connection, row: Record, hello: wire.Hello, now: float, *, is_newest: bool) -> None:
    """Note what a hello says of its run; the framework is that of the newest launch."""
    told = json.loads(row.facts)
    arrived = json.loads(json.dumps(hello.facts, default=vars))
    told += [fact for fact in arrived if fact not in told]
    named = (hello.framework, row.framework) if is_newest else (row.framework, hello.framework)
    stored = json.dumps(told[:MAX_FACTS])
    revise(connection, row.run_id, last_seen=now, framework=named[0] or named[1], facts=stored)


def _take_over(connection: Connection, run_id: int, launch_no: int, now: float) -> None:
    """Let the run go on with its newest launch, and be in the list again; what was open of others is silent now."""
    older = (session.c.run_id == run_id) & (session.c.launch_no != launch_no) & session.c.ended.is_(None)
    connection.execute(update(session).where(older).values(ended=SILENT))
    connection.execute(update(run).where(run.c.run_id == run_id).values(ended=None, archived=False))
    absences.close(connection, run_id, launch_no, "silent", now)


def _role(rank: int, *, sharded: bool) -> dict[str, object]:
    """Return what a session's row says of its batches: they are the series of the launch, shards of it, or neither."""
    return {"draws": rank == 0 and not sharded, "sends_shards": sharded}


def _stored(hello: wire.Hello) -> str:
    return wire.dump(replace(hello, layer_sets=(), facts=())).decode()


def _restored(text: str) -> wire.Hello:
    return wire.Hello(**{**json.loads(text), "layer_sets": (), "facts": ()})


def _merged(known: wire.Hello, repeat: wire.Hello) -> wire.Hello:
    """Return the known hello with what was None filled in; raises RequestError 409 on any other difference."""
    filled: dict[str, object] = {}
    for field in wire.Hello.__dataclass_fields__:
        if field in ("layer_sets", "facts"):
            continue
        old, new = getattr(known, field), getattr(repeat, field)
        if old is None:
            filled[field] = new
        elif new is not None and new != old:
            raise RequestError(409, "conflict", f"This session said {field} = {old!r} before.", field)
    return replace(known, **filled)  # type: ignore[arg-type]  # the fields' own types
