"""A collector without HTTP: ingest, compaction and every picture of one run."""

import base64
import json

import numpy as np
from sqlalchemy import delete, func, select

from gradcanary import wire
from gradcanary_server import deletion, layer_table, runs, views
from gradcanary_server.archive import Archive
from gradcanary_server.compactor import Compactor
from gradcanary_server.database import Database
from gradcanary_server.ingest import Ingest
from gradcanary_server.layer_sets import KnownSets
from gradcanary_server.log import Log
from gradcanary_server.rules import Rules
from gradcanary_server.schema import (
    deleted_session,
    fold_state,
    incident,
    incident_layer,
    launch,
    layer,
    layer_set,
    metadata,
    metric,
    run,
    session,
)
from gradcanary_server.tiles import Tiles
from gradcanary_server.views import Picture
from gradcanary_server.watchdog import Watchdog
from gradcanary_server.window import Range

RUN = "run"
LAYERS = 3

ROUGH = 2.5e-4
"""What a node is made wider by, beyond what is in it; single samples, and buckets of them, are exact."""

TOLD = (run, launch, session, layer, layer_set, metric, fold_state, incident, incident_layer, deleted_session)
"""What follows from what agents told."""

OF_A_STORE = ("run_id", "incident_id", "sealed_seq", "settled", "folded")
"""Columns that count what was tried, are drawn anew, or say what was compacted and delivered."""


class Store:
    """A collector without HTTP: what was ingested can be compacted and read."""

    def __init__(self, url, kind=Database):
        self.url = url
        self.database = kind(url)
        self.database.migrate()
        self.forget()

    def forget(self, rules=Rules()):  # noqa: B008 -- immutable
        """Begin with empty caches, as a new process does."""
        sets, tiles = KnownSets(), Tiles()
        log = Log(sets)
        self.archive = Archive(log, tiles)
        self.ingest = Ingest(self.database, rules, sets, log, "http://here")
        self.compactor = Compactor(self.database, log, tiles, self.ingest.settle)
        self.watchdog = Watchdog(self.database, self.archive, rules)

    def clear(self):
        with self.database.write() as connection:
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
        """Let go of samples stored before a time, but for so many tiles of each chain; tell in how many bites."""
        with self.database.read() as connection:
            aged = deletion.aged(connection, older_than)
        bites = 0
        for *key, last in aged:
            is_more = True
            while is_more:
                with self.database.write() as connection:
                    is_more = deletion.thin(connection, *key, last - keeping)
                bites += 1
        self.forget()
        return bites

    def read(self, build):
        with self.database.read() as connection:
            return build(connection, runs.one(connection, RUN, 0.0).row)

    def pictures(self, points, begin=None, end=None):
        """Every picture of the run as the API sends it."""
        span, rules, archive = Range(begin, end, points), Rules(), self.archive
        wanted = [str(number) for number in range(LAYERS)]
        found = {}
        for stat in ("absmax", "norm", "nonfinite"):
            found[stat] = self.read(lambda c, run, s=stat: views.series(c, archive, rules, run, s, wanted, span))
        for value in ("min", "mean", "max"):
            picture = Picture(value, "model", None, 400)
            found[value] = self.read(lambda c, run, p=picture: views.picture(c, archive, rules, run, "absmax", p, span))
        found["metrics"] = self.read(lambda c, run: views.metrics(c, archive, run, views.Chosen((), ()), span))
        found["layers"] = self.read(lambda c, run: layer_table.table(c, archive, run.run_id))
        found["samples"] = self.read(
            lambda _, run: sum(len(p.columns.steps) for p in views.samples(self.database, archive, run.run_id))
        )
        for each in found.values():
            if isinstance(each, dict):
                each.pop("marks", None)  # they hold numbers of incidents, which are never used again
        return json.dumps(found)

    def rows(self):
        """Return what agents told, by table, as it is whatever was tried, compacted and delivered."""
        found = {}
        with self.database.read() as connection:
            for table in TOLD:
                wanted = select(*(column for column in table.c if column.name not in OF_A_STORE))
                if table in deletion.HEAVY:  # what is of deleted runs goes bit by bit
                    wanted = wanted.where(table.c.run_id.in_(select(run.c.run_id)))
                found[table.name] = sorted(map(repr, connection.execute(wanted)))
        return found

    def count(self, table):
        with self.database.read() as connection:
            return connection.execute(select(func.count()).select_from(table)).scalar_one()


def decoded(array):
    """An array of the API as numpy."""
    return np.frombuffer(base64.b64decode(array["data"]), array["dtype"]).reshape(array["shape"])
