"""Everything that is known about one incident, loaded in one place for pages and messages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, RowMapping, and_, or_, select

from gradcanary import remedies
from gradcanary.wire import Fact
from gradcanary_server import causes, incident_rows, run_names, summaries, veils
from gradcanary_server.causes import Known, LikelyCause, Near, Scene
from gradcanary_server.incident_state import Incident, Member
from gradcanary_server.schema import incident, layer, run

MANY = 1_000
"""Members that are not asked for one by one: databases take so many parameters at most."""


@dataclass(frozen=True)
class Ack:
    """Who knows of an incident, since when, and what they wrote."""

    at: float
    by: str
    note: str


@dataclass(frozen=True)
class Dossier:
    """An incident with its members, layers of its run (see :func:`load`), and the texts; ``step`` is the run's last
    folded one."""

    id: int
    run: str
    step: int
    incident: Incident
    members: dict[int | None, Member]
    layers: dict[int, Known]
    summary: str
    ack: Ack | None
    cause: LikelyCause
    fix: remedies.Fix


def load(
    connection: Connection,
    incident_ids: Sequence[int],
    hidden: frozenset[int | None] = frozenset(),
    *,
    is_brief: bool = False,
) -> list[Dossier]:
    """Return the dossiers of those of these incidents that exist, in this order.

    ``hidden`` members are left out as if they were none, but for a sentence that counts them. ``is_brief``: where
    nothing in it depends on the layers that are no members they are left out: they are most of what there is to read.
    """
    query = select(incident, run_names.CALLED.label("run"), run.c.step, run.c.framework, run.c.facts)
    query = query.join(run, run.c.run_id == incident.c.run_id).where(incident.c.incident_id.in_(incident_ids))
    rows = {row["incident_id"]: row for row in connection.execute(query).mappings()}
    found = [_File(rows[each], incident_rows.members(connection, each)) for each in incident_ids if each in rows]
    wanted = {each.run_id for each in found if not is_brief or hidden or each.is_wide}
    layers = {run_id: _layers(connection, run_id) for run_id in wanted}
    return [_dossier(connection, each, layers.get(each.run_id) or _members(connection, each), hidden) for each in found]


class _File(NamedTuple):
    """The row of an incident, with its members."""

    row: RowMapping
    members: dict[int | None, Member]

    @property
    def run_id(self) -> int:
        return int(self.row["run_id"])

    @property
    def is_wide(self) -> bool:
        """Whether all layers of the run are needed, or as well read."""
        return len(self.members) > MANY or causes.compares(self.row["rule"], self.members.values())


def _dossier(connection: Connection, file: _File, layers: dict[int, Known], hidden: frozenset[int | None]) -> Dossier:
    row, every = file
    members = {number: member for number, member in every.items() if number not in hidden}
    what = veils.narrowed(incident_rows.parsed(row), every, members)
    summary: str = row["summary"]
    if len(members) < len(every):
        names = {number: known.name for number, known in layers.items()}
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


def _layers(connection: Connection, run_id: int) -> dict[int, Known]:
    return _known(connection, layer.c.run_id == run_id)


def _members(connection: Connection, file: _File) -> dict[int, Known]:
    numbers = [number for number in file.members if number is not None]
    return _known(connection, layer.c.run_id == file.run_id, layer.c.layer_no.in_(numbers)) if numbers else {}


def _known(connection: Connection, *which: ColumnElement[bool]) -> dict[int, Known]:
    columns = (layer.c.layer_no, layer.c.name, layer.c.param_dtype, layer.c.group_no)
    rows = connection.execute(select(*columns).where(*which).order_by(layer.c.layer_no))
    return {number: Known(*known) for number, *known in rows}


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
