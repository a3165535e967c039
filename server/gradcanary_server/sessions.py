"""Runs, launches and sessions in the store: how a session says hello, gives signs of life, and ends.

Every function runs inside a write transaction that holds the run's row: it orders everything that happens to a run.
"""

import json
from dataclasses import replace

from sqlalchemy import Connection, func, insert, select, update

from gradcanary import wire
from gradcanary_server import incidents, layers
from gradcanary_server.database import Record, insert_new
from gradcanary_server.deletion import check_deleted
from gradcanary_server.errors import RequestError
from gradcanary_server.requests import MAX_FACTS
from gradcanary_server.schema import launch, run, session

SILENT = "silent"
"""How a session ended that was still open when the next launch of its run came."""


def lock(connection: Connection, run_name: str, session_id: str) -> tuple[Record, Record]:
    """Return a run's row and its session's, held until the transaction ends; raises RequestError 404."""
    mine = connection.execute(select(run).where(run.c.name == run_name).with_for_update()).one_or_none()
    if mine is not None:
        its = select(session).where(session.c.run_id == mine.run_id, session.c.session == session_id)
        found = connection.execute(its.with_for_update()).one_or_none()
        if found is not None:
            return mine, found
    check_deleted(connection, run_name, session_id)
    raise RequestError(404, "unknown_session", f"No hello of session {session_id!r} of run {run_name!r} came here.")


def say_hello(connection: Connection, run_name: str, session_id: str, hello: wire.Hello, now: float) -> int:
    """Store a hello, the first or a fuller one, and return the session's next seq; raises RequestError 409."""
    run_id = _join_run(connection, run_name, hello, now)
    check_deleted(connection, run_name, session_id)
    its = (session.c.run_id == run_id) & (session.c.session == session_id)
    known = connection.execute(select(session).where(its)).one_or_none()
    if known is None:
        launch_no = _join_launch(connection, run_id, hello)
        sets = {item.id: layers.register(connection, run_id, item) for item in hello.layer_sets}
        row = {"run_id": run_id, "session": session_id, "launch_no": launch_no, "rank": hello.rank, "started": now}
        row |= {"interval_s": hello.interval_s, "hello": _stored(hello), "layer_sets": json.dumps(sets)}
        connection.execute(insert(session).values(**row, last_seen=now))
        connection.execute(update(run).where(run.c.run_id == run_id).values(ended=None))
        return 0
    merged = _merged(_restored(known.hello), hello)
    _fill_launch(connection, run_id, known.launch_no, merged.first_step)
    sets = json.loads(known.layer_sets)
    new = [item for item in hello.layer_sets if item.id not in sets]
    sets |= {item.id: layers.register(connection, run_id, item) for item in new}
    touch(connection, known, now, hello=_stored(merged), layer_sets=json.dumps(sets))
    return int(known.next_seq)


def hear(connection: Connection, row: Record, heartbeat: wire.Heartbeat, now: float) -> None:
    """Note a heartbeat of a session."""
    touch(connection, row, now, dropped_steps=heartbeat.dropped_steps, agent_share=heartbeat.agent_share)


def end(connection: Connection, row: Record, message: wire.End, now: float) -> None:
    """Note the end of a session; with the last open one the run ends, and its incidents with it."""
    if row.ended not in (None, SILENT):
        return
    touch(connection, row, now, ended=message.state, error=message.error)
    mine = select(session.c.ended, session.c.launch_no).where(session.c.run_id == row.run_id)
    states = connection.execute(mine).all()
    if any(state.ended is None for state in states):
        return
    newest = max(state.launch_no for state in states)
    crashed = any(state.ended == "crashed" for state in states if state.launch_no == newest)
    ended = "crashed" if crashed else "finished"
    connection.execute(update(run).where(run.c.run_id == row.run_id).values(ended=ended))
    close_incidents(connection, row.run_id, now)


def close_incidents(connection: Connection, run_id: int, now: float) -> None:
    """Close what is open of a run that ended."""
    step = connection.execute(select(run.c.step).where(run.c.run_id == run_id)).scalar_one()
    incidents.close_run(connection, run_id, step or 0, now, "run_finished")


def touch(connection: Connection, row: Record, now: float, **values: object) -> None:
    """Note that a session was heard of; one that was taken for dead is open again, and so is its run."""
    if row.ended == SILENT and "ended" not in values:
        values["ended"] = None
        connection.execute(update(run).where(run.c.run_id == row.run_id).values(ended=None))
    its = (session.c.run_id == row.run_id) & (session.c.session == row.session)
    connection.execute(update(session).where(its).values(last_seen=now, **values))
    revise(connection, row.run_id, last_seen=now)


def revise(connection: Connection, run_id: int, **values: object) -> None:
    """Change a run's row and count it: pages look again."""
    connection.execute(update(run).where(run.c.run_id == run_id).values(revision=run.c.revision + 1, **values))


def _join_run(connection: Connection, name: str, hello: wire.Hello, now: float) -> int:
    its = select(run).where(run.c.name == name).with_for_update()
    known = connection.execute(its).one_or_none()
    if known is None:
        values = {"name": name, "created": now, "last_seen": now, "framework": hello.framework, "revision": 1}
        is_new = insert_new(connection, run, {**values, "facts": json.dumps(hello.facts, default=vars)})
        known = connection.execute(its).one()
        if is_new:
            return int(known.run_id)
    facts = json.loads(known.facts)
    arrived = json.loads(json.dumps(hello.facts, default=vars))
    facts += [fact for fact in arrived if fact not in facts]
    framework = hello.framework or known.framework
    stored = json.dumps(facts[:MAX_FACTS])
    revise(connection, known.run_id, last_seen=now, framework=framework, facts=stored)
    return int(known.run_id)


def _join_launch(connection: Connection, run_id: int, hello: wire.Hello) -> int:
    """Return the number of the launch of a new session.

    A second process of the same rank is the job started again under an id that somebody fixed: the next launch.
    """
    newest = select(func.max(launch.c.launch_no)).where(launch.c.run_id == run_id)
    mine = connection.execute(newest.where(launch.c.launch == hello.launch)).scalar_one()
    same_rank = (session.c.run_id == run_id) & (session.c.launch_no == mine) & (session.c.rank == hello.rank)
    if mine is not None and connection.execute(select(session.c.session).where(same_rank)).first() is None:
        _fill_launch(connection, run_id, mine, hello.first_step)
        return int(mine)
    number = (connection.execute(newest).scalar_one() or 0) + 1
    values = {"run_id": run_id, "launch_no": number, "launch": hello.launch, "world_size": hello.world_size}
    values |= {"first_step": hello.first_step, "late": hello.late}
    values |= {"absmax_below": hello.absmax_below, "norm_below": hello.norm_below}
    connection.execute(insert(launch).values(**values))
    older = (session.c.run_id == run_id) & session.c.ended.is_(None)
    connection.execute(update(session).where(older).values(ended=SILENT))
    return number


def _fill_launch(connection: Connection, run_id: int, launch_no: int, first_step: int | None) -> None:
    unknown = (launch.c.run_id == run_id) & (launch.c.launch_no == launch_no) & launch.c.first_step.is_(None)
    connection.execute(update(launch).where(unknown).values(first_step=first_step))


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
