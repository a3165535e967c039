"""Runs as the read API tells them."""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from gradcanary_server import incidents, launches, metrics, run_names, vigils
from gradcanary_server.arrays import array
from gradcanary_server.database import Record
from gradcanary_server.errors import unknown_run
from gradcanary_server.life import Heard, run_state, session_state
from gradcanary_server.rules import Silent
from gradcanary_server.run_choice import OF_THE_CLOCK, Choice
from gradcanary_server.run_shapes import Gap, RunInBrief, RunInFull, SessionShape
from gradcanary_server.schema import launch, layer, run, session
from gradcanary_server.spark import Spark
from gradcanary_server.timestamps import timestamp


@dataclass(frozen=True)
class Seen:
    """A run, its state at the moment of the question, the last step that it told of and when; silence counts from
    ``since`` on, when we listened."""

    row: Record
    state: str
    since: float
    step: int | None
    stepped: float | None


SILENT = Silent()

MOST_TIMED = 1_000
"""Runs that are looked at for those of a state that the clock tells."""


def page(connection: Connection, chosen: Choice, now: float, silent: Silent = SILENT) -> tuple[list[Seen], str | None]:
    """Return runs in their order, and the place after which the next ones are, None after the last.

    A run that is heard of between two questions moves to the front. Raises RequestError 422 for a place that is none.
    """
    most = MOST_TIMED if chosen.state in OF_THE_CLOCK else chosen.limit
    keys = connection.execute(chosen.keys().limit(most + 1)).all()
    looked_at = keys[:most]
    seen = _seen(connection, _rows(connection, [key.run_id for key in looked_at]), now, silent)
    pairs = zip(looked_at, seen, strict=True)
    found = [(key, each) for key, each in pairs if chosen.state in (None, each.state)]
    shown = found[: chosen.limit]
    last = shown[-1][0] if len(found) > chosen.limit else looked_at[-1] if len(keys) > most else None
    return [each for _, each in shown], None if last is None else chosen.place(last)


def unended(connection: Connection, most: int, now: float, silent: Silent = SILENT) -> list[Seen]:
    """Return the runs that did not end and are not in the archive: the ones heard of last, so many at most."""
    query = select(run.c.run_id).where(run.c.ended.is_(None), run.c.archived.is_(False))
    found = connection.scalars(query.order_by(run.c.last_seen.desc(), run.c.run_id.desc()).limit(most)).all()
    return _seen(connection, _rows(connection, found), now, silent)


def _rows(connection: Connection, run_ids: Sequence[int]) -> list[Record]:
    """Return the rows of runs in this order: put in order as rows, all that agents have said would move with them."""
    rows = {row.run_id: row for row in connection.execute(select(run).where(run.c.run_id.in_(run_ids)))}
    return [rows[run_id] for run_id in run_ids]


def one(connection: Connection, name: str, now: float, silent: Silent = SILENT) -> Seen:
    """Return a run by name; raises RequestError 404."""
    return _seen(connection, [find(connection, name)], now, silent)[0]


def find(connection: Connection, name: str) -> Record:
    """Return the row of a run by name; raises RequestError 404."""
    found = run_names.find(connection, name)
    if found is None:
        raise unknown_run(name)
    return found


def summaries(connection: Connection, seen: Sequence[Seen]) -> list[RunInBrief]:
    """Return the runs as the list shows them."""
    ids = [each.row.run_id for each in seen]
    headlines = incidents.headlines(connection, ids)
    layers, accumulators = _layers(connection, ids)
    return [
        _summary(each, headlines[each.row.run_id], layers[each.row.run_id], accumulators[each.row.run_id])
        for each in seen
    ]


def detail(connection: Connection, seen: Seen, now: float, silent: Silent = SILENT) -> RunInFull:
    """Return everything about a run but its measurements."""
    row = seen.row
    sessions, logged = _sessions(connection, row.run_id), metrics.of_run(connection, row.run_id)
    return {
        **summaries(connection, [seen])[0],
        "aliases": run_names.former(connection, row.run_id),
        "created": timestamp(row.created),
        "revision": row.revision,
        "framework": row.framework,
        "rules_version": row.rules_version,
        "sessions": [_session(each, session_state(each, now, silent, seen.since)) for each in sessions],
        "gaps": [gap for each in sessions for gap in _gaps(each)],
        "facts": json.loads(row.facts),
        "metrics": [{"name": each.name, "tags": each.tags, "last": each.last} for each in logged],
    }


def gaps(connection: Connection, run_id: int) -> list[Gap]:
    """Return the steps of a run that should have come and did not."""
    return [gap for each in _sessions(connection, run_id) for gap in _gaps(each)]


def _seen(connection: Connection, rows: Sequence[Record], now: float, silent: Silent) -> list[Seen]:
    ids = [row.run_id for row in rows]
    columns = (session.c.run_id, session.c.ended, session.c.last_seen, session.c.interval_s)
    query = select(*columns).where(session.c.ended.is_(None), session.c.rank >= 0, session.c.run_id.in_(ids))
    alive: dict[int, list[Heard]] = defaultdict(list)
    for each in connection.execute(query):
        alive[each.run_id].append(each)
    missed, vigil = incidents.missed(connection, ids), vigils.read(connection, now)
    progress = launches.progress(connection, ids)
    found = []
    for row in rows:
        # One that is missed already is not heard again because our own outage came in between.
        since = 0.0 if "silent" in missed[row.run_id] else vigil.since
        state = run_state(row.ended, alive[row.run_id], now, silent, since)
        step, stepped = progress.get(row.run_id, (row.step, None))
        found.append(Seen(row, state, since, step, stepped))
    return found


def _layers(connection: Connection, ids: Sequence[int]) -> tuple[dict[int, int], dict[int, dict[str, int]]]:
    """Return, per run, how many layers it has and how many sum into each dtype (effective, else stored)."""
    dtype = func.coalesce(layer.c.effective, layer.c.stored)
    query = select(layer.c.run_id, dtype.label("dtype"), func.count().label("layers"))
    counts: dict[int, int] = defaultdict(int)
    accumulators: dict[int, dict[str, int]] = defaultdict(dict)
    for row in connection.execute(query.where(layer.c.run_id.in_(ids)).group_by(layer.c.run_id, dtype)):
        counts[row.run_id] += row.layers
        if row.dtype is not None:
            accumulators[row.run_id][row.dtype] = row.layers
    return counts, defaultdict(dict, {run_id: dict(sorted(found.items())) for run_id, found in accumulators.items()})


def _summary(seen: Seen, headline: incidents.Headline, layers: int, accumulators: dict[str, int]) -> RunInBrief:
    row = seen.row
    return {
        "run": row.name,
        "state": seen.state,
        "step": seen.step,
        "stepped": timestamp(seen.stepped),
        "last_seen": timestamp(row.last_seen),
        "layers": layers,
        "firing": headline.firing,
        "low": row.low,
        "worst": headline.worst,
        "accumulators": accumulators,
        "open_incidents": headline.open_incidents,
        "headline": headline.headline,
        "ended_on": headline.ended_on,
        "note": row.note,
        "tags": json.loads(row.tags),
        "archived": row.archived,
        "spark": array(Spark.unpack(row.spark).points()),
    }


def _sessions(connection: Connection, run_id: int) -> Sequence[Record]:
    joined = (launch.c.run_id == session.c.run_id) & (launch.c.launch_no == session.c.launch_no)
    query = select(session, launch.c.launch, launch.c.world_size).join(launch, joined)
    order = (*launches.ORDER, session.c.rank, session.c.started)
    return connection.execute(query.where(session.c.run_id == run_id, session.c.rank >= 0).order_by(*order)).all()


def _session(row: Record, state: str) -> SessionShape:
    hello = json.loads(row.hello)
    return {
        "session": row.session,
        "launch": row.launch,
        "rank": row.rank,
        "world_size": row.world_size,
        "first_step": hello["first_step"],
        "last_step": row.last_step if row.reached is None else row.reached,
        "step_source": hello["step_source"],
        "state": state,
        "every": row.every,
        "phase": row.phase,
        "agent_share": row.agent_share,
        "dropped_steps": row.dropped_steps,
    }


def _gaps(row: Record) -> list[Gap]:
    found = json.loads(row.gaps)
    return [{"session": row.session, "from_step": begin, "to_step": end, "why": why} for begin, end, why in found]
