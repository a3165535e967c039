"""Numbered versions of the rules, and the reset of a run's state when its rules change.

A run has the number of the rules that last evaluated it. When the rules change, findings of the changed ones are
reset before the next step, and at the start of the collector for runs with an open incident: a run that sends nothing
any more would keep it for ever.
"""

from __future__ import annotations

import logging

from sqlalchemy import Connection, insert, select, update

from gradcanary_server.incidents import repository, service, watchdog
from gradcanary_server.incidents.lifecycle import ABSENCE_RULES
from gradcanary_server.rules import resets
from gradcanary_server.rules.config import Rules, rules_from_json, rules_to_json
from gradcanary_server.storage.database import Database
from gradcanary_server.storage.rule_states import RuleStateStore
from gradcanary_server.storage.schema import HELD_RUN, HeldRun, incident, rule_set, run

logger = logging.getLogger(__name__)


class RuleVersions:
    """Applies the rules of this collector to one store."""

    def __init__(self, database: Database, rules: Rules, states: RuleStateStore) -> None:
        self._database = database
        self._rules = rules
        self._states = states
        self.current: int | None = None
        """The version of this collector's rules, None before :meth:`begin`."""

    def begin(self) -> None:
        """Give the rules a version, a new one if they differ from the last, and revise runs with open incidents."""
        with self._database.setup_transaction() as connection:
            self.current = _number(connection, self._rules, self._database.now(connection))
            open_here = select(incident.c.run_id).where(incident.c.state == "open")
            others = run.c.run_id.in_(open_here), run.c.rules_version < self.current
            runs = connection.scalars(select(run.c.run_id).where(*others)).all()
        for run_id in runs:
            query = select(*HELD_RUN).where(run.c.run_id == run_id).with_for_update()
            try:
                with self._database.write() as connection:
                    row = connection.execute(query).one_or_none()
                    if row is not None:
                        self.revise(connection, HeldRun(*row), self._database.now(connection))
            except Exception:  # one run must not stop the start of the collector
                logger.exception("the rules of run %s could not be changed; again with its next batch", run_id)

    def revise(self, connection: Connection, row: HeldRun, now: float) -> None:
        """Reset the findings of earlier rules of a run, whose row is held, and give it the version of these.

        Another collector may have newer rules already: its version stays.
        """
        if self.current is None or (row.rules_version or 0) >= self.current:
            return
        if row.rules_version is not None:
            query = select(rule_set.c.content).where(rule_set.c.version == row.rules_version)
            self._reset(connection, row, rules_from_json(connection.execute(query).scalar_one()), now)
        statement = update(run).where(run.c.run_id == row.run_id)
        connection.execute(statement.values(rules_version=self.current, revision=run.c.revision + 1))

    def _reset(self, connection: Connection, row: HeldRun, before: Rules, now: float) -> None:
        run_id = int(row.run_id)
        for rule in ABSENCE_RULES:  # the watchdog finds a run that is still absent again
            if resets.has_changed(getattr(before, rule), getattr(self._rules, rule)):
                watchdog.close_absence(connection, run_id, rule, "rule_changed", now)
        stored = self._states.read(connection, row)
        names = repository.layer_names(connection, run_id)
        state, changes = resets.reset_changed_rules(stored.state, names, before, self._rules)
        if state is stored.state:
            return
        launch_no = stored.state.progress.launch
        service.record_transitions(connection, run_id, launch_no, changes, now, self._rules.pace.reopen_s)
        self._states.rewrite(connection, run_id, stored, state)


def _number(connection: Connection, rules: Rules, now: float) -> int:
    last = connection.execute(select(rule_set).order_by(rule_set.c.version.desc()).limit(1)).one_or_none()
    if last is not None and rules_from_json(last.content) == rules:
        return int(last.version)
    number = 1 if last is None else int(last.version) + 1
    connection.execute(insert(rule_set).values(version=number, content=rules_to_json(rules), since=now))
    return number
