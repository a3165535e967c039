"""Prometheus metrics of runs, incidents and the store, read at each scrape.

Every collector of a store answers the same here. Series are bounded: the thousand runs seen last of those that have not
ended and are not archived, by the rules that ever fired in them; and the thousand that crashed last, within an hour.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy import Connection, func, select

from gradcanary_server import telemetry
from gradcanary_server.background import BackgroundLoop
from gradcanary_server.errors import StoreUnavailable
from gradcanary_server.incidents import liveness
from gradcanary_server.incidents.lifecycle import RANKS
from gradcanary_server.rules.config import Rules
from gradcanary_server.storage.database import Database
from gradcanary_server.storage.schema import delivery, endpoint, incident, run, session
from gradcanary_server.tsdb import compaction

MAX_RUNS = 1_000

CRASH_S = 3_600.0
"""How long a crashed run has a series: an alert lasts as long, and a person has seen its first message."""

Samples = Sequence[tuple[list[str], float]]
"""Values of the labels, and the number."""


@dataclass(frozen=True)
class ProcessMetrics(Collector):
    """The counters of this process, and its ``loops``."""

    loops: Callable[[], Sequence[BackgroundLoop]]
    meters: tuple[Collector, ...] = field(default=telemetry.METERS)

    def describe(self) -> list[Metric]:
        """Return nothing: the loops are not there yet."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of this moment."""
        for meter in self.meters:
            yield from meter.collect()
        lags = [([loop.name], loop.lag_s()) for loop in self.loops()]
        yield _gauge("gradcanary_loop_lag_seconds", "Since a loop had done all its work.", ["loop"], lags)


@dataclass(frozen=True)
class StoreMetrics(Collector):
    """The metrics of one store."""

    database: Database
    rules: Rules

    def describe(self) -> list[Metric]:
        """Return nothing: registration must not read a store that may have no tables yet."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of this moment; while the store is away, only that it is."""
        try:
            with self.database.read() as connection:
                stored = [*self._run_metrics(connection), *self._store_metrics(connection)]
        except StoreUnavailable:
            stored = []
        is_up = bool(stored) and self.database.health() is None
        yield GaugeMetricFamily("gradcanary_database_up", "Whether the store answers, and keeps.", value=is_up)
        yield from stored

    def _run_metrics(self, connection: Connection) -> Iterator[Metric]:
        now = self.database.now(connection)
        statuses = liveness.read_open_statuses(connection, MAX_RUNS, now, self.rules.silent)
        names = {status.row.run_id: status.row.name for status in statuses}
        states = [([status.row.name, status.state], 1.0) for status in statuses]
        states += [([name, "crashed"], 1.0) for name in _crashed_runs(connection, now)]
        steps = [([status.row.name], float(status.step)) for status in statuses if status.step is not None]
        ages = [([names[run_id]], max(now - at, 0.0)) for run_id, at in _step_times(connection, names)]
        text = "1 for the state of a run: live, stale, silent, crashed."
        yield _gauge("gradcanary_run_state", text, ["run", "state"], states)
        yield _gauge("gradcanary_run_step", "The last step that a run told of.", ["run"], steps)
        yield _gauge("gradcanary_run_step_age_seconds", "Since a run told of a new step.", ["run"], ages)
        text = "Layers that fire, 1 where the run as a whole does, 0 where it is over. notify: as in rules.yaml."
        labels = ["run", "rule", "severity", "notify"]
        yield _gauge("gradcanary_firing_layers", text, labels, self._firing(connection, names))

    def _firing(self, connection: Connection, names: dict[int, str]) -> Samples:
        columns = (incident.c.run_id, incident.c.rule, incident.c.severity, incident.c.state, incident.c.firing)
        ids = select(func.max(incident.c.incident_id)).where(incident.c.run_id.in_(names))
        newest = incident.c.incident_id.in_(ids.group_by(incident.c.run_id, incident.c.rule))
        return [
            (
                [names[row.run_id], row.rule, row.severity, "false" if row.rule in self.rules.muted else "true"],
                max(row.firing, 1.0) if row.state == "open" else 0.0,
            )
            for row in connection.execute(select(*columns).where(newest).order_by(incident.c.incident_id))
        ]

    def _store_metrics(self, connection: Connection) -> Iterator[Metric]:
        opened = select(incident.c.severity, func.count()).where(incident.c.state == "open")
        counts = {row[0]: row[1] for row in connection.execute(opened.group_by(incident.c.severity))}
        by_severity = [([str(severity)], float(counts.get(severity, 0))) for severity in RANKS]
        yield _gauge("gradcanary_open_incidents", "Open incidents of all runs.", ["severity"], by_severity)
        runs = connection.scalar(select(func.count()).select_from(run))
        yield GaugeMetricFamily("gradcanary_runs", "Runs, whatever became of them.", value=runs)
        pending = connection.scalar(select(func.count()).select_from(delivery).where(delivery.c.state == "pending"))
        yield GaugeMetricFamily("gradcanary_deliveries_pending", "Messages that are to be delivered.", value=pending)
        text = "Endpoints that failures disabled, or whose last attempt failed."
        yield GaugeMetricFamily("gradcanary_endpoints_failing", text, value=_failing_endpoints(connection))
        waiting = len(compaction.waiting_sessions(connection, self.database.now(connection)))
        text = "Sessions with measurements that are to leave the log for tiles."
        yield GaugeMetricFamily("gradcanary_compaction_waiting_sessions", text, value=waiting)
        with suppress(OSError):  # of a disk that fails; the rest is to be seen all the more
            size = self.database.size(connection)
            yield GaugeMetricFamily("gradcanary_store_bytes", "What the store takes on disk.", value=size)
            if self.database.has_one_writer:
                size = self.database.log_size()
                yield GaugeMetricFamily("gradcanary_store_log_bytes", "The size of SQLite's log file.", value=size)
                text = "What is free on the disk of SQLite's file."
                yield GaugeMetricFamily("gradcanary_store_free_bytes", text, value=self.database.free_size())


def _crashed_runs(connection: Connection, now: float) -> Sequence[str]:
    """Return the names of the runs that crashed within the hour and were not started again."""
    query = select(run.c.name).where(
        run.c.ended == "crashed", run.c.archived.is_(False), run.c.last_seen > now - CRASH_S
    )
    return connection.scalars(query.order_by(run.c.last_seen.desc()).limit(MAX_RUNS)).all()


def _failing_endpoints(connection: Connection) -> int:
    """Return the number of endpoints that failures disabled, or whose last attempt failed."""
    fails_now = endpoint.c.disabled.is_(None) & endpoint.c.failing_since.is_not(None)
    query = select(func.count()).where(endpoint.c.deleted.is_(None), (endpoint.c.disabled_by == "failures") | fails_now)
    return connection.execute(query).scalar_one()


def _step_times(connection: Connection, names: dict[int, str]) -> list[tuple[int, float]]:
    """Return the time of the last new step of each of these runs."""
    where = session.c.run_id.in_(names), session.c.ended.is_(None), session.c.max_step_at.is_not(None)
    query = select(session.c.run_id, func.max(session.c.max_step_at)).where(*where).group_by(session.c.run_id)
    return [(run_id, at) for run_id, at in connection.execute(query)]


def _gauge(name: str, text: str, labels: list[str], samples: Samples) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, number in samples:
        family.add_metric(values, number)
    return family
