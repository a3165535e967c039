"""What a store of many runs costs beside its list: a scrape, the rounds of the loops, a deletion. Prints a table.

python tests/benchmarks/many_runs.py [--runs 10000] [--tiles 20] [--db URL]
Of the runs a hundredth is under way, and a fifth was killed: each of these has an open incident, as a collector leaves
it. CPU is that of this process.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import run_list
from prometheus_client import generate_latest
from sqlalchemy import func, insert, select, update

from gradcanary_server.api import operations
from gradcanary_server.api import runs as api_runs
from gradcanary_server.incidents.watchdog import Watchdog
from gradcanary_server.notify.dispatcher import Dispatcher
from gradcanary_server.rules.config import Pace, Rules
from gradcanary_server.storage.database import Database
from gradcanary_server.storage.layers import LayerSetCache
from gradcanary_server.storage.schema import endpoint, incident, incident_layer, next_number, run, session, stream, tile
from gradcanary_server.tsdb.compactor import Compactor
from gradcanary_server.tsdb.log import BatchLog
from gradcanary_server.tsdb.tiles import TileStore

KILLED_IN, MEMBERS = 5, 10


def main() -> None:
    """Fill a store and print what each thing takes."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--runs", type=int, default=10_000)
    arguments.add_argument("--tiles", type=int, default=20, help="of each run")
    arguments.add_argument("--db", help="an empty PostgreSQL database (default: SQLite in a folder that goes again)")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        database = Database(given.db or f"sqlite:///{Path(folder) / 'gradcanary.db'}")
        run_list.fill(database, given.runs)
        measure_again(database, given.runs, given.tiles)
        print(f"| of {given.runs:,} runs, {given.runs * given.tiles:,} tiles | ms | ms of CPU |\n|---|---|---|")
        for words, act in rounds(database).items():
            ms, cpu_ms = timed(act)
            print(f"| {words} | {ms:.0f} | {cpu_ms:.0f} |", flush=True)
        database.close()


def measure_again(database: Database, count: int, tiles_each: int) -> None:
    """Give the runs tiles and incidents; a fifth of them was killed and is missed."""
    with database.write() as connection:
        now = database.now(connection)
        connection.execute(update(run).values(last_seen=now - 1e6, step=tiles_each * 256))
        connection.execute(update(session).values(last_seen=now - 1e6, every=1, last_step=tiles_each * 256))
        connection.execute(
            update(session).values(max_step=tiles_each * 256, max_step_at=now - 1e6, next_seq=9, sealed_seq=9)
        )
        killed = run.c.run_id % KILLED_IN == 0
        connection.execute(update(run).where(killed).values(ended=None))
        connection.execute(update(session).where(session.c.run_id % KILLED_IN == 0).values(ended=None))
        under_way = run.c.run_id % 100 == 0
        connection.execute(update(run).where(under_way).values(last_seen=now))
        connection.execute(
            update(session).where(session.c.run_id % 100 == 0).values(last_seen=now + 1e6, max_step_at=now + 1e6)
        )
        connection.execute(insert(endpoint).values(url="http://127.0.0.1:9/", secret="whsec_eA==", created=now - 2e6))
        for number in range(1, count + 1):
            _fill_one(connection, number, tiles_each, now)


def _fill_one(connection, number: int, tiles_each: int, now: float) -> None:  # type: ignore[no-untyped-def]
    of = {"run_id": number, "launch_no": 1, "every": 1}
    ends = {"sealed_until": tiles_each * 256, "rollup_ends": f"[{tiles_each // 8 * 2048}]"}
    connection.execute(insert(stream).values(**of, **ends))
    body = bytes(2_000)
    of |= {"level": 0, "kind": "absmax", "layer_group": 0, "part": 0, "stored": now - 1e6, "body": body}
    rows = [{**of, "range_no": number} for number in range(tiles_each)]
    connection.execute(insert(tile), rows)
    for rule, state in (("collapse", "resolved"), ("silent", "open" if number % KILLED_IN == 0 else "resolved")):
        row = {"run_id": number, "launch_no": 1, "rule": rule, "severity": "critical", "state": state}
        row |= {
            "opened_step": 9,
            "opened": now - 1e6,
            "since_step": 9,
            "firing": MEMBERS,
            "ever_firing": MEMBERS,
            "layers": 20,
        }
        row |= {"headline": "x" * 60, "summary": "y" * 200, "notifications_done": state == "resolved", "resolved": None}
        incident_id = next_number(connection, "incident")
        connection.execute(insert(incident).values(incident_id=incident_id, **row))
        members = [
            {"run_id": number, "incident_id": incident_id, "layer_no": place, "severity": "critical", "since_step": 9}
            for place in range(MEMBERS)
        ]
        connection.execute(insert(incident_layer), members)


def rounds(database: Database) -> dict[str, Callable[[], object]]:
    """Return what is measured, in the order in which it is done."""
    rules, tiles = Rules(), TileStore()
    sets = LayerSetCache()
    log = BatchLog(sets)
    registry = operations.create_registry(database, rules, ())
    watchdog = Watchdog(database, rules)
    compactor = Compactor(database, log, tiles, lambda: None, 30.0)
    dispatcher = Dispatcher(database, Pace(), "http://here")
    seal = dispatcher._enqueue
    return {
        "/metrics": lambda: generate_latest(registry),
        "watchdog, a round (each 5 s)": lambda: (watchdog.listen(), watchdog.look()),
        "dispatcher, a round that writes": seal,
        "dispatcher, the next one": seal,
        "compactor, the first round": compactor.compact,
        "compactor, the second round": compactor.compact,
        "compactor, a round (each 2 s)": compactor.compact,
        "a run deleted": lambda: _delete(database),
        "compactor, the round after it": compactor.compact,
    }


def _delete(database: Database) -> None:
    with database.write() as connection:
        last = connection.execute(select(func.max(run.c.run_id))).scalar_one()
        name = connection.execute(select(run.c.name).where(run.c.run_id == last)).scalar_one()
        api_runs.end_and_delete(connection, name, Rules(), "", database.now(connection))


def timed(act: Callable[[], object]) -> tuple[float, float]:
    """Return the milliseconds that something takes, and those of CPU."""
    begun, used = time.perf_counter(), time.process_time()
    act()
    return 1000 * (time.perf_counter() - begun), 1000 * (time.process_time() - used)


if __name__ == "__main__":
    main()
