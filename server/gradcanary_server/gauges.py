"""What the store says of runs, incidents and itself, as Prometheus reads it: asked for at each scrape.

Every collector of a store answers the same here. Series are bounded: of the runs that have not ended and are not in the
archive the thousand heard of last, by the rules that ever found something in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy import Connection, func, select

from gradcanary_server import meters, run_names, runs, sealing
from gradcanary_server.database import Database
from gradcanary_server.incident_state import RANKS
from gradcanary_server.loops import Loop
from gradcanary_server.outages import unavailable
from gradcanary_server.rules import Rules
from gradcanary_server.schema import delivery, incident, run, session

MOST_RUNS = 1_000


@dataclass(frozen=True)
class Gauges(Collector):
    """The gauges of one store, and of the ``loops`` of this process."""

    database: Database
    rules: Rules
    loops: Callable[[], Sequence[Loop]]
    meters: tuple[Collector, ...] = field(default=meters.METERS)

    def describe(self) -> list[Metric]:
        """Return nothing: to register it shall ask nothing of a store that may have no tables yet."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield what is known at this moment; while the store is away, that it is."""
        for meter in self.meters:
            yield from meter.collect()
        yield _by("gradcanary_loop_lag_seconds", "Since a loop had done all its work.", ["loop"], self._lags())
        try:
            with self.database.read() as connection:
                found = [*self._of_runs(connection), *self._of_store(connection)]
        except Exception as error:
            if unavailable(error) is None:
                raise
            found = []
        is_up = bool(found) and self.database.trouble() is None
        yield GaugeMetricFamily("gradcanary_database_up", "Whether the store answers, and keeps.", value=is_up)
        yield from found

    def _lags(self) -> list[tuple[list[str], float]]:
        return [([loop.name], loop.lag_s()) for loop in self.loops()]

    def _of_runs(self, connection: Connection) -> Iterator[Metric]:
        now = self.database.now(connection)
        seen = runs.unended(connection, MOST_RUNS, now, self.rules.silent)
        names = {each.row.run_id: each.row.name for each in seen}
        states = [([each.row.name, each.state], 1.0) for each in seen]
        steps = [([each.row.name], float(each.step)) for each in seen if each.step is not None]
        moved = [([names[run_id]], max(now - at, 0.0)) for run_id, at in _moved(connection, names)]
        yield _by("gradcanary_run_state", "1 for the state of a run: live, stale, silent.", ["run", "state"], states)
        yield _by("gradcanary_run_step", "The last step that a run told of.", ["run"], steps)
        yield _by("gradcanary_run_step_age_seconds", "Since a run told of a new step.", ["run"], moved)
        words = "Layers that fire, 1 where the run as a whole does, 0 where it is over. notify: as in rules.yaml."
        labels = ["run", "rule", "severity", "notify"]
        yield _by("gradcanary_firing_layers", words, labels, self._firing(connection, names))

    def _firing(self, connection: Connection, names: dict[int, str]) -> list[tuple[list[str], float]]:
        columns = (incident.c.run_id, incident.c.rule, incident.c.severity, incident.c.state, incident.c.firing)
        query = select(*columns).where(incident.c.run_id.in_(names)).order_by(incident.c.incident_id)
        latest = {(row.run_id, row.rule): row for row in connection.execute(query)}
        return [
            (
                [names[run_id], rule, row.severity, "false" if rule in self.rules.muted else "true"],
                max(row.firing, 1.0) if row.state == "open" else 0.0,
            )
            for (run_id, rule), row in latest.items()
        ]

    def _of_store(self, connection: Connection) -> Iterator[Metric]:
        opened = select(incident.c.severity, func.count()).where(incident.c.state == "open")
        counts = {row[0]: row[1] for row in connection.execute(opened.group_by(incident.c.severity))}
        by_severity = [([str(severity)], float(counts.get(severity, 0))) for severity in RANKS]
        pending = select(func.count()).select_from(delivery).where(delivery.c.state == "pending")
        numbers = {
            "runs": ("Runs, whatever became of them.", select(func.count()).select_from(run).where(run_names.IS_THERE)),
            "deliveries_pending": ("Messages that are to be delivered.", pending),
        }
        yield _by("gradcanary_open_incidents", "Open incidents of all runs.", ["severity"], by_severity)
        for name, (words, query) in numbers.items():
            yield GaugeMetricFamily(f"gradcanary_{name}", words, value=connection.execute(query).scalar_one())
        waiting = len(sealing.waiting(connection, self.database.now(connection)))
        words = "Sessions with measurements that are to leave the log for tiles."
        yield GaugeMetricFamily("gradcanary_compaction_waiting_sessions", words, value=waiting)
        size = self.database.size(connection)
        yield GaugeMetricFamily("gradcanary_store_bytes", "What the store takes on disk.", value=size)
        if self.database.has_one_writer:
            words, size = "What is in SQLite's log since it began anew.", self.database.log_size()
            yield GaugeMetricFamily("gradcanary_store_log_bytes", words, value=size)


def _moved(connection: Connection, names: dict[int, str]) -> list[tuple[int, float]]:
    """Return when each of these runs told of a new step."""
    mine = session.c.run_id.in_(names), session.c.ended.is_(None), session.c.moved.is_not(None)
    query = select(session.c.run_id, func.max(session.c.moved)).where(*mine).group_by(session.c.run_id)
    return [(run_id, at) for run_id, at in connection.execute(query)]


def _by(name: str, words: str, labels: list[str], found: Sequence[tuple[list[str], float]]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, words, labels=labels)
    for values, number in found:
        family.add_metric(values, number)
    return family
