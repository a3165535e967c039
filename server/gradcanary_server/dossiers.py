"""Everything that is known about one incident, loaded in one place for pages and messages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, RowMapping, and_, or_, select

from gradcanary import remedies
from gradcanary.wire import Fact
from gradcanary_server import causes, incident_rows, summaries, veils
from gradcanary_server.causes import LikelyCause, Near, Scene
from gradcanary_server.incident_state import Incident, Member
from gradcanary_server.observations import LayerFacts
from gradcanary_server.schema import incident, layer, run


@dataclass(frozen=True)
class Ack:
    """Who knows of an incident, since when, and what they wrote."""

    at: float
    by: str
    note: str


@dataclass(frozen=True)
class Dossier:
    """An incident with its members, the layers of its run, and the texts; ``step`` is the run's last folded one."""

    id: int
    run: str
    step: int
    incident: Incident
    members: dict[int | None, Member]
    layers: dict[int, LayerFacts]
    summary: str
    ack: Ack | None
    cause: LikelyCause
    fix: remedies.Fix


def load(
    connection: Connection, incident_ids: Sequence[int], hidden: frozenset[int | None] = frozenset()
) -> list[Dossier]:
    """Return the dossiers of those of these incidents that exist, newest first; the layers of a run are read once.

    ``hidden`` members are left out as if they were none, but for a sentence that counts them.
    """
    query = select(incident, run.c.name.label("run"), run.c.step, run.c.framework, run.c.facts)
    query = query.join(run, run.c.run_id == incident.c.run_id).where(incident.c.incident_id.in_(incident_ids))
    rows = connection.execute(query.order_by(incident.c.incident_id.desc())).mappings().all()
    layers = {run_id: _layers(connection, run_id) for run_id in {row["run_id"] for row in rows}}
    return [_dossier(connection, row, layers[row["run_id"]], hidden) for row in rows]


def _dossier(
    connection: Connection, row: RowMapping, layers: dict[int, LayerFacts], hidden: frozenset[int | None]
) -> Dossier:
    every = incident_rows.members(connection, row["incident_id"])
    members = {number: member for number, member in every.items() if number not in hidden}
    what = veils.narrowed(incident_rows.parsed(row), every, members)
    summary: str = row["summary"]
    if len(members) < len(every):
        names = {number: facts.name for number, facts in layers.items()}
        summary = summaries.sentence(what, members, names) + veils.aside(every, hidden)
    facts = tuple(Fact(fact["code"], fact["text"], tuple(fact["layers"])) for fact in json.loads(row["facts"]))
    cause = causes.likely(Scene(what, members, layers, _near(connection, row), facts))
    return Dossier(
        id=row["incident_id"],
        run=row["run"],
        step=what.opened_step if row["step"] is None else row["step"],
        incident=what,
        members=members,
        layers=layers,
        summary=summary,
        ack=None if what.acked is None else Ack(what.acked, row["acked_by"], row["ack_note"]),
        cause=cause,
        fix=remedies.fix(cause.code, row["framework"]),
    )


def _layers(connection: Connection, run_id: int) -> dict[int, LayerFacts]:
    query = select(layer).where(layer.c.run_id == run_id).order_by(layer.c.layer_no)
    return {
        row.layer_no: LayerFacts(
            row.layer_no, row.name, tuple(json.loads(row.shape)), row.param_dtype, row.module_class, row.group_no
        )
        for row in connection.execute(query)
    }


def _near(connection: Connection, mine: RowMapping) -> tuple[Near, ...]:
    """Return the other incidents that began before this one was certain, and are open or not long gone."""
    recent = incident.c.opened_step >= mine["opened_step"] - causes.NEAR_STEPS
    query = select(incident).where(
        incident.c.run_id == mine["run_id"],
        incident.c.incident_id != mine["incident_id"],
        incident.c.opened_step <= mine["opened_step"],
        or_(incident.c.state == "open", and_(recent, incident.c.launch_no == mine["launch_no"])),
    )
    rows = connection.execute(query.order_by(incident.c.incident_id))
    return tuple(Near(row.incident_id, row.rule, row.severity, row.opened_step) for row in rows)
