"""A store as a migrated collector has it, without the collector."""

import json

from sqlalchemy import insert, select

from gradcanary_server.incidents import service
from gradcanary_server.rules.config import Pace
from gradcanary_server.storage.database import Database
from gradcanary_server.storage.schema import launch, layer, run, run_name
from support.streams import layer_names


class Store:
    """A migrated database with one run of 300 layers, unless it is ``bare``; changes enter as ingest lets them in."""

    def __init__(self, url, names=None, framework="peft", *, bare=False, kind=Database):
        self.database = kind(url)
        self.database.migrate()
        self.run_id = 1
        if not bare:
            self._begin(names or layer_names(300), framework)

    def _begin(self, names, framework):
        with self.database.write() as connection:
            now = self.database.now(connection)
            connection.execute(
                insert(run).values(
                    run_id=1,
                    name="sdxl",
                    created=now,
                    last_seen=now,
                    revision=1,
                    step=0,
                    framework=framework,
                    note="",
                    tags="[]",
                    archived=False,
                    facts="[]",
                )
            )
            connection.execute(insert(run_name).values(name="sdxl", run_id=1))
            connection.execute(insert(launch).values(run_id=1, launch_no=1, launch="a", world_size=1, late=False))
            rows = [
                {
                    "run_id": 1,
                    "layer_no": number,
                    "name": name,
                    "shape": json.dumps([8, 64]),
                    "param_dtype": "float32",
                    "group_no": number % 2,
                }
                for number, name in enumerate(names)
            ]
            connection.execute(insert(layer), rows)

    def record(self, *changes, shift_s=0.0, launch_no=1, reached=None):
        with self.database.write() as connection:
            now = self.database.now(connection) + shift_s
            service.record_transitions(connection, self.run_id, launch_no, changes, now, reached=reached)

    def close_run(self, step=1000):
        with self.database.write() as connection:
            service.close_run(connection, self.run_id, step, self.database.now(connection), "run_finished")

    def rows(self, query):
        with self.database.read() as connection:
            return connection.execute(query).mappings().all()

    def count(self, table):
        return len(self.rows(select(table)))


SLOW = Pace(wait_s=0.1, interval_s=600.0)


URL = "http://127.0.0.1:8787"
