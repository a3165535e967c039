"""Incidents and their members in the tables: loaded whole, written in as many statements as there are kinds of rows."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, astuple, fields
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, bindparam, func, insert, select, update

from gradcanary_server import summaries
from gradcanary_server.incident_state import Case, Incident, Member
from gradcanary_server.observations import Jump
from gradcanary_server.schema import incident, incident_layer, layer

WHOLE_RUN_NO = -1
"""The layer_no of a member that is the whole run."""

_COLUMNS = [field.name for field in fields(Incident) if field.name not in ("id", "jumps")]
_MEMBER = [field.name for field in fields(Member)]


def names(connection: Connection, run_id: int) -> dict[int, str]:
    """Return the name of every layer of a run by layer_no, in model order."""
    query = select(layer.c.layer_no, layer.c.name).where(layer.c.run_id == run_id).order_by(layer.c.layer_no)
    return {row.layer_no: row.name for row in connection.execute(query)}


def latest(connection: Connection, run_id: int, rule: str) -> Case | None:
    """Return the open incident of a rule, else the one that resolved last."""
    mine = (incident.c.run_id == run_id, incident.c.rule == rule)
    newest = select(func.max(incident.c.incident_id)).where(*mine).scalar_subquery()
    row = connection.execute(select(incident).where(incident.c.incident_id == newest)).mappings().one_or_none()
    return None if row is None else Case(parsed(row), members(connection, row["incident_id"]))


def opened(connection: Connection, run_id: int) -> list[Case]:
    """Return the open incidents of a run, in the order of their opening."""
    return _cases(connection, incident.c.run_id == run_id, incident.c.state == "open")


def of_its_end(connection: Connection, run_id: int) -> list[Case]:
    """Return the incidents that the end of a run closed and of which somebody may have to hear."""
    closed = incident.c.resolution == "run_finished"
    return _cases(connection, incident.c.run_id == run_id, closed, incident.c.settled.is_(False))


def _cases(connection: Connection, *which: ColumnElement[bool]) -> list[Case]:
    query = select(incident).where(*which)
    rows = connection.execute(query.order_by(incident.c.incident_id)).mappings().all()
    return [Case(parsed(row), members(connection, row["incident_id"])) for row in rows]


def members(connection: Connection, incident_id: int) -> dict[int | None, Member]:
    """Return the members of an incident by layer_no, None for the whole run."""
    query = select(incident_layer).where(incident_layer.c.incident_id == incident_id)
    rows = connection.execute(query.order_by(incident_layer.c.layer_no)).mappings()
    return {
        None if row["layer_no"] == WHOLE_RUN_NO else row["layer_no"]: Member(**{key: row[key] for key in _MEMBER})
        for row in rows
    }


def parsed(row: RowMapping) -> Incident:
    """Return the incident of a row."""
    jumps = tuple(Jump(*each) for each in json.loads(row["jumps"]))
    return Incident(id=row["incident_id"], jumps=jumps, **{key: row[key] for key in _COLUMNS})


def save(connection: Connection, run_id: int, case: Case, layer_names: dict[int, str]) -> int:
    """Write an incident with the texts of this moment and the members that changed; return its id."""
    known = case.incident.id is not None
    row = {
        **{key: getattr(case.incident, key) for key in _COLUMNS},
        "jumps": json.dumps([astuple(jump) for jump in case.incident.jumps]),
        "headline": summaries.headline(case.incident, case.members),
        "summary": summaries.sentence(case.incident, case.members, layer_names),
        "settled": False,
    }
    if case.incident.id is None:
        added = insert(incident).values(run_id=run_id, **row).returning(incident.c.incident_id)
        incident_id = int(connection.execute(added).scalar_one())
    else:
        incident_id = case.incident.id
        connection.execute(update(incident).where(incident.c.incident_id == incident_id).values(**row))
    _save_members(connection, incident_id, case, _stored(connection, incident_id) if known else set())
    return incident_id


def _stored(connection: Connection, incident_id: int) -> set[int]:
    query = select(incident_layer.c.layer_no).where(incident_layer.c.incident_id == incident_id)
    return set(connection.scalars(query))


def _save_members(connection: Connection, incident_id: int, case: Case, stored: set[int]) -> None:
    rows = list(_member_rows(incident_id, case))
    new = [row for row in rows if row["layer_no"] not in stored]
    old = [{f"b_{key}": value for key, value in row.items()} for row in rows if row["layer_no"] in stored]
    if new:
        connection.execute(insert(incident_layer), new)
    if old:
        mine = incident_layer.c.incident_id == bindparam("b_incident_id")
        this = incident_layer.c.layer_no == bindparam("b_layer_no")
        connection.execute(
            update(incident_layer).where(mine, this).values({k: bindparam(f"b_{k}") for k in _MEMBER}), old
        )


def _member_rows(incident_id: int, case: Case) -> Iterable[dict[str, Any]]:
    for number in case.touched:
        layer_no = WHOLE_RUN_NO if number is None else number
        yield {"incident_id": incident_id, "layer_no": layer_no, **asdict(case.members[number])}
