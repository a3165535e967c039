"""Incidents and their members in the tables.

An incident is loaded with all members; only the members that changed are written, in one statement of each kind.
"""

from __future__ import annotations

import json
from dataclasses import asdict, astuple, fields

from sqlalchemy import Connection, RowMapping, bindparam, insert, select, update

from gradcanary.wire import Crash
from gradcanary_server.incidents import text
from gradcanary_server.incidents.lifecycle import Incident, IncidentCase, Member
from gradcanary_server.rules.types import Jump, ScaleFall, SeriesFacts
from gradcanary_server.storage.schema import incident, incident_layer, is_of_incident, layer, next_incident_id

WHOLE_RUN_NO = -1
"""The layer_no of a member that is the whole run."""

_OF_JSON = ("lr_jumps", "scale_fall", "crash", "series")
_COLUMNS = [field.name for field in fields(Incident) if field.name not in ("run_id", "id", *_OF_JSON)]
_MEMBER = [field.name for field in fields(Member)]


def layer_names(connection: Connection, run_id: int) -> dict[int, str]:
    """Return the name of every layer of a run by layer_no, in model order."""
    query = select(layer.c.layer_no, layer.c.name).where(layer.c.run_id == run_id).order_by(layer.c.layer_no)
    return {row.layer_no: row.name for row in connection.execute(query)}


def latest_incident(connection: Connection, run_id: int, rule: str) -> IncidentCase | None:
    """Return the open incident of a rule, else the one that resolved last."""
    query = select(incident).where(incident.c.run_id == run_id, incident.c.rule == rule)
    row = connection.execute(query.order_by(incident.c.incident_id.desc()).limit(1)).mappings().one_or_none()
    return None if row is None else _case(connection, row)


def open_incidents(connection: Connection, run_id: int) -> list[IncidentCase]:
    """Return the open incidents of a run, in the order of their opening."""
    query = select(incident).where(incident.c.run_id == run_id, incident.c.state == "open")
    rows = connection.execute(query.order_by(incident.c.incident_id)).mappings().all()
    return [_case(connection, row) for row in rows]


def load_members(connection: Connection, run_id: int, incident_id: int) -> dict[int | None, Member]:
    """Return the members of an incident by layer_no, None for the whole run."""
    query = select(incident_layer).where(is_of_incident(incident_layer, run_id, incident_id))
    rows = connection.execute(query.order_by(incident_layer.c.layer_no)).mappings()
    return {
        None if row["layer_no"] == WHOLE_RUN_NO else row["layer_no"]: Member(**{key: row[key] for key in _MEMBER})
        for row in rows
    }


def incident_from_row(row: RowMapping) -> Incident:
    lr_jumps = tuple(Jump(*values) for values in json.loads(row["lr_jumps"]))
    columns = {key: row[key] for key in _COLUMNS}
    fall = row["scale_fall"]
    return Incident(
        run_id=row["run_id"],
        id=row["incident_id"],
        lr_jumps=lr_jumps,
        scale_fall=None if fall is None else ScaleFall(*json.loads(fall)),
        crash=_crash(row["crash"]),
        series={int(number): SeriesFacts(*facts) for number, facts in json.loads(row["series"]).items()},
        **columns,
    )


def save_incident(connection: Connection, run_id: int, case: IncidentCase) -> None:
    """Write an incident and the members that changed; its summary is composed later."""
    row = {
        **{key: getattr(case.incident, key) for key in _COLUMNS},
        "lr_jumps": json.dumps([astuple(jump) for jump in case.incident.lr_jumps]),
        "scale_fall": None if case.incident.scale_fall is None else json.dumps(astuple(case.incident.scale_fall)),
        "crash": None if case.incident.crash is None else json.dumps(asdict(case.incident.crash)),
        "series": json.dumps({number: astuple(facts) for number, facts in case.incident.series.items()}),
        "headline": text.headline(case.incident, case.members),
        "notifications_done": False,
    }
    if case.incident.id is None:
        incident_id = next_incident_id(connection)
        row |= {"run_id": run_id, "incident_id": incident_id, "summary": "", "revision": 1}
        connection.execute(insert(incident).values(**row))
    else:
        incident_id = case.incident.id
        row["revision"] = incident.c.revision + 1
        connection.execute(update(incident).where(is_of_incident(incident, run_id, incident_id)).values(**row))
    _save_members(connection, run_id, incident_id, case)


def _crash(stored: str | None) -> Crash | None:
    if stored is None:
        return None
    columns = json.loads(stored)
    return Crash(**{**columns, "frames": tuple(columns["frames"])})


def _case(connection: Connection, row: RowMapping) -> IncidentCase:
    return IncidentCase(incident_from_row(row), load_members(connection, row["run_id"], row["incident_id"]))


def _save_members(connection: Connection, run_id: int, incident_id: int, case: IncidentCase) -> None:
    query = select(incident_layer.c.layer_no).where(is_of_incident(incident_layer, run_id, incident_id))
    stored = set(connection.scalars(query))
    new, old = [], []
    for number in case.touched:
        layer_no, values = WHOLE_RUN_NO if number is None else number, asdict(case.members[number])
        if layer_no in stored:
            old.append({"at_layer_no": layer_no, **values})
        else:
            new.append({"run_id": run_id, "incident_id": incident_id, "layer_no": layer_no, **values})
    if new:
        connection.execute(insert(incident_layer), new)
    if old:
        is_layer = incident_layer.c.layer_no == bindparam("at_layer_no")
        where = is_of_incident(incident_layer, run_id, incident_id)
        connection.execute(update(incident_layer).where(where, is_layer), old)
