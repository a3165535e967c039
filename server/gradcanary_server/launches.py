"""The launches of a run in the store, and which of them is the newer one.

They are numbered as they come here, and ordered by when they began: what the collector could not hear of one launch may
come by ``gradcanary sync`` when the next one is long under way.
"""

from collections.abc import Sequence

from sqlalchemy import Connection, bindparam, func, insert, select, update

from gradcanary import wire
from gradcanary_server.database import Record
from gradcanary_server.leaps import is_ahead
from gradcanary_server.schema import launch, run, session

CLOCK_S = 5.0
"""A clock that is off by less is taken for right: a Date header has whole seconds, and requests take their time."""

ORDER = (launch.c.started, launch.c.launch_no)
"""The columns that put the one that began first first."""

_IN_ORDER = select(launch).where(launch.c.run_id == bindparam("run_id")).order_by(*ORDER)


def in_order(connection: Connection, run_id: int) -> Sequence[Record]:
    """Return the rows of the launches of a run, the one that began first first."""
    return connection.execute(_IN_ORDER, {"run_id": run_id}).all()


def progress(connection: Connection, run_ids: Sequence[int]) -> dict[int, tuple[int, float | None]]:
    """Return the highest step that the newest launch of each run has told of, sampled or not, and when it did."""
    joined = (launch.c.run_id == session.c.run_id) & (launch.c.launch_no == session.c.launch_no)
    told = func.max(session.c.reached).label("step"), func.max(session.c.moved).label("moved")
    query = select(session.c.run_id, *told).join(launch, joined)
    mine = query.where(session.c.run_id.in_(run_ids), session.c.reached.is_not(None))
    in_turn = mine.group_by(session.c.run_id, *ORDER).order_by(*ORDER)
    return {row.run_id: (row.step, row.moved) for row in connection.execute(in_turn)}


def reached(connection: Connection, run_id: int) -> int | None:
    """Return the highest step that the newest launch of a run has told of, None where it has told of none."""
    return progress(connection, [run_id]).get(run_id, (None, None))[0]


def places(connection: Connection, run_id: int) -> dict[int, int]:
    """Return the place of each launch of a run by its number, 0 for the one that began first."""
    return {row.launch_no: place for place, row in enumerate(in_order(connection, run_id))}


def newer(connection: Connection, run_id: int, launch_no: int) -> frozenset[int]:
    """Return the numbers of the launches of a run that began after this one."""
    known = places(connection, run_id)
    return frozenset(number for number, place in known.items() if place > known[launch_no])


def began(hello: wire.Hello, sent: float | None, now: float) -> float:
    """Return when the launch of a hello began, by our clock; ``sent`` is when the hello was, by that of the sender."""
    if hello.started is None:
        return now
    off = now - sent if sent is not None and abs(now - sent) > CLOCK_S else 0.0
    return max(min(hello.started + off, now), 0.0)


def join(connection: Connection, run_id: int, hello: wire.Hello, started: float) -> int:
    """Return the number of the launch of a new session.

    A second process of the same rank is the job started again under an id that somebody fixed: another launch. Of
    several that lack this rank, the one that began at nearly the same time is meant.
    """
    known = in_order(connection, run_id)
    lacking = [row for row in known if row.launch == hello.launch and not _has(connection, row, hello.rank)]
    if lacking:
        mine = min(reversed(lacking), key=lambda row: abs(float(row.started) - started))
        fill(connection, run_id, mine.launch_no, hello.first_step)
        return int(mine.launch_no)
    number = max((row.launch_no for row in known), default=0) + 1
    values = {"run_id": run_id, "launch_no": number, "launch": hello.launch, "world_size": hello.world_size}
    values |= {"first_step": hello.first_step, "late": hello.late, "started": started}
    values |= {"absmax_below": hello.absmax_below, "norm_below": hello.norm_below}
    connection.execute(insert(launch).values(**values))
    return number


def redate(connection: Connection, run_id: int, now: float) -> None:
    """Let the launches of a run have begun earlier where the clock was set back since it was last heard of.

    Otherwise the next launch would have begun before them, and not be judged.
    """
    heard = connection.execute(select(run.c.last_seen).where(run.c.run_id == run_id)).scalar_one()
    mine = launch.c.run_id == run_id
    latest = connection.execute(select(func.max(launch.c.started)).where(mine)).scalar_one()
    if is_ahead(heard, now) and latest is not None and latest > now:  # all of them, so that they stay in their order
        connection.execute(update(launch).where(mine).values(started=launch.c.started - (heard - now)))


def fill(connection: Connection, run_id: int, launch_no: int, first_step: int | None) -> None:
    """Note the first step of a launch where it was not known."""
    unknown = (launch.c.run_id == run_id) & (launch.c.launch_no == launch_no) & launch.c.first_step.is_(None)
    connection.execute(update(launch).where(unknown).values(first_step=first_step))


def _has(connection: Connection, row: Record, rank: int) -> bool:
    mine = (session.c.run_id == row.run_id) & (session.c.launch_no == row.launch_no) & (session.c.rank == rank)
    return connection.execute(select(session.c.session).where(mine)).first() is not None
