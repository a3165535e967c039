"""Briefs: the open incidents of a run as the replies to its agent have them.

An agent gets a reply twice a second. What takes long, the summary and what to do first, is composed once for each
change of the open incidents of a run; acknowledgements and silences are read each time.
"""

from __future__ import annotations

from sqlalchemy import Connection, RowMapping, bindparam, select

from gradcanary.wire import Brief
from gradcanary_server.incidents import service, silences
from gradcanary_server.incidents.detail import load_details
from gradcanary_server.incidents.explanation import Explanation
from gradcanary_server.incidents.lifecycle import RANKS
from gradcanary_server.incidents.silences import SilencedMembers
from gradcanary_server.storage.schema import incident, run

MAX_RUNS = 1_000
"""Runs with open incidents whose texts are kept: about a kilobyte for each incident."""

_OPEN = (
    select(incident, run.c.name.label("run"))
    .join(run, run.c.run_id == incident.c.run_id)
    .where(incident.c.run_id == bindparam("run_id"), incident.c.state == "open")
    .order_by(incident.c.incident_id)
)
_ANY = select(incident.c.incident_id).where(incident.c.run_id == bindparam("run_id"), incident.c.state == "open")

Revisions = tuple[tuple[int, int], ...]


def has_open(connection: Connection, run_id: int) -> bool:
    """Return True if a run has an open incident."""
    return connection.scalar(_ANY.limit(1), {"run_id": run_id}) is not None


class Briefs:
    """The open incidents of runs, with addresses below ``public_url``, and the texts that were composed last."""

    def __init__(self, public_url: str) -> None:
        self._public_url = public_url
        self._texts: dict[int, tuple[Revisions, dict[int, Explanation]]] = {}

    def read(self, connection: Connection, run_id: int, now: float) -> tuple[Brief, ...]:
        """Return the open incidents of a run; no writing transaction may call this."""
        rows = connection.execute(_OPEN, {"run_id": run_id}).mappings().all()
        texts = self._read_texts(connection, run_id, tuple((row["incident_id"], row["revision"]) for row in rows))
        active = silences.active_silences(connection, now) if rows else []
        silenced = silences.silenced_members_by_incident(connection, rows, active)
        return tuple(
            self._brief(row, texts[row["incident_id"]], silenced.get(row["incident_id"]))
            for row in rows
            if row["incident_id"] in texts
        )

    def _read_texts(self, connection: Connection, run_id: int, revisions: Revisions) -> dict[int, Explanation]:
        if not revisions:
            self._texts.pop(run_id, None)
            return {}
        known, texts = self._texts.get(run_id, ((), {}))
        if known != revisions:
            details = load_details(connection, [number for number, _ in revisions], is_brief=True)
            texts = {detail.id: detail.explanation for detail in details}
            if len(self._texts) >= MAX_RUNS:
                self._texts.clear()
            self._texts[run_id] = revisions, texts
        return texts

    def _brief(self, row: RowMapping, text: Explanation, silenced: SilencedMembers | None) -> Brief:
        return Brief(
            id=row["incident_id"],
            rule=row["rule"],
            severity=row["severity"],
            state=row["state"],
            opened_step=row["opened_step"],
            layers=row["firing"],
            summary=text.what,
            url=service.incident_url(self._public_url, row["run"], row["incident_id"]),
            acknowledged=row["acked"] is not None,
            silenced=silenced is not None and _is_silenced(silenced),
            reopened=row["reopened"],
            do_first=text.do_first,
        )


def _is_silenced(silenced: SilencedMembers) -> bool:
    """Return True if silences cover all members that fire, or the worst of them."""
    firing = silenced.firing()
    return _worst(silenced, firing - silenced.covered) < _worst(silenced, firing)


def _worst(silenced: SilencedMembers, members: frozenset[int | None]) -> int:
    """Return the rank of the worst severity of members, -1 of none."""
    return max((RANKS[silenced.members[number].severity] for number in members), default=-1)
