"""Which rules judged what: the rules of a store, numbered as collectors begin to apply them, and their change.

A run has the number of the rules that it was last folded with. Where those were others, what they said is taken back
before the next step is folded, and, of runs with an open incident, as soon as the collector starts: who does not send
any more must not be spoken of for ever by a rule that is gone.
"""

from __future__ import annotations

import json
import logging

from sqlalchemy import Connection, func, insert, select, update

from gradcanary_server import absences, incident_rows, incidents, rule_changes, rules_json
from gradcanary_server.database import Database, Record
from gradcanary_server.fold_states import FoldStates
from gradcanary_server.observations import Change
from gradcanary_server.rules import Rules
from gradcanary_server.schema import incident, launch, rule_set, run

logger = logging.getLogger(__name__)


class RuleVersions:
    """Applies the rules of this collector to one store."""

    def __init__(self, database: Database, rules: Rules, states: FoldStates) -> None:
        self._database = database
        self._rules = rules
        self._states = states
        self.current: int | None = None
        """The number of this collector's rules, None before :meth:`begin`."""

    def begin(self) -> None:
        """Number the rules, with a new number if they are others than the last ones, and revise what is open."""
        with self._database.set_up() as connection:
            self.current = _number(connection, self._rules, self._database.now(connection))
            open_here = select(incident.c.run_id).where(incident.c.state == "open")
            others = run.c.run_id.in_(open_here), run.c.rules_version < self.current
            runs = connection.scalars(select(run.c.run_id).where(*others)).all()
        for run_id in runs:
            self._begin_with(run_id)

    def _begin_with(self, run_id: int) -> None:
        try:
            with self._database.write() as connection:
                row = connection.execute(select(run).where(run.c.run_id == run_id).with_for_update()).one_or_none()
                if row is not None:
                    self.revise(connection, row, self._database.now(connection))
        except Exception:  # one run must not keep the collector from all others
            logger.exception("the rules of run %s could not be changed; again with its next batch", run_id)

    def revise(self, connection: Connection, row: Record, now: float) -> None:
        """Take back what earlier rules said of a run, whose row is held, and note that these judge it now.

        Of several collectors some may have later ones already: those stand, and wait for this one's restart.
        """
        if self.current is None or (row.rules_version or 0) >= self.current:
            return
        if row.rules_version is not None:
            self._take_back(connection, row, _read(connection, row.rules_version), now)
        mine = update(run).where(run.c.run_id == row.run_id)
        connection.execute(mine.values(rules_version=self.current, revision=run.c.revision + 1))

    def _take_back(self, connection: Connection, row: Record, before: Rules, now: float) -> None:
        run_id = int(row.run_id)
        self._take_back_of_clock(connection, run_id, before, now)
        memory = self._states.read(connection, row)
        names = incident_rows.names(connection, run_id)
        moved, changes = rule_changes.withdraw(memory.state, names, before, self._rules)
        if moved is memory.state:
            return
        incidents.record(connection, run_id, memory.state.progress.launch, changes, now, self._rules.pace.reopen_s)
        self._states.rewrite(connection, run_id, memory, moved)

    def _take_back_of_clock(self, connection: Connection, run_id: int, before: Rules, now: float) -> None:
        """Close what the rules of the clock said: what still does not come is found again in their next round."""
        for rule in incidents.missed(connection, [run_id]).get(run_id, ()):
            if rule_changes.differ(getattr(before, rule), getattr(self._rules, rule)):
                query = select(run.c.step, func.max(launch.c.launch_no)).join(launch, launch.c.run_id == run.c.run_id)
                step, launch_no = connection.execute(query.where(run.c.run_id == run_id).group_by(run.c.step)).one()
                severity, at = absences.SEVERITIES[rule], step or 0
                over = Change(at, rule, None, "resolved", severity, at, resolution="rule_changed")
                incidents.report(connection, run_id, launch_no, over, now, self._rules.pace.reopen_s)


def _number(connection: Connection, rules: Rules, now: float) -> int:
    last = connection.execute(select(rule_set).order_by(rule_set.c.version.desc()).limit(1)).one_or_none()
    if last is not None and rules_json.load(json.loads(last.content)) == rules:
        return int(last.version)
    number = 1 if last is None else int(last.version) + 1
    connection.execute(insert(rule_set).values(version=number, content=rules_json.dump(rules), since=now))
    return number


def _read(connection: Connection, version: int) -> Rules:
    stored = connection.execute(select(rule_set.c.content).where(rule_set.c.version == version)).scalar_one()
    return rules_json.load(json.loads(stored))
