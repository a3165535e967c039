"""Briefs: the open incidents of a run as the replies to its agent have them.

An agent gets a reply twice a second. What takes long is composed once: a summary for each change of its incident, and
what to do first, which depends on other incidents, for each change of any, but of some incidents only.
Acknowledgements and silences are read each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Connection, RowMapping, bindparam, select

from gradcanary.wire import Brief
from gradcanary_server.caches import MIB, Cache
from gradcanary_server.incidents import service, silences, text
from gradcanary_server.incidents.detail import load_details
from gradcanary_server.incidents.lifecycle import RANKS
from gradcanary_server.incidents.silences import SilencedMembers
from gradcanary_server.storage.prepared import Prepared
from gradcanary_server.storage.schema import incident, run
from gradcanary_server.tsdb.reader import Reader

MAX_BYTES = 8 * MIB
"""Of the texts that are kept: those of some ten thousand incidents."""

MAX_ADVISED = 10
"""Incidents of a run with what to do first, the newest of the worst: the cause of each is looked for among all."""

_IS_OPEN = incident.c.run_id == bindparam("run_id"), incident.c.state == "open"
_OPEN = (
    select(incident, run.c.name.label("run"))
    .join(run, run.c.run_id == incident.c.run_id)
    .where(*_IS_OPEN)
    .order_by(incident.c.incident_id)
)
_ANY = Prepared(select(incident.c.incident_id).where(*_IS_OPEN).limit(1))


class Texts(NamedTuple):
    """The summaries of a run's open incidents by number and revision, and what to do first by number."""

    summaries: dict[tuple[int, int], str]
    advice: dict[int, str]


def has_open(connection: Connection, run_id: int) -> bool:
    """Return True if a run has an open incident."""
    return bool(_ANY.rows(connection, {"run_id": run_id}))


class Briefs:
    """The open incidents of runs, with addresses below ``public_url``, and the texts that were composed last.

    ``muted`` are the rules that send no messages.
    """

    def __init__(
        self, public_url: str, muted: frozenset[str] = frozenset(), measurements: Reader | None = None
    ) -> None:
        self._public_url, self._muted, self._measurements = public_url, muted, measurements
        self._texts: Cache[int, Texts] = Cache(MAX_BYTES, _size)

    def read(self, connection: Connection, run_id: int, now: float) -> tuple[Brief, ...]:
        """Return the open incidents of a run; no writing transaction may call this."""
        rows = connection.execute(_OPEN, {"run_id": run_id}).mappings().all()
        texts = self._read_texts(connection, run_id, rows)
        active = silences.active_silences(connection, now) if rows else []
        silenced = silences.silenced_members_by_incident(connection, rows, active)
        return tuple(self._brief(row, texts, silenced.get(row["incident_id"])) for row in rows)

    def _read_texts(self, connection: Connection, run_id: int, rows: Sequence[RowMapping]) -> Texts:
        known = self._texts.get(run_id) or Texts({}, {})
        revisions = [(row["incident_id"], row["revision"]) for row in rows]
        if revisions == list(known.summaries):
            return known
        keys = zip(revisions, rows, strict=True)
        summaries = {key: known.summaries.get(key) or text.current_summary(connection, row) for key, row in keys}
        worst = sorted(rows, key=lambda row: (RANKS[row["severity"]], row["incident_id"]), reverse=True)
        advised = [row["incident_id"] for row in worst[:MAX_ADVISED]]
        details = load_details(connection, advised, run_id=run_id, is_brief=True, measurements=self._measurements)
        advice = {detail.id: detail.explanation.do_first for detail in details}
        return self._texts.keep(run_id, Texts(summaries, advice))

    def _brief(self, row: RowMapping, texts: Texts, silenced: SilencedMembers | None) -> Brief:
        return Brief(
            id=row["incident_id"],
            rule=row["rule"],
            severity=row["severity"],
            state=row["state"],
            opened_step=row["opened_step"],
            layers=row["firing"],
            summary=texts.summaries[row["incident_id"], row["revision"]],
            url=service.incident_url(self._public_url, row["run"], row["incident_id"]),
            acknowledged=row["acked"] is not None,
            silenced=silenced is not None and _is_silenced(silenced),
            reopened=row["reopened"],
            do_first=texts.advice.get(row["incident_id"], ""),
            muted=row["rule"] in self._muted,
        )


def _size(texts: Texts) -> int:
    return 2 * sum(map(len, (*texts.summaries.values(), *texts.advice.values())))


def _is_silenced(silenced: SilencedMembers) -> bool:
    """Return True if silences cover all members that fire, or the worst of them."""
    firing = silenced.firing()
    return _worst(silenced, firing - silenced.covered) < _worst(silenced, firing)


def _worst(silenced: SilencedMembers, members: frozenset[int | None]) -> int:
    """Return the rank of the worst severity of members, -1 of none."""
    return max((RANKS[silenced.members[number].severity] for number in members), default=-1)
