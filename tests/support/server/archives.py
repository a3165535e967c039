"""A collector without HTTP: ingest, compaction and every picture of one run."""

import base64
import json

import numpy as np
from sqlalchemy import delete, func, select

from gradcanary import wire
from gradcanary_server.api import charts, layer_table
from gradcanary_server.api.charts import HeatmapOptions
from gradcanary_server.incidents import text
from gradcanary_server.incidents.watchdog import Watchdog
from gradcanary_server.ingest.service import Ingest
from gradcanary_server.rules.config import Rules
from gradcanary_server.storage import runs
from gradcanary_server.storage.database import Database
from gradcanary_server.storage.layers import LayerSetCache
from gradcanary_server.storage.schema import (
    incident,
    incident_layer,
    launch,
    layer,
    layer_set,
    metadata,
    metric,
    rule_state,
    run,
    session,
    session_tombstone,
)
from gradcanary_server.tsdb import retention
from gradcanary_server.tsdb.compactor import Compactor
from gradcanary_server.tsdb.log import BatchLog
from gradcanary_server.tsdb.query import StepRange
from gradcanary_server.tsdb.reader import Reader
from gradcanary_server.tsdb.tiles import TileStore

RUN = "run"
LAYERS = 3

ROUGH = 2.5e-4
"""What an aggregate is made wider by, beyond what is in it; single samples, and buckets of them, are exact."""

TOLD = (run, launch, session, layer, layer_set, metric, rule_state, incident, incident_layer, session_tombstone)
"""What follows from what agents told."""

OF_A_STORE = (
    "run_id",
    "incident_id",
    "sealed_seq",
    "summary",
    "described_revision",
    "notifications_done",
    "state_token",
)
"""Columns that count what was tried, are drawn anew, or say what was compacted, composed and delivered."""


class Store:
    """A collector without HTTP: what was ingested can be compacted and read."""

    def __init__(self, url, kind=Database):
        self.url = url
        self.database = kind(url)
        self.database.migrate()
        self.forget()

    def forget(self, rules=Rules()):  # noqa: B008 -- immutable
        """Begin with empty caches, as a new process does."""
        sets, tiles = LayerSetCache(), TileStore()
        log = BatchLog(sets)
        self.archive = Reader(log, tiles)
        self.ingest = Ingest(self.database, rules, sets, self.archive, "http://here")
        self.compactor = Compactor(self.database, log, tiles, self.ingest.merge_overdue)
        self.watchdog = Watchdog(self.database, rules)

    def clear(self):
        with self.database.write() as connection:
            if connection.dialect.name == "postgresql":  # on Citus, as tables without and with runs are emptied at once
                connection.exec_driver_sql("SET LOCAL citus.multi_shard_modify_mode TO 'sequential'")
            for table in reversed(metadata.sorted_tables):
                connection.execute(delete(table))
        self.forget()

    def send(self, session, stream, size, *, first_seq=0, end=None, **hello):
        if first_seq == 0:
            self.ingest.hello(RUN, session, wire.dump(stream.hello(launch=session, **hello)))
        for seq, each in enumerate(stream.batches(size), start=first_seq):
            self.ingest.batch(RUN, session, seq, wire.dump(each))
        if end is not None:
            self.ingest.end(RUN, session, wire.dump(wire.End(end, None, None)))

    def thin(self, older_than, keeping=0):
        """Let go of samples stored before a time, but for so many tiles of each stream; tell in how many bites."""
        with self.database.read() as connection:
            aged = retention.expired_streams(connection, older_than)
        bites = 0
        for *key, last in aged:
            is_more = True
            while is_more:
                with self.database.write() as connection:
                    is_more = retention.drop_raw_chunk(connection, *key, last - keeping)
                bites += 1
        self.forget()
        return bites

    def read(self, build):
        with self.database.read() as connection:
            return build(connection, runs.get_run(connection, RUN))

    def pictures(self, points, begin=None, end=None):
        """Every picture of the run as the API sends it."""
        span, rules, archive = StepRange(begin, end, points), Rules(), self.archive
        wanted = [str(number) for number in range(LAYERS)]
        found = {}
        for stat in ("absmax", "norm", "nonfinite"):
            found[stat] = self.read(lambda c, run, s=stat: charts.build_series(c, archive, rules, run, s, wanted, span))
        for value in ("min", "mean", "max"):
            picture = HeatmapOptions(value, "model", None, 400)
            found[value] = self.read(
                lambda c, run, p=picture: charts.build_heatmap(c, archive, rules, run, "absmax", p, span)
            )
        found["layer"] = self.read(lambda c, run: charts.build_layer(c, archive, rules, run, "1", span))
        found["metrics"] = self.read(
            lambda c, run: charts.build_metrics(c, archive, run, charts.MetricSelector((), ()), span)
        )
        found["layers"] = self.read(lambda c, run: layer_table.build_layer_table(c, archive, run.run_id))
        found["samples"] = sum(len(piece.columns.steps) for piece in self.samples())
        for each in found.values():
            if isinstance(each, dict):
                each.pop("marks", None)  # they hold numbers of incidents, which are never used again
        return json.dumps(found)

    def samples(self):
        """Every sample of the run, in the order of steps."""
        run_id, segments = self.read(lambda c, run: (run.run_id, self.archive.segments(c, run.run_id, None, None)))
        return charts.iter_samples(self.database, self.archive, run_id, segments)

    def rows(self):
        """Return what agents told, by table, as it is whatever was tried, compacted and delivered."""
        found = {}
        with self.database.read() as connection:
            for table in TOLD:
                wanted = select(*(column for column in table.c if column.name not in OF_A_STORE))
                if table in retention.HEAVY:  # what is of deleted runs goes bit by bit
                    wanted = wanted.where(table.c.run_id.in_(select(run.c.run_id)))
                found[table.name] = sorted(map(repr, connection.execute(wanted)))
            rows = connection.execute(select(incident)).mappings().all()
            found["texts"] = sorted(text.current_summary(connection, row) for row in rows)
        return found

    def count(self, table):
        with self.database.read() as connection:
            return connection.execute(select(func.count()).select_from(table)).scalar_one()


def decoded(array):
    """An array of the API as numpy."""
    return np.frombuffer(base64.b64decode(array["data"]), array["dtype"]).reshape(array["shape"])
